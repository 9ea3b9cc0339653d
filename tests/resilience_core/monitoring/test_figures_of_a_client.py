"""What a client and the monitors of the bus note in the figures beside the cell."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adapters.ddp import FaultTolerance
from resilience_core import RankMonitorClient
from resilience_core.event_bus import EventBus
from resilience_core.hookspecs import RunContext
from resilience_core.monitoring import client as client_module
from resilience_core.plugins.heartbeat_monitor import HeartbeatMonitor
from resilience_core.plugins.section_monitor import SectionMonitor
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import MAX_SECTIONS, SHARED_SECTION
from resilience_core.protocol.figures import (
    BUCKETS,
    CLOSE_CALLS,
    LEFT,
    LEFT_TOOK,
    PASSED,
    TOOK,
    create_figures,
    figures_path,
)
from resilience_core.protocol.figures_read import RankFigures, Save, read_figures
from resilience_core.testing import FakeClock

S = 1_000_000_000


class Rank:
    """A client with figures."""

    def __init__(self, client: RankMonitorClient, clock: FakeClock, path: str) -> None:
        self.client, self.clock, self.path, self._descriptor = client, clock, path, create_figures(path)

    @property
    def figures(self) -> RankFigures:
        figures = read_figures(self._descriptor)
        assert figures is not None
        return figures

    def spend(self, section: str, seconds: float) -> None:
        self.client.start_section(section)
        self.clock.advance(seconds)
        self.client.end_section(section)


@pytest.fixture
def start(rank_environment: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rank]]:
    clock, client = FakeClock(), RankMonitorClient()
    monkeypatch.setattr(time, "monotonic_ns", clock)
    monkeypatch.setattr(client_module, "monotonic_ns", clock)

    def start(is_monitored: bool = True, **settings: Any) -> Rank:
        cell = rank_environment(capture_stacks=False, **settings)
        rank = Rank(client, clock, figures_path(cell.path))
        if is_monitored:
            client.init_workload_monitoring()
        return rank

    yield start
    client.shutdown_workload_monitoring()


def test_the_durations_of_a_section_are_counted(start: Callable[..., Rank]) -> None:
    rank = start()
    for seconds in (1.0, 3.0, 2.0):
        rank.spend("step", seconds)
    rank.client.start_section("step")
    rank.clock.advance(50.0)
    step = rank.figures.sections["step"]
    assert (step.closed, step.took_ns, step.longest_ns, step.close_calls) == (3, 6 * S, 3 * S, 0)
    assert step.durations == {(1 * S).bit_length(): 1, (2 * S).bit_length(): 1, (3 * S).bit_length(): 1}


def test_a_section_that_takes_four_fifths_of_its_limit_has_come_close(start: Callable[..., Rank]) -> None:
    rank = start(rank_section_timeouts={"step": 10.0})
    for seconds in (7.9, 8.0, 1.0, 9.0, 8.5, 7.0):
        rank.spend("step", seconds)
    step = rank.figures.sections["step"]
    assert (step.close_calls, step.longest_ns) == (3, 9 * S)


def test_what_was_learned_from_is_still_told(start: Callable[..., Rank]) -> None:
    rank = start(learned_limits="replace")
    rank.spend("step", 4.0)
    assert rank.client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    assert rank.client.section_timeouts is not None
    assert rank.client.section_timeouts.section["step"] == 20.0
    for seconds in (1.0, 2.0):
        rank.spend("step", seconds)
    assert rank.figures.sections["step"].longest_ns == 4 * S
    for seconds in (17.0, 16.0, 3.0):
        rank.spend("step", seconds)
    step = rank.figures.sections["step"]
    assert (step.closed, step.longest_ns, step.close_calls) == (6, 17 * S, 2)
    rank.client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)  # learns from 17 s: 52.5 s
    rank.spend("step", 18.0)
    step = rank.figures.sections["step"]
    assert (step.longest_ns, step.close_calls) == (18 * S, 2)


def test_close_calls_go_by_the_limit_that_is_in_force(start: Callable[..., Rank]) -> None:
    rank = start(learned_limits="replace")
    rank.spend("step", 4.0)
    state = rank.client.state_dict()
    state["current_timeouts"]["section"]["section"]["step"] = 5.0
    state["current_timeouts"]["section"]["calculated_sections"] = ["step"]
    rank.client.load_state_dict(state)
    rank.spend("step", 4.0)
    assert rank.figures.sections["step"].close_calls == 1


def test_the_longest_gaps_are_told(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.clock.advance(2.0)
    rank.spend("step", 1.0)
    rank.clock.advance(5.0)
    rank.spend("step", 1.0)
    rank.clock.advance(4.0)
    rank.spend("step", 1.0)
    for seconds in (1.0, 7.0, 6.0):
        rank.clock.advance(seconds)
        rank.client.send_heartbeat()
    assert (rank.figures.longest_gap_ns, rank.figures.longest_heartbeat_gap_ns) == (5 * S, 7 * S)


def test_a_save_is_told_with_the_time_that_saving_has_taken_until_then(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.client.note_checkpoint_saved(5)
    first = rank.clock()
    rank.spend("checkpointing", 2.0)
    rank.client.start_section("checkpointing")
    rank.clock.advance(3.0)
    rank.client.note_checkpoint_saved(10)
    second = rank.clock()
    rank.clock.advance(1.0)
    rank.client.end_section("checkpointing")
    rank.client.note_checkpoint_saved(20)
    assert rank.figures.saves == (Save(5, first, 0), Save(10, second, 5 * S), Save(20, rank.clock(), 6 * S))


def test_what_is_no_iteration_is_no_save(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.client.note_checkpoint_saved("ten")  # type: ignore[arg-type]
    rank.client.note_checkpoint_saved(1 << 64)
    assert rank.figures.saves == ()


def test_figures_go_on_when_monitoring_begins_again(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.spend("eval", 1.0)
    rank.spend("step", 1.0)
    rank.client.shutdown_workload_monitoring()
    rank.client.init_workload_monitoring()
    rank.spend("step", 2.0)
    sections = rank.figures.sections
    assert (sections["step"].closed, sections["step"].took_ns) == (2, 3 * S)
    assert (sections["eval"].closed, sections["eval"].took_ns) == (1, S)


def test_names_that_share_a_row_are_counted_together(start: Callable[..., Rank]) -> None:
    rank = start()
    names = [f"section {number}" for number in range(MAX_SECTIONS + 2)] + ["x" * 60 + "1", "x" * 60 + "2"]
    for _ in range(2):
        for name in names:
            rank.spend(name, 1.0)
    shared = rank.figures.sections[SHARED_SECTION]
    assert (shared.closed, shared.took_ns, shared.durations) == (8, 8 * S, {(1 * S).bit_length(): 8})


def test_names_that_are_equal_where_they_are_cut_are_counted_together(start: Callable[..., Rank]) -> None:
    rank = start()
    for name in ("x" * 60 + "1", "x" * 60 + "2", "x" * 60 + "1"):
        rank.spend(name, 1.0)
    (section,) = rank.figures.sections.values()
    assert (section.closed, section.took_ns) == (3, 3 * S)


@pytest.mark.parametrize("word", [TOOK, CLOSE_CALLS, LEFT, LEFT_TOOK, BUCKETS + (2 * S).bit_length()])
@pytest.mark.parametrize("value", [2**63 - 1, -1])
def test_damaged_figures_make_no_call_fail(start: Callable[..., Rank], word: int, value: int) -> None:
    rank = start(rank_section_timeouts={"step": 2.0})
    path = rank.client._connection._state.cell.path  # type: ignore[union-attr]
    with open(figures_path(path), "r+b") as file:
        file.seek(8 * word)
        file.write(value.to_bytes(8, sys.byteorder, signed=True))
    for _ in range(3):
        rank.spend("step", 2.0)
    with contextlib.suppress(ValueError), rank.client.section("step"):
        rank.clock.advance(1.0)
        raise ValueError
    step = rank.figures.sections["step"]
    assert (step.closed, step.took_ns, step.close_calls, step.left, step.left_ns) == (3, 6 * S, 3, 1, S)
    assert rank.client.open_sections == frozenset()


def test_a_forked_child_changes_nothing(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.spend("step", 1.0)
    if (child := os.fork()) == 0:
        rank.spend("step", 5.0)
        rank.client.note_checkpoint_saved(7)
        rank.client.note_step_done()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    figures = rank.figures
    assert (figures.sections["step"].took_ns, figures.saves, figures.done) == (S, (), None)


def test_after_the_shutdown_nothing_is_noted(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.client.shutdown_workload_monitoring()
    rank.client.note_first_step(3)
    rank.client.note_step_done()
    rank.client.note_checkpoint_saved(3)
    assert rank.figures == RankFigures(None, None, None, 0, 0, (), {})


@pytest.mark.parametrize("monitor", [SectionMonitor, HeartbeatMonitor])
@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_the_first_step_and_the_last_that_has_ended_are_told(
    start: Callable[..., Rank], monitor: Any, warmup: int
) -> None:
    rank, bus = start(is_monitored=False, num_warmup_iterations=warmup), EventBus()
    bus.register(monitor(rank.client))
    bus.setup(context=RunContext(rank=0, local_rank=0, world_size=1))
    rank.clock.advance(9.0)
    begun = rank.clock()
    assert rank.figures.first_step_ns is None
    for iteration in range(40, 45):
        bus.step_start(iteration=iteration)
        assert rank.figures.done == (iteration - 1 if iteration > 40 else None)
        rank.clock.advance(1.0)
        bus.step_end(iteration=iteration)
        assert rank.figures.done == iteration
    bus.step_start(iteration=45)
    bus.training_error(error=ValueError("x"), iteration=45)
    figures = rank.figures
    assert (figures.first_iteration, figures.first_step_ns, figures.done) == (40, begun, 44)
    bus.teardown(reason="error")


@pytest.mark.parametrize("api", ["sections", "heartbeats"])
@pytest.mark.parametrize("stride", [1, 2])
def test_steps_are_counted_whatever_they_are_numbered_and_whatever_is_done_between(
    start: Callable[..., Rank], api: Any, stride: int
) -> None:
    rank = start(is_monitored=False)
    ft = FaultTolerance(bus=EventBus(), client=rank.client, api=api)
    rank.client.init_workload_monitoring()
    with ft.run(RunContext(rank=0, local_rank=0, world_size=1)):
        assert rank.figures.passed is None
        for number in range(6):
            with contextlib.suppress(ValueError), ft.step(number * stride):
                with ft.checkpoint(number * stride):
                    pass
                if number in (2, 5):
                    raise ValueError
            for index in range(3):
                with ft.eval_step((number + 1) * stride, index):
                    pass
        # Of what the last exception has left, nothing tells yet that training has passed it.
        assert (rank.figures.first_iteration, rank.figures.done, rank.figures.passed) == (0, 4 * stride, 5)


def test_steps_are_counted_on_when_monitoring_begins_again(start: Callable[..., Rank]) -> None:
    rank = start()
    for value in (7, -1, 2**63 - 1):
        rank.client.note_iteration(0)
        rank.client.note_step_done()
        rank.client.shutdown_workload_monitoring()
        with open(rank.path, "r+b") as file:
            file.seek(8 * PASSED)
            file.write(value.to_bytes(8, sys.byteorder, signed=True))
        rank.client.init_workload_monitoring()
        rank.client.note_step_done()
        assert rank.figures.passed == (8 if value == 7 else 1)


def test_a_save_on_the_bus_is_told(start: Callable[..., Rank]) -> None:
    rank, bus = start(is_monitored=False), EventBus()
    bus.register(SectionMonitor(rank.client))
    bus.setup(context=RunContext(rank=0, local_rank=0, world_size=1))
    bus.step_start(iteration=1)
    bus.step_end(iteration=1)
    bus.checkpoint_start(iteration=2, kind="save")
    rank.clock.advance(3.0)
    bus.checkpoint_end(iteration=2, kind="save", error=None)
    bus.checkpoint_start(iteration=3, kind="save")
    bus.checkpoint_end(iteration=3, kind="save", error=OSError("full"))
    assert rank.figures.saves == (Save(2, rank.clock(), 3 * S, done=1),)
    bus.teardown(reason="completed")
