"""The command line: on torchrun's own parser, exact spellings only, laid over the file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from resilience_core import ConfigError, FaultToleranceConfig
from resilience_core.config.cli_options import (
    add_options,
    check_arguments,
    from_options,
    options_after_script,
)
from resilience_core.config.nvrx_keys import IGNORED_KEYS
from resilience_core.config.schema import settings

SPELLINGS = ["--ft-{dash}", "--ft-{key}", "--ft_{key}", "--ft-param-{key}", "--ft-param-{dash}", "--ft_param_{key}"]
EXAMPLES = {
    "on_event": ("./tell.sh a", "./tell.sh a"),
    "rank_section_timeouts": ("step:7", {"step": 7.0}),
    "rank_termination_signal": ("TERM", 15),
    "capture_stacks": ("false", False),
    "log_level": ("ERROR", 40),
    "log_format": ("json", "json"),
    "install_exception_hook": ("yes", True),
    "load_plugins": ("off", False),
    "checkpoint_iteration_file": ("x.txt", "x.txt"),
    "worker_start": ("spawn", "spawn"),
    "learned_limits": ("off", "off"),
    "preload": ("json", ("json",)),
    "run_dir": ("folder", "folder"),
    "membership": ("elastic", "elastic"),
    "newcomers": ("checkpoint", "checkpoint"),
    "rank_key": ("rack 7", "rack 7"),
    "node_secret_file": ("file", "file"),
    "health_checks": ("shm", ("shm",)),
    "health_check": ("true", "true"),
    "metrics_host": ("0.0.0.0", "0.0.0.0"),
    "metrics_straggler_log": ("x.jsonl", "x.jsonl"),
}


def parse(*argv: str) -> argparse.Namespace:
    """What the launcher does: torchrun's parser, our group, our check."""
    parser = get_args_parser()
    add_options(parser)
    check_arguments(parser, argv)
    return parser.parse_args(argv)


def configure(*argv: str) -> FaultToleranceConfig:
    return from_options(parse(*argv))


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "ft.yaml").write_text(text)
        return str(tmp_path / "ft.yaml")

    return write


def test_without_options_there_are_the_defaults_and_no_warning():
    config = configure("--nproc-per-node", "2", "train.py", "--lr", "1")
    assert config == FaultToleranceConfig()
    assert config.warnings == ()


@pytest.mark.parametrize("name", [setting.name for setting in settings()])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("joined", [True, False])
def test_every_field_is_an_option_in_every_spelling(name: str, spelling: str, joined: bool):
    text, value = EXAMPLES.get(name, ("7", 7))
    option = spelling.format(key=name, dash=name.replace("_", "-"))
    arguments = parse(*([f"{option}={text}"] if joined else [option, text]), "train.py", "-x")
    assert getattr(from_options(arguments), name) == value
    assert (arguments.training_script, arguments.training_script_args) == ("train.py", ["-x"])


@pytest.mark.parametrize(
    "option",
    ["--ft-cfg-path", "--ft-cfg_path", "--fault-tol-cfg-path", "--fault-tol-cfg_path", "--fault_tol_cfg_path"],
)
def test_the_file_has_all_the_names_that_scripts_use(option: str, file: Callable[[str], str]):
    path = file("fault_tolerance: {safety_factor: 3}\n")
    assert configure(option, path, "train.py").safety_factor == 3


def test_the_command_line_lies_over_the_file_and_sections_one_by_one(file: Callable[[str], str]):
    path = file("fault_tolerance: {safety_factor: 3, log_level: 10, rank_section_timeouts: {setup: 6, step: 2}}\n")
    config = configure(
        *("--ft-safety-factor", "4", "--ft-rank-section-timeouts", "step:3"),
        *("--ft-cfg-path", path, "--ft-param-rank_section_timeouts", "checkpointing:", "train.py"),
    )
    assert (config.safety_factor, config.log_level) == (4, 10)
    assert config.rank_section_timeouts == {"setup": 6.0, "step": 3.0, "checkpointing": None}


def test_of_two_spellings_the_later_counts():
    config = configure("--ft-safety-factor", "4", "--ft-param-safety_factor", "5", "--ft-safety_factor=6", "t.py")
    assert config.safety_factor == 6


@pytest.mark.parametrize("text", ["null", "none", ""])
def test_nothing_is_no_limit(text: str):
    assert configure(f"--ft-rank-heartbeat-timeout={text}", "train.py").rank_heartbeat_timeout is None
    assert configure("--ft-rank-heartbeat-timeout", text, "train.py").rank_heartbeat_timeout is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ft-rank_heartbeat_timeout", "60s"], r"^--ft-rank_heartbeat_timeout is '60s': .*60$"),
        (["--ft-safety-factor=0.5"], r"^--ft-safety-factor is '0.5': must be 1 or more"),
        (["--ft-rank-section-timeouts", "step:x"], r"^--ft-rank-section-timeouts is 'step:x': section 'step'"),
        (["--ft-cfg-path", ""], r"^--ft-cfg-path is ''"),
        (["--ft-cfg-path", "nowhere.yaml"], r"nowhere.yaml does not exist"),
    ],
)
def test_a_value_that_cannot_be_used_names_the_option_as_it_was_spelt(argv: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        configure(*argv, "train.py")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--ft-rank-hearbeat-timeout", r"unknown option .*; did you mean '--ft-rank-heartbeat-timeout'"),
        ("--ft-hearbeat", r"unknown option .*; did you mean '--ft-rank-heartbeat-timeout'"),
        ("--ft-param-rank_hearbeat_timeout", r"unknown .*did you mean '--ft-param-rank_heartbeat_timeout'"),
        ("--ft_safety_facto", r"unknown option --ft_safety_facto; did you mean '--ft_safety_factor'"),
        ("--ft-zzzzzzzzzzzzzzz", r"unknown option --ft-zzzzzzzzzzzzzzz; .*--help' lists all"),
        ("--fault-tol-config-path", r"unknown option .*did you mean '--fault-tol-cfg-path'"),
        ("--ft-rank-heart", r"--ft-rank-heart is abbreviated; write it out: --ft-rank-heartbeat-timeout$"),
        ("--ft-num", r"is abbreviated; write it out: --ft-num-warmup-iterations$"),
        ("--ft-cfg", r"unknown option --ft-cfg; did you mean '--ft-cfg"),
        ("--f", r"--f is abbreviated; .*--help' lists all"),
        ("--ft-", r"--ft- is abbreviated; .*--help' lists all"),
    ],
)
@pytest.mark.parametrize("form", ["{} 5 train.py", "{}=5 train.py", "train.py_is_missing {} 5", "{}"])
def test_an_inexact_option_is_refused_with_the_nearest(option: str, message: str, form: str):
    argv = form.format(option).split()
    if argv[0] == "train.py_is_missing":
        argv = argv[1:]
    with pytest.raises(ConfigError, match=message):
        configure("--nproc-per-node=2", *argv)


def test_torchruns_own_abbreviations_go_on_working():
    assert parse("--max-rest", "3", "train.py").max_restarts == 3


@pytest.mark.parametrize("option", ["--ft-safety-factor", "--ft-safty-factor", "--fault-tol-cfg-path", "--ft-x=3"])
def test_an_option_behind_the_script_goes_to_the_script_with_a_warning(option: str):
    arguments = parse("--ft-log-level", "DEBUG", "train.py", "--lr", "1", option, "5")
    assert arguments.training_script_args == ["--lr", "1", option, "5"]
    assert from_options(arguments) == FaultToleranceConfig(log_level=10)
    (warning,) = options_after_script(arguments)
    assert warning.startswith(f"option {option.partition('=')[0]} stands after train.py and goes to it")


def test_options_of_the_script_that_are_not_like_ours_warn_of_nothing():
    assert options_after_script(parse("train.py", "--f", "--fast", "--ftl", "ft-x")) == ()


@pytest.mark.parametrize("key", [*IGNORED_KEYS, "attribution_endpoint"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_option_of_nvidia_resiliency_ext_is_accepted_with_one_warning(key: str, spelling: str):
    option = spelling.format(key=key, dash=key.replace("_", "-"))
    config = configure(option, "true", option, "true", "train.py")
    assert config == FaultToleranceConfig()
    (warning,) = config.warnings
    assert warning.startswith(f"option {option} is ignored: ")


def test_warnings_of_the_file_and_of_the_command_line_come_together(file: Callable[[str], str]):
    path = file("fault_tolerance: {segment: 1}\n")
    warnings = configure("--ft-cfg-path", path, "--ft-numa-bind-strict", "1", "train.py").warnings
    assert [w.partition(" is ignored")[0] for w in warnings] == [
        f"key 'segment' in {path} line 1",
        "option --ft-numa-bind-strict",
    ]


def test_help_shows_each_setting_once_with_unit_and_default():
    parser = get_args_parser()
    add_options(parser)
    text = " ".join(parser.format_help().split())
    ours = text[text.index("fault tolerance: ") :]
    for setting in settings():
        option = f"--ft-{setting.name.replace('_', '-')} {setting.metavar}"
        assert ours.count(option) == 1, option
        assert " ".join(setting.meaning.split()) in ours
    assert ours.count("Default: ") == len(settings())
    assert "_" not in "".join(word for word in ours.split() if word.startswith("--ft"))
    assert "--ft-param" not in text
    assert "--ft-workload" not in text
