"""The public fakes: a clock, a recorder, and the check that a trace keeps the contract."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core import EventBus, RunContext
from resilience_core.event_bus import EVENTS
from resilience_core.testing import SCRIPTS, EventRecorder, FakeClock, assert_conforms, check_adapter, violations

CONTEXT = RunContext()
ERROR = RuntimeError("x")


@given(st.lists(st.integers(0, 10**15), max_size=10))
def test_a_clock_moves_exactly_as_far_as_it_is_told(steps: list[int]):
    clock = FakeClock(start_ns=5)
    for step in steps:
        before = clock()
        assert clock.advance(ns=step) == clock() == before + step
    assert clock() == 5 + sum(steps)


def test_a_clock_speaks_seconds_too():
    clock = FakeClock(start_ns=0)
    clock.advance(1.5)
    assert (clock(), clock.monotonic()) == (1_500_000_000, 1.5)
    clock.advance(0.5, ns=-1)
    assert clock() == 1_999_999_999
    with pytest.raises(ValueError, match=r"does not go back by 1 ns"):
        clock.advance(ns=-1)


def test_a_recorder_keeps_every_event_with_all_its_arguments():
    bus, recorder = EventBus(), EventRecorder()
    bus.register(recorder)
    bus.setup(context=CONTEXT)
    bus.checkpoint_loaded(iteration=3, source="local")
    bus.step_start(iteration=3)
    bus.step_end(iteration=3)
    bus.eval_step_start(iteration=4, eval_index=0)
    bus.eval_step_end(iteration=4, eval_index=0)
    bus.checkpoint_start(iteration=4, kind="save")
    bus.checkpoint_end(iteration=4, kind="save", error=ERROR)
    bus.training_error(error=ERROR, iteration=4)
    bus.teardown(reason="exception")
    assert recorder.events == [
        ("setup", {"context": CONTEXT}),
        ("checkpoint_loaded", {"iteration": 3, "source": "local"}),
        ("step_start", {"iteration": 3}),
        ("step_end", {"iteration": 3}),
        ("eval_step_start", {"iteration": 4, "eval_index": 0}),
        ("eval_step_end", {"iteration": 4, "eval_index": 0}),
        ("checkpoint_start", {"iteration": 4, "kind": "save"}),
        ("checkpoint_end", {"iteration": 4, "kind": "save", "error": ERROR}),
        ("training_error", {"error": ERROR, "iteration": 4}),
        ("teardown", {"reason": "exception"}),
    ]
    assert set(recorder.names()) == set(EVENTS)
    assert recorder.of("step_end") == [{"iteration": 3}]
    assert violations(recorder.events) == []
    recorder.clear()
    assert recorder.events == []


def trace(*events: Any) -> list[tuple[str, dict[str, Any]]]:
    """``"step_start 3"`` for an event with an iteration, framed by setup and teardown."""
    read = []
    for event in events:
        name, _, iteration = event.partition(" ")
        read.append((name, {"iteration": int(iteration)} if iteration else {}))
    return [("setup", {}), *read, ("teardown", {})]


@pytest.mark.parametrize(
    "events",
    [
        [],
        ["step_start 0", "step_end 0", "step_start 1", "step_end 1"],
        ["step_start 0", "training_error 0"],
        ["step_start 0", "eval_step_start 0", "eval_step_end 0", "step_end 0"],
        ["checkpoint_start 0", "checkpoint_start 0", "checkpoint_end 0", "checkpoint_end 0"],
        ["teardown", "setup", "step_start 0", "step_end 0"],
        ["checkpoint_start 0", "training_error 0", "checkpoint_end 0"],
    ],
)
def test_a_trace_that_keeps_the_contract(events: list[str]):
    assert violations(trace(*events)) == []


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (["step_start 0"], r"step_start at 1 has no end before 2"),
        (["step_end 0"], r"step_end at 1 has no start"),
        (["step_start 0", "step_start 1", "step_end 1"], r"step_start at 2: the one at 1 is still open"),
        (["step_start 0", "step_end 1"], r"step_end at 2 and its start at 1 differ in iteration"),
        (["checkpoint_start 0", "training_error 0"], r"checkpoint_start at 1 has no end before 3"),
        (["setup"], r"setup at 1 comes before the teardown of the run it interrupts"),
        (["teardown"], r"teardown at 2 is outside of setup and teardown"),
        (["teardown", "step_start 0", "step_end 0", "setup"], r"step_start at 2 is outside"),
        (["eval_step_end 0"], r"eval_step_end at 1 has no start"),
    ],
)
def test_a_trace_that_breaks_the_contract(events: list[str], message: str):
    with pytest.raises(AssertionError, match=message) as caught:
        assert_conforms(trace(*events))
    assert "the trace:\n  0: setup()" in str(caught.value)


def test_a_run_without_its_teardown_breaks_the_contract():
    assert violations(trace("step_start 0")[:-1]) == [
        "the run that was set up last has no teardown",
        "step_start at 1 has no end before 2",
    ]


RUN = trace("step_start 0", "step_end 0", "step_start 1", "step_end 1")


@pytest.mark.parametrize(
    "expected",
    [
        ["setup", "step_start", "step_end", "step_start", "step_end", "teardown"],
        ["setup", ("step_start", {"iteration": 0}), ..., ("step_end", {"iteration": 1}), "teardown"],
        [...],
        [..., ...],
        [..., "teardown"],
        ["setup", ...],
        ["setup", "step_start", ..., "step_start", ...],
        [..., ("step_end", {}), ..., "teardown", ...],
    ],
)
def test_a_trace_that_is_the_expected_one(expected: list[Any]):
    assert_conforms(RUN, expected)


@pytest.mark.parametrize(
    "expected",
    [
        [],
        ["setup"],
        ["setup", "step_start", "step_end", "teardown"],
        ["setup", ..., ("step_start", {"iteration": 2}), ...],
        ["setup", ..., ("step_start", {"index": 0}), ...],
        [..., "setup", "teardown"],
        ["setup", "step_start", "step_end", "step_start", "step_end", "teardown", "teardown"],
    ],
)
def test_a_trace_that_is_not_the_expected_one_shows_both(expected: list[Any]):
    with pytest.raises(AssertionError, match=r"(?s)not the expected ones.*the trace:\n  0: setup"):
        assert_conforms(RUN, expected)


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from(["a", "b", "c", ...]), max_size=6))
def test_expectations_match_as_a_pattern_does(names: list[str], expected: list[Any]):
    """The dots are those of a regular expression."""
    import re

    from resilience_core._event_order import matches

    pattern = "".join(".*" if item is ... else item for item in expected)
    assert matches([(name, {}) for name in names], expected) is bool(re.fullmatch(pattern, "".join(names)))


def test_pytest_is_not_needed():
    code = "import sys, resilience_core.testing; sys.exit('pytest' in sys.modules or 'torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_a_training_that_does_not_handle_sigterm_does_not_get_one(tmp_path: Path):
    """A handler from before is set aside meanwhile: it is not the training's."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    bus = EventBus()
    (script,) = (script for script in SCRIPTS if script.ends == "signal")
    try:
        with pytest.raises(AssertionError, match=r"script 'SIGTERM in a step' would send SIGTERM, .* no handler"):
            check_adapter(lambda script, _: script.act(2), tmp_path, scripts=[script], on=bus)
        assert heard == []
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
