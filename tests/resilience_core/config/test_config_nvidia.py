"""What people bring from nvidia-resiliency-ext 0.3 to 0.7: every option, every spelling, every key of a file."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from torch.distributed.run import get_args_parser

from resilience_core import ConfigError, FaultToleranceConfig
from resilience_core.config.cli_options import add_options, check_arguments, from_options


def _recorded() -> ModuleType:
    path = Path(__file__).with_name("recorded_nvidia_options.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


recorded = _recorded()


def of(version: str, rows: tuple[tuple[str, ...], ...]) -> list[tuple[str, ...]]:
    at = recorded.VERSIONS.index(version)
    return [r[2:] for r in rows if recorded.VERSIONS.index(r[0]) <= at <= recorded.VERSIONS.index(r[1])]


def parse(*argv: str) -> tuple[argparse.Namespace, FaultToleranceConfig]:
    parser = get_args_parser()
    add_options(parser)
    check_arguments(parser, argv)
    arguments = parser.parse_args(argv)
    return arguments, from_options(arguments)


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_every_option_of_every_version_is_accepted_in_every_spelling(version: str, tmp_path: Path):
    file = tmp_path / "ft.yaml"
    file.write_text("fault_tolerance: {}\n")
    for value, spellings in of(version, recorded.OPTIONS):
        for spelling in spellings:
            given = [] if value is None else [str(file) if value == "FILE" else value]
            arguments, config = parse(spelling, *given, "train.py", "--lr", "1")
            assert (arguments.training_script, arguments.training_script_args) == ("train.py", ["--lr", "1"]), spelling
            assert len(config.warnings) <= 1, spelling
            assert config != FaultToleranceConfig() or config.warnings or _is_torchruns(spelling), (
                f"{spelling} has no effect and nobody is told"
            )


def _is_torchruns(spelling: str) -> bool:
    torchruns = {option for action in get_args_parser()._actions for option in action.option_strings}
    # The file, the settings that were given their defaults, and what is mapped to torchrun's.
    return spelling in torchruns | {"--term-timeout", "--term_timeout"} or "cfg" in spelling


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_the_options_are_accepted_in_underscores_too(version: str):
    for value, spellings in of(version, recorded.OPTIONS):
        for spelling in spellings:
            if spelling.startswith("--ft-") and value not in (None, "FILE"):
                parse("--" + spelling.removeprefix("--").replace("-", "_"), str(value), "train.py")


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_every_key_of_every_version_loads(version: str, tmp_path: Path):
    values = {"rank_section_timeouts": "{step: 7}", "rank_termination_signal": "SIGTERM", "log_level": "dbg"}
    keys = [key for (key,) in of(version, recorded.KEYS)]
    file = tmp_path / "ft.yaml"
    file.write_text("fault_tolerance:\n" + "".join(f"  {key}: {values.get(key, 1)}\n" for key in keys))
    # A switch is written as one.
    file.write_text(file.read_text().replace("install_exception_hook: 1", "install_exception_hook: true"))
    if "checkpoint_iteration_file" in keys:
        file.write_text(file.read_text().replace("checkpoint_iteration_file: 1", "checkpoint_iteration_file: it.txt"))
    config = FaultToleranceConfig.from_yaml_file(file)
    assert (config.rank_section_timeouts, config.log_level) == ({"step": 7.0}, 10)
    ours = {name for name in keys if hasattr(config, name)}
    assert len(config.warnings) == len(keys) - len(ours)


@pytest.mark.parametrize("version", list(recorded.WRITTEN_BY))
def test_a_file_that_it_has_written_loads_unchanged(version: str, tmp_path: Path):
    (tmp_path / "ft.yaml").write_text(recorded.WRITTEN_BY[version])
    config = FaultToleranceConfig.from_yaml_file(tmp_path / "ft.yaml")
    assert config.rank_section_timeouts == {"setup": 600.0, "step": 180.0}
    assert len(config.warnings) == len(set(config.warnings)) > 0


@pytest.mark.parametrize("key", recorded.UNRELEASED_KEYS)
def test_keys_that_are_on_their_way_are_accepted(key: str, tmp_path: Path):
    (tmp_path / "ft.yaml").write_text(f"fault_tolerance: {{{key}: 1}}\n")
    assert len(FaultToleranceConfig.from_yaml_file(tmp_path / "ft.yaml").warnings) == 1


def test_time_limits_of_the_launcher_are_mapped():
    arguments, config = parse("--workers-stop-timeout", "12.5", "--term_timeout=1800", "train.py")
    assert (config.failure_stop_timeout, arguments.shutdown_timeout, config.warnings) == (12.5, 1800.0, ())
    if "--shutdown-timeout" in get_args_parser().format_help():
        arguments, _ = parse("--term-timeout", "5", "--shutdown-timeout", "6", "train.py")
        assert arguments.shutdown_timeout == 6


def test_the_restart_policy_that_is_ours_is_accepted_and_the_other_said_to_be_ignored():
    assert parse("--restart-policy", "any-failed", "train.py")[1].warnings == ()
    (warning,) = parse("--ft-restart-policy=min-healthy", "train.py")[1].warnings
    assert warning.startswith("option --ft-restart-policy is ignored: a failed rank always restarts the whole group")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--restart-policy", "any-faild"], r"^--restart-policy is 'any-faild'; did you mean 'any-failed'\?"),
        (["--term-timeout", "30m"], r"^--term-timeout is '30m': no unit is written, seconds are meant: 1800"),
        (["--workers_stop_timeout", "x"], r"^--workers_stop_timeout is 'x': give seconds"),
        (["--ft_rank_hearbeat_timeout", "5"], r"did you mean '--ft_rank_heartbeat_timeout'"),
        (["--ft-use-infra-group-rnk", "5"], r"did you mean '--ft-use-infra-group-rank'"),
        (["--ft-restart-polcy", "any-failed"], r"did you mean '--ft-restart-policy'"),
    ],
)
def test_a_misspelt_one_stays_an_error_with_the_nearest_name(argv: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        parse(*argv, "train.py")


def test_torchruns_abbreviations_are_not_made_ambiguous():
    assert parse("--te", "3", "--re", "1", "train.py")[0].tee == "3"


def test_recorded_versions_are_those_of_the_documentation():
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "from-nvidia-resiliency-ext.md").read_text()
    first, last = recorded.VERSIONS[0].rpartition(".")[0], recorded.VERSIONS[-1].rpartition(".")[0]
    assert f"nvidia-resiliency-ext {first} to {last}" in text
