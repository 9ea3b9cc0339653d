"""HeartbeatMonitor: step and evaluation ends in, heartbeats out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from resilience_core import EventBus, HeartbeatMonitor, RankMonitorClient, RunContext
from resilience_core.plugins.state_file import load_state
from resilience_core.protocol.cell_layout import CLOSED, HEARTBEAT, NO_LIMIT, OUT_OF_SECTION, SAVED


@pytest.fixture
def bus(rank_environment: Callable[..., Any], recording_client: Any) -> EventBus:
    rank_environment()
    bus = EventBus()
    bus.register(HeartbeatMonitor(recording_client))
    bus.setup(context=RunContext())
    return bus


def step(bus: EventBus, iteration: int = 0) -> None:
    bus.step_start(iteration=iteration)
    bus.step_end(iteration=iteration)


def test_the_end_of_every_step_is_a_heartbeat(bus: EventBus, recording_client: Any):
    """No warm-up: the first step counts like any other, and starts count for nothing."""
    bus.step_start(iteration=0)
    assert recording_client.calls == []
    bus.step_end(iteration=0)
    bus.eval_step_start(iteration=0, eval_index=0)
    bus.eval_step_end(iteration=0, eval_index=0)
    step(bus, 1)
    assert recording_client.calls == ["beat"] * 3


def test_no_heartbeat_while_a_checkpoint_is_saved_or_loaded(bus: EventBus, recording_client: Any):
    bus.checkpoint_loaded(iteration=0, source="local")
    bus.checkpoint_start(iteration=0, kind="save")
    bus.checkpoint_start(iteration=0, kind="remove")
    bus.step_end(iteration=0)
    bus.checkpoint_end(iteration=0, kind="remove", error=None)
    bus.eval_step_end(iteration=0, eval_index=0)
    assert recording_client.calls == []
    bus.checkpoint_end(iteration=0, kind="save", error=None)
    assert recording_client.calls == []
    step(bus)
    assert recording_client.calls == ["beat"]


def test_a_save_whose_end_was_not_heard_is_over_when_the_next_step_begins(bus: EventBus, recording_client: Any):
    """A signal handler may raise on the way; without heartbeats a healthy rank would be killed."""
    bus.checkpoint_start(iteration=0, kind="save")
    step(bus)
    assert recording_client.calls == ["beat"]


def test_heartbeats_go_on_beside_a_save_in_the_background(bus: EventBus, recording_client: Any) -> None:
    """A write that took longer than the limit had a healthy rank killed."""
    with ThreadPoolExecutor(1) as writer:
        writer.submit(lambda: bus.checkpoint_start(iteration=0, kind="save")).result()
        step(bus)
        bus.eval_step_start(iteration=0, eval_index=0)
        bus.eval_step_end(iteration=0, eval_index=0)
        assert recording_client.calls == ["beat", "beat"]
        writer.submit(lambda: bus.checkpoint_end(iteration=1, kind="save", error=None)).result()
    assert recording_client._state.words[SAVED] == 1


def test_after_an_exception_inside_a_save_heartbeats_go_on(bus: EventBus, recording_client: Any):
    bus.checkpoint_start(iteration=0, kind="save")
    bus.training_error(error=RuntimeError("x"), iteration=0)
    step(bus)
    bus.checkpoint_end(iteration=0, kind="save", error=RuntimeError("x"))
    step(bus)
    assert recording_client.calls == ["beat", "beat"]


def test_teardown_switches_protection_off(bus: EventBus, recording_client: Any):
    step(bus)
    bus.teardown(reason="completed")
    assert not recording_client.is_initialized
    step(bus)
    bus.teardown(reason="completed")
    assert recording_client.calls == ["beat"]


def test_a_second_run_is_watched_again(bus: EventBus, recording_client: Any):
    bus.teardown(reason="completed")
    bus.setup(context=RunContext())
    step(bus)
    assert recording_client.is_initialized
    assert recording_client.calls == ["beat"]


def test_sections_play_no_part(rank_environment: Callable[..., Any], recording_client: Any):
    """A configuration that names sections is no error here, and the out-of-section limit is off."""
    cell = rank_environment(rank_section_timeouts="other:1", rank_out_of_section_timeout=0.5)
    bus = EventBus()
    bus.register(HeartbeatMonitor(recording_client))
    bus.setup(context=RunContext())
    step(bus)
    assert recording_client.open_sections == set()
    assert not any(cell.section_deadlines())
    assert cell.words[OUT_OF_SECTION] == CLOSED
    assert CLOSED < cell.words[HEARTBEAT] < NO_LIMIT


@pytest.mark.usefixtures("no_rank_environment")
def test_without_a_monitor_training_goes_on_and_it_is_said_once(caplog: pytest.LogCaptureFixture):
    bus = EventBus()
    bus.register(HeartbeatMonitor())
    for _ in range(2):
        bus.setup(context=RunContext())
        step(bus)
        bus.checkpoint_start(iteration=0, kind="save")
        bus.checkpoint_end(iteration=0, kind="save", error=None)
        bus.teardown(reason="completed")
    assert ["goes on without a rank monitor" in r.message for r in caplog.records] == [True]


@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("reason", ["completed", "exception", "signal"])
@pytest.mark.parametrize("fails", [True, False])
def test_timeouts_are_learned_at_the_clean_end_of_a_run_that_loaded_and_saved(
    bus: EventBus, recording_client: Any, tmp_path: Path, loads: bool, saves: bool, reason: str, fails: bool
):
    bus.teardown(reason="completed")
    (monitor,) = bus.plugins()
    bus.unregister(monitor)
    path = tmp_path / "state" / "ft_state.json"
    bus.register(HeartbeatMonitor(recording_client, state_path=path, calculate_timeouts=True))
    bus.setup(context=RunContext())
    if loads:
        bus.checkpoint_loaded(iteration=0, source="local")
    step(bus)
    step(bus)
    if saves:
        bus.checkpoint_start(iteration=0, kind="save")
        bus.checkpoint_end(iteration=0, kind="save", error=None)
    if fails:
        bus.training_error(error=RuntimeError("x"), iteration=0)
    bus.teardown(reason=reason)

    learns = loads and saves and reason == "completed" and not fails
    assert ("learn heartbeats" in recording_client.calls) is learns
    assert path.exists() is learns
    if learns:
        state = load_state(path)
        assert state is not None
        assert state["current_timeouts"]["heartbeat"] == {
            "initial": 1.0,  # the floor: these steps took microseconds
            "subsequent": 1.0,
            "were_calculated": True,
        }


def test_a_run_from_scratch_learns_at_the_end_of_its_second_job(rank_environment: Callable[..., Any], tmp_path: Path):
    rank_environment()
    path = tmp_path / "ft_state.json"
    for job in range(3):
        bus, client = EventBus(), RankMonitorClient()
        bus.register(HeartbeatMonitor(client, state_path=path, calculate_timeouts=True))
        bus.setup(context=RunContext())
        assert client.hb_timeouts is not None
        assert client.hb_timeouts.were_calculated is (job == 2)
        if job:
            bus.checkpoint_loaded(iteration=0, source="persistent")
        step(bus)
        step(bus)
        bus.checkpoint_start(iteration=0, kind="save")
        bus.checkpoint_end(iteration=0, kind="save", error=None)
        bus.teardown(reason="completed")
        assert path.exists() is (job > 0)
