"""FaultToleranceConfig: defaults, checks and the way through JSON."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import math
import pickle
import signal
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core import ConfigError, FaultToleranceConfig
from resilience_core.config import converters as config_values
from resilience_core.config.schema import settings
from resilience_core.monitoring.process_hooks import UNCAUGHT_EXIT_CODE
from resilience_core.redaction import shortened

TIMEOUTS = [
    "initial_rank_heartbeat_timeout",
    "rank_heartbeat_timeout",
    "rank_out_of_section_timeout",
    "rank_startup_timeout",
    "rank_exit_timeout",
    "unmonitored_notice_after",
]
DURATIONS = [
    "learned_timeout_floor",
    "thin_evidence_floor",
    "failure_stop_timeout",
    "kill_timeout",
    "stack_capture_timeout",
]


def test_the_defaults_are_those_that_people_expect():
    """The documented defaults, field by field."""
    assert json.loads(FaultToleranceConfig().to_json()) == {
        "version": 1,
        "given": [],
        "initial_rank_heartbeat_timeout": 3600.0,
        "rank_heartbeat_timeout": 2700.0,
        "rank_section_timeouts": {},
        "rank_out_of_section_timeout": None,
        "rank_startup_timeout": None,
        "rank_exit_timeout": None,
        "safety_factor": 5.0,
        "learned_timeout_floor": 1.0,
        "learned_limits": "relax",
        "thin_evidence_floor": 60.0,
        "rank_termination_signal": signal.SIGKILL,
        "failure_stop_timeout": 2.0,
        "kill_timeout": 60.0,
        "exit_barrier_timeout": 300.0,
        "capture_stacks": True,
        "stack_capture_timeout": 0.5,
        "log_level": logging.INFO,
        "log_format": "text",
        "num_warmup_iterations": 1,
        "install_exception_hook": False,
        "checkpoint_iteration_file": None,
        "max_no_progress_cycles": 3,
        "min_progress_iterations": 1,
        "no_restart_exit_code": 93,
        "restart_backoff_after": 3,
        "membership": None,
        "newcomers": "restart",
        "node_lease": 5.0,
        "rank_key": None,
        "node_secret_file": None,
        "health_checks": None,
        "health_check": None,
        "health_check_interval": 60.0,
        "health_check_timeout": 10.0,
        "metrics_port": None,
        "metrics_host": "127.0.0.1",
        "metrics_straggler_log": None,
        "worker_start": "warm",
        "preload": None,
        "load_plugins": True,
        "run_dir": "/dev/shm",
        "keep_runs": None,
        "unmonitored_notice_after": 60.0,
        "on_event": None,
        "on_event_timeout": 10.0,
    }


def test_every_field_is_a_setting_with_a_unit_and_a_meaning():
    fields = {field.name for field in attrs.fields(FaultToleranceConfig)} - {"given", "warnings"}
    assert {setting.name for setting in settings()} == fields
    for setting in settings():
        assert setting.metavar
        assert setting.meaning.endswith(".")
        assert f"{setting.name}: {setting.meaning}" in (FaultToleranceConfig.__doc__ or "")


def test_the_help_names_the_exit_code_of_the_exception_hook():
    (hook,) = (setting for setting in settings() if setting.name == "install_exception_hook")
    assert f"exit code {UNCAUGHT_EXIT_CODE}," in hook.meaning


def test_a_wrong_keyword_is_refused_and_the_signature_is_that_of_attrs():
    """The class is completed by a decorator, which must hide nothing."""
    signature = inspect.signature(FaultToleranceConfig)
    assert list(signature.parameters) == [field.name for field in attrs.fields(FaultToleranceConfig)]
    assert {parameter.kind for parameter in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    with pytest.raises(ConfigError, match=r"unknown key 'rank_hearbeat_timeout' in FaultToleranceConfig\(\.\.\.\)"):
        FaultToleranceConfig(rank_hearbeat_timeout=60)  # type: ignore[call-arg]


def test_it_is_frozen():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        FaultToleranceConfig().rank_heartbeat_timeout = 3  # type: ignore[misc]


def test_the_section_timeouts_are_frozen_too():
    given_ = {"step": 3}
    config = FaultToleranceConfig(rank_section_timeouts=given_)
    given_["step"] = 4
    assert config.rank_section_timeouts == {"step": 3.0}
    with pytest.raises(TypeError):
        config.rank_section_timeouts["step"] = 5  # type: ignore[index]


@pytest.mark.parametrize("field", TIMEOUTS)
@pytest.mark.parametrize("value", [None, "", "null", "None", " none ", "~"])
def test_nothing_is_no_limit(field: str, value: Any):
    assert getattr(FaultToleranceConfig(**{field: value}), field) is None


@pytest.mark.parametrize("field", TIMEOUTS)
@pytest.mark.parametrize("value", [0, -1, -0.0, math.nan, math.inf, True, "-3", "inf", "nan", [3], {}, 1e30, 10**400])
def test_a_timeout_that_is_none_is_refused_with_its_name_and_value(field: str, value: Any):
    with pytest.raises(ConfigError) as caught:
        FaultToleranceConfig(**{field: value})
    assert str(caught.value).startswith(f"{field} is {shortened(repr(value))}: ")
    assert "null for no limit" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "plain"), [("60s", "60"), ("2 min", "120"), ("1.5h", "5400"), ("250ms", "0.25"), ("1d", "86400")]
)
def test_a_unit_is_refused_with_the_number_that_was_meant(text: str, plain: str):
    with pytest.raises(ConfigError, match=rf"^rank_heartbeat_timeout is '{text}': .*seconds are meant: {plain}$"):
        FaultToleranceConfig(rank_heartbeat_timeout=text)


@pytest.mark.parametrize("field", DURATIONS)
def test_a_duration_may_be_zero_but_not_negative_or_missing(field: str):
    assert getattr(FaultToleranceConfig(**{field: 0}), field) == 0
    for value in (-0.1, None, "", True, "soon"):
        with pytest.raises(ConfigError, match=f"^{field} is "):
            FaultToleranceConfig(**{field: value})


@pytest.mark.parametrize("value", [0.99, 0, -5, "0.5", None, False, "x"])
def test_a_safety_factor_below_one_is_refused(value: Any):
    with pytest.raises(ConfigError, match=r"^safety_factor is "):
        FaultToleranceConfig(safety_factor=value)


@pytest.mark.parametrize("value", ["SIGTERM", "TERM", "term", "sigterm", 15, "15", signal.SIGTERM])
def test_a_signal_is_known_by_name_and_number(value: Any):
    assert FaultToleranceConfig(rank_termination_signal=value).rank_termination_signal is signal.SIGTERM


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("SIGTREM", "did you mean 'SIGTERM'"),
        ("KIL", "did you mean 'SIGKILL'"),
        (0, "not a signal's number"),
        (4711, "not a signal's number"),
        (9.5, "not a signal's number"),
        (True, "by name or number"),
        (None, "by name or number"),
        ("SIGSTOP", "does not end a process"),
        ("CONT", "does not end a process"),
        (signal.SIGCHLD, "does not end a process"),
    ],
)
def test_a_signal_that_would_not_terminate_is_refused(value: Any, fix: str):
    with pytest.raises(ConfigError, match=fix):
        FaultToleranceConfig(rank_termination_signal=value)


@pytest.mark.parametrize(("value", "level"), [("debug", 10), ("WARN", 30), (10, 10), ("15", 15), ("CRITICAL", 50)])
def test_a_log_level_is_known_by_name_and_number(value: Any, level: int):
    assert FaultToleranceConfig(log_level=value).log_level == level


@pytest.mark.parametrize("value", [0, 0.0, "0", " 00", "NOTSET", "notset"])
def test_a_log_level_that_is_not_set_means_everything_everywhere(value: Any) -> None:
    """To a logger 0 means the level of its parent, so launcher, ranks and monitor took it for different things."""
    assert FaultToleranceConfig(log_level=value).log_level == logging.DEBUG


def test_a_log_level_below_0_is_told_that_numbers_are_ones():
    with pytest.raises(
        ConfigError, match=r"log_level is '-5': no whole number of 0 or more, and not a level of .*; known"
    ):
        FaultToleranceConfig(log_level="-5")


def test_a_misspelt_log_level_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"log_level is 'INFOO'.*did you mean 'INFO'"):
        FaultToleranceConfig(log_level="INFOO")


@pytest.mark.parametrize("value", [[1], 1.5, -1, None])
def test_what_is_no_log_level_is_told_that_names_are_ones(value: Any):
    with pytest.raises(ConfigError, match=r"log_level is .*by name, for example DEBUG or INFO, or as a whole number"):
        FaultToleranceConfig(log_level=value)


@pytest.mark.parametrize(
    "name", ["num_warmup_iterations", "max_no_progress_cycles", "min_progress_iterations", "restart_backoff_after"]
)
def test_a_count_that_nobody_means_is_refused(name):
    with pytest.raises(ConfigError, match=rf"{name} is 1e\+30: must be at most 1000000000"):
        FaultToleranceConfig(**{name: 1e30})
    assert getattr(FaultToleranceConfig(**{name: 10**9}), name) == 10**9


def test_a_level_that_nobody_means_is_refused():
    with pytest.raises(ConfigError, match=r"log_level is 1.*: give a level of Python's logging"):
        FaultToleranceConfig(log_level=10**30)


def test_a_keyword_that_is_no_setting_is_refused_as_in_a_file():
    with pytest.raises(ConfigError, match=r"'rank_hearbeat_timeout' in .*; did you mean 'rank_heartbeat_timeout'\?"):
        FaultToleranceConfig(rank_hearbeat_timeout=3)
    with pytest.raises(ConfigError, match=r"'restart_check_interval' in .* means nothing here: .*; leave it out"):
        FaultToleranceConfig(restart_check_interval=3)
    assert "rank_heartbeat_timeout" in inspect.signature(FaultToleranceConfig).parameters


@pytest.mark.parametrize(
    ("text", "timeouts"),
    [
        ("setup:600,step:180,checkpointing:420", {"setup": 600, "step": 180, "checkpointing": 420}),
        ("setup:null, step:none ,checkpointing:", {"setup": None, "step": None, "checkpointing": None}),
        ("step:0.5", {"step": 0.5}),
        ("", {}),
        ("null", {}),
    ],
)
def test_sections_are_read_from_text(text: str, timeouts: dict[str, float | None]):
    config = FaultToleranceConfig(rank_section_timeouts=text)
    assert config.rank_section_timeouts == timeouts
    assert config.names_sections is bool(timeouts)


def test_a_number_that_python_does_not_write_is_refused_like_any_other():
    with pytest.raises(
        ConfigError, match=r"^num_warmup_iterations is a number with too many digits to show: too large"
    ):
        FaultToleranceConfig(num_warmup_iterations=10**5000)


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("step", "'step' lacks its seconds"),
        ("step:180,", "lacks its seconds"),
        ("step:1,step:2", "'step' stands there twice"),
        ("step:60s", "section 'step' is '60s'.*60"),
        ("a:b:3", "section 'a' is 'b:3'"),
        (":3", "not a section's name"),
        ({"step": -1}, "section 'step' is -1.*above 0"),
        ({"step": True}, "section 'step' is True"),
        ({7: 1.0}, "7 is not a section's name"),
        ({"two words": 1.0}, "'two words' is not a section's name"),
        (["step"], "give each section its seconds"),
        (180, "give each section its seconds"),
    ],
)
def test_sections_that_cannot_be_used_are_refused(value: Any, fix: str):
    with pytest.raises(ConfigError, match=f"^rank_section_timeouts is .*{fix}"):
        FaultToleranceConfig(rank_section_timeouts=value)


@pytest.mark.parametrize(
    ("field", "lowest"),
    [
        ("num_warmup_iterations", 0),
        ("max_no_progress_cycles", 0),
        ("min_progress_iterations", 1),
        ("restart_backoff_after", 0),
        ("no_restart_exit_code", 1),
    ],
)
def test_a_count_is_a_whole_number_with_a_lower_end(field: str, lowest: int):
    for value in (lowest, str(lowest), float(lowest)):
        assert getattr(FaultToleranceConfig(**{field: value}), field) == lowest
    for value in (lowest - 1, lowest + 0.5, None, True, "many", math.inf):
        with pytest.raises(ConfigError, match=f"^{field} is "):
            FaultToleranceConfig(**{field: value})


def test_an_exit_code_fits_into_a_byte():
    with pytest.raises(ConfigError, match=r"^no_restart_exit_code is 256"):
        FaultToleranceConfig(no_restart_exit_code=256)


@pytest.mark.parametrize("field", ["capture_stacks", "install_exception_hook", "load_plugins"])
def test_a_switch_is_true_or_false(field: str):
    for value in (True, "true", "Yes", "on", "1"):
        assert getattr(FaultToleranceConfig(**{field: value}), field) is True
    for value in (False, "false", "NO", "off", "0"):
        assert getattr(FaultToleranceConfig(**{field: value}), field) is False
    for value in (None, 1, 0, "maybe", ""):
        with pytest.raises(ConfigError, match=f"^{field} is .*true or false"):
            FaultToleranceConfig(**{field: value})


def test_paths_modules_and_words():
    config = FaultToleranceConfig(
        checkpoint_iteration_file=Path("a/b"),
        preload="numpy, torch.distributed",
        worker_start="SPAWN",
    )
    assert config.checkpoint_iteration_file == "a/b"
    assert config.preload == ("numpy", "torch.distributed")
    assert config.worker_start == "spawn"


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("worker_start", "warn", "one of: warm, spawn"),
        ("worker_start", None, "one of: warm, spawn"),
        ("preload", "num py", "not the name of a module"),
        ("preload", ["numpy", 3], "commas between"),
        ("preload", "numpy,,torch", "not the name of a module"),
        ("checkpoint_iteration_file", 7, "path as text"),
        ("checkpoint_iteration_file", "a\0b", "null character"),
    ],
)
def test_words_that_cannot_be_used_are_refused(field: str, value: Any, fix: str):
    with pytest.raises(ConfigError, match=f"^{field} is .*{fix}"):
        FaultToleranceConfig(**{field: value})


limits = st.none() | st.floats(min_value=1e-6, max_value=1e9)
names = st.text(st.characters(codec="utf-8", exclude_characters=",:=;", exclude_categories=["Z", "C"]), min_size=1)


@given(
    st.builds(
        dict,
        rank_heartbeat_timeout=limits,
        rank_section_timeouts=st.dictionaries(names, limits, max_size=4),
        safety_factor=st.floats(1, 100),
        rank_termination_signal=st.sampled_from(["KILL", "SIGTERM", 2]),
        preload=st.none() | st.just(("torch", "a.b")),
        capture_stacks=st.booleans(),
    )
)
def test_json_gives_back_what_it_was_given(chosen: dict[str, Any]):
    """What the launcher hands over is what a rank gets, exactly."""
    config = FaultToleranceConfig(**chosen)
    text = config.to_json()
    assert FaultToleranceConfig.from_json(text) == config
    assert FaultToleranceConfig.from_json(text).to_json() == text


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("{", "is not JSON"),
        ("[]", "is a list"),
        ("{}", "has version None, and version 1 is read here"),
        (FaultToleranceConfig().to_json().replace('"version": 1', '"version": 2'), "has version 2"),
        (FaultToleranceConfig().to_json().replace('"version": 1', '"version": true'), "has version True"),
        (
            '{"version": 1, "rank_hearbeat_timeout": 3}',
            "unknown key 'rank_hearbeat_timeout'.*did you mean 'rank_heartbeat_timeout'",
        ),
        ('{"version": 1, "rank_heartbeat_timeout": "x"}', "rank_heartbeat_timeout in the JSON handed over is 'x'"),
        ('{"version": 1}', "lacks initial_rank_heartbeat_timeout, rank_heartbeat_timeout"),
        (FaultToleranceConfig().to_json().replace('"given": []', '"given": 5'), "lacks a list of what was given"),
        (FaultToleranceConfig().to_json().replace('"given": []', '"given": [[]]'), "lacks a list of what was given"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_json_that_is_not_ours_is_refused(text: str, fix: str):
    with pytest.raises(ConfigError, match=fix):
        FaultToleranceConfig.from_json(text)


def test_warnings_are_no_part_of_equality():
    assert FaultToleranceConfig(warnings=("a",)) == FaultToleranceConfig()


def test_a_setting_is_given_when_it_was_written_down_or_differs_from_its_default():
    """A default is nobody's word; the same value on the command line is somebody's."""
    written = FaultToleranceConfig.from_entries([config_values.Entry("rank_heartbeat_timeout", 2700, "ft.yaml line 2")])
    handed_over = FaultToleranceConfig.from_json(written.to_json())
    different = FaultToleranceConfig.from_json(FaultToleranceConfig(initial_rank_heartbeat_timeout=9).to_json())

    assert [config.is_given("rank_heartbeat_timeout") for config in (written, handed_over, different)] == [1, 1, 0]
    assert not handed_over.is_given("initial_rank_heartbeat_timeout")
    assert different.is_given("initial_rank_heartbeat_timeout")


def test_a_configuration_is_pickled_copied_and_hashed_as_a_value():
    config = FaultToleranceConfig(
        rank_section_timeouts={"step": 3, "setup": None}, given=frozenset({"rank_section_timeouts"})
    )
    for other in (pickle.loads(pickle.dumps(config)), copy.copy(config), copy.deepcopy(config)):
        assert other == config
        assert hash(other) == hash(config)
        assert (other.given, other.rank_section_timeouts) == (config.given, {"step": 3.0, "setup": None})
        with pytest.raises(TypeError):
            other.rank_section_timeouts["step"] = 4
    assert hash(attrs.evolve(config, safety_factor=6)) != hash(config)
