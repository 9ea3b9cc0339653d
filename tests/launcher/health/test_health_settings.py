"""Settings of health checks: in a file and on the command line, checked, and what they choose."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from launcher.health import settings as module
from launcher.health.check import Context, Machine
from launcher.health.settings import HealthSettings, choose
from resilience_core import ConfigError, FaultToleranceConfig
from resilience_core.config.cli_options import add_options, check_arguments, from_options

GOOD = [
    ("health_checks", "paths,shm", ("paths", "shm")),
    ("health_checks", "default, nic:ib0,paths:/data=10G", ("default", "nic:ib0", "paths:/data=10G")),
    ("health_checks", "none", ()),
    ("health_checks", "", None),
    ("health_checks", "null", None),
    ("health_checks", "shm,shm", ("shm",)),
    ("health_check", "nvidia-smi -q | grep -q Fine", "nvidia-smi -q | grep -q Fine"),
    ("health_check", "null", None),
    ("health_check_interval", "1", 1.0),
    ("health_check_interval", "null", None),
    ("health_check_timeout", "0.5", 0.5),
]
BAD = [
    ("health_checks", "shm,none", "'none' stands alone"),
    ("health_checks", "shm,,memory", "'' does not begin with a check's name"),
    ("health_checks", "/data", "'/data' does not begin with a check's name, as in paths,shm,nic:eth0"),
    ("health_checks", "nic:", "'nic:' lacks what follows the colon"),
    ("health_check", "a\0b", "holds no null character"),
    ("health_check_interval", "0.5", "must be 1 to 86400 seconds; write null to check before joining only"),
    ("health_check_interval", "60s", "no unit is written, seconds are meant: 60"),
    ("safety_factor", "60s", "no unit is written, a plain number is meant; give a number of 1 or more, for example 5"),
    ("keep_runs", "2d", "no unit is written, a plain number is meant; give a whole number of 1 or more"),
    ("health_check_interval", "soon", "give seconds as a number"),
    ("health_check_timeout", "0", "must be 0.1 to 3600 seconds"),
    ("health_check_timeout", "null", "give seconds as a number"),
]


def on_the_command_line(*argv: str) -> FaultToleranceConfig:
    parser = argparse.ArgumentParser()
    add_options(parser)
    check_arguments(parser, argv)
    return from_options(parser.parse_args(argv))


@pytest.mark.parametrize(("key", "text", "value"), GOOD)
def test_a_value_means_the_same_on_the_command_line_and_in_a_file(key: str, text: str, value: Any, tmp_path: Path):
    config = on_the_command_line(f"--ft-{key.replace('_', '-')}={text}")
    assert getattr(config, key) == value
    (tmp_path / "ft.yaml").write_text(f"fault_tolerance: {{{key}: '{text}'}}\n")
    assert getattr(FaultToleranceConfig.from_yaml_file(tmp_path / "ft.yaml"), key) == value
    assert getattr(FaultToleranceConfig.from_json(config.to_json()), key) == value


def test_a_file_may_hold_a_list_a_number_and_nothing(tmp_path: Path):
    lines = "{health_checks: [shm, 'paths:/a,b'], health_check_interval: null, health_check_timeout: 3}"
    (tmp_path / "ft.yaml").write_text(f"fault_tolerance: {lines}\n")
    config = FaultToleranceConfig.from_yaml_file(tmp_path / "ft.yaml")
    assert (config.health_checks, config.health_check_interval, config.health_check_timeout) == (
        ("shm", "paths:/a,b"),
        None,
        3,
    )


@pytest.mark.parametrize(("key", "text", "fix"), BAD)
def test_a_bad_value_is_refused_with_place_value_and_fix(key: str, text: str, fix: str):
    option = f"--ft-{key.replace('_', '-')}"
    with pytest.raises(ConfigError) as caught:
        on_the_command_line(f"{option}={text}")
    assert str(caught.value).startswith(f"{option} is {text!r}: ")
    assert fix in str(caught.value)
    with pytest.raises(ConfigError, match=f"^{key} is "):
        FaultToleranceConfig(**{key: text})


def test_other_types_are_refused():
    for key, value in [
        ("health_checks", 3),
        ("health_checks", [3]),
        ("health_check", 3),
        ("health_check_timeout", True),
    ]:
        with pytest.raises(ConfigError, match=f"^{key} is "):
            FaultToleranceConfig(**{key: value})


def test_the_settings_are_those_of_the_configuration():
    assert HealthSettings.of(FaultToleranceConfig(), {}) == HealthSettings()
    config = FaultToleranceConfig(
        health_checks=["shm"],
        health_check="true",
        health_check_interval=None,
        health_check_timeout=3,
        load_plugins=False,
    )
    assert HealthSettings.of(config, {}) == HealthSettings(("shm",), "true", None, 3.0, False)


@pytest.mark.parametrize(("text", "is_on"), [("0", False), (" False", False), ("off", False), ("1", True), ("", True)])
def test_the_variable_for_plugins_counts(text: str, is_on: bool):
    assert HealthSettings.of(FaultToleranceConfig(), {"FT_LOAD_PLUGINS": text}).load_installed is is_on


def test_a_variable_that_is_neither_true_nor_false_is_refused():
    with pytest.raises(ConfigError, match=r"^FT_LOAD_PLUGINS is 'maybe': give true or false$"):
        HealthSettings.of(FaultToleranceConfig(), {"FT_LOAD_PLUGINS": "maybe"})


# ---- what is chosen -----------------------------------------------------------------------------------------


def names(settings: HealthSettings, context: Context | None = None) -> list[str]:
    return [check.name for check, _ in choose(settings, context or Context()).checks]


@pytest.fixture
def gpus(tmp_path: Path) -> Context:
    (tmp_path / "nvidia0").touch()
    return Context(machine=Machine(dev=str(tmp_path)))


def test_by_default_it_is_the_log_folder_shared_memory_and_memory(tmp_path: Path):
    assert names(HealthSettings()) == ["shm", "memory"]
    assert names(HealthSettings(), Context(str(tmp_path))) == [f"paths:{tmp_path}", "shm", "memory"]


def test_with_gpus_and_bindings_nvml_is_looked_at(gpus: Context):
    pytest.importorskip("pynvml")
    assert names(HealthSettings(), gpus) == ["shm", "memory", "nvml"]
    assert choose(HealthSettings(), gpus).notes == ()


def test_without_bindings_nvml_is_left_out_with_a_note_and_refused_if_named(gpus: Context, monkeypatch):
    monkeypatch.setattr(module, "has_bindings", lambda: False)
    chosen = choose(HealthSettings(), gpus)
    assert [check.name for check, _ in chosen.checks] == ["shm", "memory"]
    assert chosen.notes == ("GPUs are not checked, as nvidia-ml-py is not installed (extra 'gpu'); install it",)
    assert choose(HealthSettings(), Context()).notes == ()
    with pytest.raises(ConfigError, match="has 'nvml': nvidia-ml-py is not installed; install the extra 'gpu'"):
        choose(HealthSettings(checks=("default", "nvml")), gpus)


def test_a_command_runs_with_what_is_chosen_and_with_none_nothing_runs():
    assert names(HealthSettings(command="true")) == ["shm", "memory", "command"]
    assert names(HealthSettings(("nic:lo",), "true")) == ["nic", "command"]
    assert names(HealthSettings(("command",), "true")) == ["command"]
    assert names(HealthSettings((), "true")) == []


def test_every_folder_is_a_check_of_its_own_with_its_own_size(tmp_path: Path):
    context = Context(str(tmp_path))
    settings = HealthSettings(("paths:/a=1K", "paths:/b", f"paths:{tmp_path}"), timeout_seconds=3)
    assert names(settings, context) == [f"paths:{tmp_path}", "paths:/a", "paths:/b"]
    assert {check.bound_seconds for check, _ in choose(settings, context).checks} == {3}
    (check, _), *_ = choose(HealthSettings((f"paths:{tmp_path}=999999T",)), Context()).checks
    answer = check.check(Context())
    assert answer is not None
    assert "999999 TiB must be" in answer


@pytest.mark.parametrize("name", ["lr=0.1", "lr=3", "bs=64_v2", "a,b", "a:b=1G", "= ,:='\"%\\n"])
def test_nothing_in_the_path_of_the_log_folder_is_taken_for_a_size(name: str, tmp_path: Path):
    folder = tmp_path / name
    folder.mkdir()
    (check, _), *_ = choose(HealthSettings(), Context(str(folder))).checks
    assert (check.name, check.check(Context())) == (f"paths:{folder}", None)


def test_a_folder_whose_name_has_an_equals_sign_is_named_with_a_slash_or_a_size(tmp_path: Path):
    folder = tmp_path / "lr=3"
    folder.mkdir()
    for item in (f"paths:{folder}/", f"paths:{folder}=1K"):
        (check, _), *_ = choose(HealthSettings((item,)), Context()).checks
        assert check.check(Context()) is None


@pytest.mark.parametrize("name", ["shm", "memory"])
def test_a_size_is_taken(name: str):
    (check, _), *_ = choose(HealthSettings((f"{name}:1000T",)), Context()).checks
    answer = check.check(Context())
    assert answer is not None
    assert "1000 TiB must be" in answer


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (("pahts",), "has 'pahts': there is no such check; did you mean 'paths'?"),
        (
            ("xyz",),
            "has 'xyz': there is no such check; known are: command, default, memory, nic, none, nvml, paths, shm",
        ),
        (("shm:x",), "has 'shm:x': give a size as 512M or 10G"),
        (("shm:1G", "shm:2G"), "has 'shm:2G': give one size; shm:1G stands there already"),
        (("paths:data",), "has 'paths:data': give an absolute path"),
        (("paths:/data=much",), "has 'paths:/data=much': give a size"),
        (("nvml:0",), "has 'nvml:0': 'nvml' takes nothing after a colon"),
        (("default:x",), "has 'default:x': 'default' takes nothing after a colon"),
        (("command",), "has 'command': no command is given; give it with --ft-health-check COMMAND"),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_place_value_and_fix(items: tuple[str, ...], message: str):
    with pytest.raises(ConfigError) as caught:
        choose(HealthSettings(items), Context())
    assert str(caught.value).startswith("health_checks (--ft-health-checks) ")
    assert message in str(caught.value)
