"""Sections that an exception leaves: what they took is no duration that limits are set by."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adapters.ddp import FaultTolerance
from resilience_core.event_bus import EventBus
from resilience_core.hookspecs import RunContext
from resilience_core.monitoring import client as client_module
from resilience_core.monitoring.error_capture import note_error
from resilience_core.plugins.section_monitor import SectionMonitor
from resilience_core.protocol.cell_layout import ERROR_TEXT, HEARTBEAT, LAST_HEARTBEAT
from resilience_core.protocol.error_record import parse_error
from resilience_core.protocol.figures_read import Save
from tests.resilience_core.monitoring.test_figures_of_a_client import Rank, S, start

__all__ = ["start"]

CONTEXT = RunContext(rank=0, local_rank=0, world_size=1)


def counts_of(rank: Rank, section: str) -> tuple[int, int, int, int, int]:
    """Return how often it was closed, ns in all, the longest, and how often it was left by an exception, ns in all."""
    known = rank.figures.sections[section]
    return known.closed, known.took_ns, known.longest_ns, known.left, known.left_ns


@pytest.mark.parametrize("has_limits", [True, False])
@pytest.mark.parametrize("cause", [ValueError, KeyboardInterrupt])
def test_a_section_that_an_exception_leaves_is_no_duration(
    start: Callable[..., Rank], cause: type[BaseException], has_limits: bool
) -> None:
    rank = start(**({"rank_section_timeouts": {"step": 60.0, "inner": 60.0}} if has_limits else {}))
    rank.spend("step", 1.0)
    with rank.client.section("step"):
        with contextlib.suppress(cause), rank.client.section("inner"):
            rank.clock.advance(50.0)
            raise cause
        rank.clock.advance(1.0)  # it was caught, so the one around it goes on
    assert counts_of(rank, "inner") == (0, 0, 0, 1, 50 * S)
    assert counts_of(rank, "step") == (2, 52 * S, 51 * S, 0, 0)
    assert not rank.figures.sections["inner"].durations
    rank.spend("inner", 2.0)
    assert counts_of(rank, "inner") == (1, 2 * S, 2 * S, 1, 50 * S)
    assert rank.client.open_sections == frozenset()


def close_in_finally(rank: Rank, seconds: float) -> None:
    rank.client.start_section("step")
    try:
        rank.clock.advance(seconds)
        raise ValueError("out of data")
    finally:
        rank.client.end_section("step")


def test_a_section_that_is_closed_on_the_way_of_an_exception_is_left_by_it(start: Callable[..., Rank]) -> None:
    rank = start()
    with pytest.raises(ValueError, match="out of data"):
        close_in_finally(rank, 50.0)
    assert counts_of(rank, "step") == (0, 0, 0, 1, 50 * S)
    record = parse_error(rank.client._connection._state.cell.read_text(ERROR_TEXT))  # type: ignore[union-attr]
    assert record is not None
    assert (record.type, record.section) == ("ValueError", "step")
    rank.client.start_section("step")
    try:
        rank.clock.advance(60.0)
        raise ValueError
    except ValueError:
        rank.client.end_section("step")
    assert counts_of(rank, "step") == (0, 0, 0, 2, 110 * S)


def test_a_section_is_left_no_sooner_than_its_exception_is_noted(
    start: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report tells by this which exception has left it; to note one takes some time."""
    rank = start()

    def note_slowly(error: BaseException) -> None:
        rank.clock.advance(0.25)
        note_error(error)

    monkeypatch.setattr(client_module, "note_error", note_slowly)
    with pytest.raises(ValueError, match="out of data"):
        close_in_finally(rank, 50.0)
    cell = rank.client._connection._state.cell
    assert cell is not None
    record, step = parse_error(cell.read_text(ERROR_TEXT)), rank.figures.sections["step"]
    assert record is not None
    assert step.left_opened_ns <= record.at_ns <= step.left_at_ns == cell.view().last_sign_ns


def test_what_is_opened_while_an_exception_is_handled_counts_unless_another_one_leaves_it(
    start: Callable[..., Rank],
) -> None:
    rank = start()
    try:
        raise ValueError
    except ValueError:
        rank.spend("step", 1.0)
        with rank.client.section("step"):
            rank.clock.advance(2.0)
        with pytest.raises(ValueError, match="out of data"):
            close_in_finally(rank, 50.0)
        rank.client.start_section("step")
    rank.clock.advance(4.0)
    rank.client.end_section("step")
    assert counts_of(rank, "step") == (3, 7 * S, 4 * S, 1, 50 * S)


def test_a_section_in_which_an_exception_was_handled_counts(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.client.start_section("step")
    with contextlib.suppress(ValueError):
        raise ValueError
    rank.clock.advance(1.0)
    rank.client.end_section("step")
    assert counts_of(rank, "step") == (1, S, S, 0, 0)


def test_what_another_thread_closes_meanwhile_counts(start: Callable[..., Rank]) -> None:
    rank = start()
    with rank.client.leaving_sections():
        with rank.client.leaving_sections():
            rank.spend("step", 1.0)
        rank.spend("step", 1.0)  # the outer block goes on
        thread = threading.Thread(target=rank.spend, args=("step", 4.0))
        thread.start()
        thread.join()
    rank.spend("step", 8.0)
    assert counts_of(rank, "step") == (2, 12 * S, 8 * S, 2, 2 * S)


def test_limits_that_are_applied_anew_meanwhile_change_nothing(start: Callable[..., Rank]) -> None:
    rank = start(rank_section_timeouts={"step": 60.0})
    rank.spend("step", 1.0)
    rank.spend("step", 2.0)
    with rank.client.leaving_sections():
        rank.client.calculate_and_set_section_timeouts(selected_sections=["step"], calc_out_of_section=False)
        rank.spend("step", 3.0)
    assert counts_of(rank, "step") == (2, 3 * S, 2 * S, 1, 3 * S)


@pytest.fixture
def loop(start: Callable[..., Rank]) -> tuple[Rank, FaultTolerance]:
    rank, bus = start(is_monitored=False, num_warmup_iterations=0), EventBus()
    loop = FaultTolerance(bus=bus, client=rank.client)
    rank.client.init_workload_monitoring()
    return rank, loop


@contextlib.contextmanager
def failing(block: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    try:
        with block:
            yield
            raise RuntimeError("Connection closed by peer")
    except RuntimeError:
        pass
    else:
        pytest.fail("the block has kept the exception")


def test_of_a_loop_the_step_that_an_exception_leaves_is_none(loop: tuple[Rank, FaultTolerance]) -> None:
    rank, ft = loop
    with ft.run(CONTEXT):
        with ft.step(0):
            rank.clock.advance(1.0)
        with failing(ft.step(1)):
            rank.clock.advance(50.0)
        with ft.step(1):
            rank.clock.advance(2.0)
        with failing(ft.eval_step(2, 0)):
            rank.clock.advance(60.0)
        with ft.eval_step(2, 0):
            rank.clock.advance(3.0)
    assert counts_of(rank, "step") == (3, 6 * S, 3 * S, 2, 110 * S)


@pytest.mark.parametrize("api", ["sections", "heartbeats"])
def test_of_a_loop_the_step_that_an_exception_leaves_is_not_done(start: Callable[..., Rank], api: Any) -> None:
    rank = start(is_monitored=False, num_warmup_iterations=0)
    ft = FaultTolerance(bus=EventBus(), client=rank.client, api=api)
    rank.client.init_workload_monitoring()
    with ft.run(CONTEXT):
        with failing(ft.step(0)):
            pass
        assert (rank.figures.first_iteration, rank.figures.done) == (0, None)
        for iteration in range(3):
            with ft.step(iteration):
                pass
        with contextlib.suppress(StopIteration), ft.step(3):
            next(iter(()))
    assert (rank.figures.first_iteration, rank.figures.done) == (0, 2)


def test_when_a_section_was_opened_that_an_exception_has_left_is_told(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.spend("step", 1.0)
    for _ in range(2):
        opened = rank.clock()
        with contextlib.suppress(ValueError), rank.client.section("step"):
            rank.clock.advance(50.0)
            raise ValueError
        left = rank.clock()
        rank.spend("step", 2.0)
    step = rank.figures.sections["step"]
    assert (step.left, step.left_ns, step.left_opened_ns, step.left_at_ns) == (2, 100 * S, opened, left)


def test_of_a_loop_the_save_that_fails_is_none(loop: tuple[Rank, FaultTolerance]) -> None:
    rank, ft = loop
    with failing(ft.run(CONTEXT)):
        with failing(ft.checkpoint(1)):
            rank.clock.advance(50.0)
        with ft.checkpoint(2):
            rank.clock.advance(1.0)
        with ft.checkpoint(3):
            rank.clock.advance(2.0)
        with failing(ft.checkpoint(4)):
            rank.clock.advance(60.0)
    assert counts_of(rank, "checkpointing") == (2, 3 * S, 2 * S, 2, 110 * S)
    now = rank.clock()
    assert rank.figures.saves == (Save(2, now - 62 * S, 51 * S), Save(3, now - 60 * S, 53 * S))


def test_of_a_loop_the_setup_that_an_exception_leaves_is_none(loop: tuple[Rank, FaultTolerance]) -> None:
    rank, ft = loop
    with failing(ft.run(CONTEXT)):
        rank.clock.advance(50.0)
    assert counts_of(rank, "setup") == (0, 0, 0, 1, 50 * S)


def test_an_event_of_an_error_leaves_what_is_open(start: Callable[..., Rank]) -> None:
    rank, bus = start(is_monitored=False, num_warmup_iterations=0), EventBus()
    bus.register(SectionMonitor(rank.client))
    bus.setup(context=CONTEXT)
    bus.step_start(iteration=0)
    rank.clock.advance(50.0)
    bus.training_error(error=RuntimeError("x"), iteration=0)
    assert (rank.client.open_sections, counts_of(rank, "step")) == (frozenset(), (0, 0, 0, 1, 50 * S))
    bus.checkpoint_start(iteration=0, kind="save")  # of an emergency: it is one like any other
    rank.clock.advance(1.0)
    bus.checkpoint_end(iteration=0, kind="save", error=None)
    assert counts_of(rank, "checkpointing") == (1, S, S, 0, 0)
    bus.checkpoint_start(iteration=0, kind="save")
    rank.clock.advance(3.0)
    bus.checkpoint_end(iteration=0, kind="save", error=OSError("disk full"))
    assert counts_of(rank, "checkpointing") == (1, S, S, 1, 3 * S)
    bus.teardown(reason="exception")


def test_of_a_save_that_fails_beside_steps_only_what_has_held_these_up_is_noted(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.spend("step", 1.0)

    def fail() -> None:
        with rank.client.leaving_sections():
            rank.client.end_section("checkpointing")

    thread = threading.Thread(target=rank.client.start_section, args=("checkpointing",))
    thread.start()
    thread.join()
    rank.spend("step", 3.0)
    rank.client.start_section("step")
    rank.clock.advance(4.0)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert counts_of(rank, "checkpointing") == (0, 0, 0, 1, 0)
    assert rank.figures.beside_ns == 0
    rank.client.end_section("step")
    rank.clock.advance(5.0)
    rank.client.note_checkpoint_saved(9)  # another one, of which no section tells
    assert rank.figures.saves == (Save(9, rank.clock(), 0),)


# ---- heartbeats -------------------------------------------------------------------------------------------


def beats_of(rank: Rank) -> tuple[int, int, int]:
    """Return the longest interval, when the last heartbeat that counts was sent, and when the next one is due; ns."""
    words = rank.client._state.words
    return rank.figures.longest_heartbeat_gap_ns, words[LAST_HEARTBEAT], words[HEARTBEAT]


def beat(rank: Rank, seconds: float) -> None:
    rank.clock.advance(seconds)
    rank.client.send_heartbeat()


def test_a_heartbeat_on_the_way_out_moves_the_deadline_and_is_no_progress(start: Callable[..., Rank]) -> None:
    rank = start(rank_heartbeat_timeout=60.0)
    beat(rank, 1.0)
    beat(rank, 2.0)
    longest, last, due = beats_of(rank)
    assert longest == 2 * S

    def leave() -> None:
        try:
            raise RuntimeError("Connection closed by peer")
        finally:
            beat(rank, 30.0)

    with pytest.raises(RuntimeError, match="closed by peer"):
        leave()
    assert beats_of(rank) == (longest, last, due + 30 * S)
    beat(rank, 3.0)  # it was caught, so training goes on
    assert beats_of(rank) == (3 * S, last + 33 * S, due + 33 * S)


def test_a_heartbeat_of_a_thread_that_leaves_its_sections_is_no_progress(start: Callable[..., Rank]) -> None:
    rank = start(rank_heartbeat_timeout=60.0)
    beat(rank, 1.0)
    _, last, due = beats_of(rank)
    with rank.client.leaving_sections():
        beat(rank, 30.0)
    assert beats_of(rank) == (0, last, due + 30 * S)


def test_who_trains_on_while_an_exception_is_handled_makes_progress(start: Callable[..., Rank]) -> None:
    rank = start(rank_heartbeat_timeout=60.0)
    rank.client.note_iteration(1)
    beat(rank, 1.0)
    rank.client.note_iteration(2)
    rank.clock.advance(20.0)
    try:
        raise MemoryError
    except MemoryError:
        beat(rank, 0.0)
        assert beats_of(rank)[1] == rank.clock() - 20 * S
        for number in range(3, 7):
            rank.client.note_iteration(number)
            beat(rank, 5.0)
    assert beats_of(rank)[:2] == (5 * S, rank.clock())


def test_more_heartbeats_while_an_exception_is_handled_are_no_progress_either(start: Callable[..., Rank]) -> None:
    rank = start(rank_heartbeat_timeout=60.0)
    rank.client.note_iteration(1)
    beat(rank, 1.0)
    beat(rank, 2.0)
    rank.client.note_iteration(2)
    _, last, due = beats_of(rank)
    try:
        raise RuntimeError("Connection closed by peer")
    except RuntimeError:
        for _ in range(3):
            beat(rank, 10.0)
    assert beats_of(rank) == (2 * S, last, due + 30 * S)


def test_a_first_heartbeat_on_the_way_out_is_no_progress_and_begins_no_interval(start: Callable[..., Rank]) -> None:
    rank = start(initial_rank_heartbeat_timeout=90.0, rank_heartbeat_timeout=60.0)
    began = beats_of(rank)[1]
    try:
        raise RuntimeError("Connection closed by peer")
    except RuntimeError:
        beat(rank, 30.0)
    assert beats_of(rank) == (0, began, rank.clock() + 60 * S)
    assert rank.client._state.first_heartbeat_gap_ns == 0
    beat(rank, 1.0)
    assert beats_of(rank) == (1 * S, rank.clock(), rank.clock() + 60 * S)


def test_the_step_of_the_ddp_adapter_that_an_exception_leaves_is_no_progress(start: Callable[..., Rank]) -> None:
    rank = start(rank_heartbeat_timeout=60.0)
    ft = FaultTolerance(bus=EventBus(), client=rank.client, api="heartbeats")

    def train() -> None:
        with ft.run():
            for number in range(3):
                with ft.step(number):
                    rank.clock.advance(1.0)
                    if number == 2:
                        rank.clock.advance(30.0)
                        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        train()
    assert rank.figures.longest_heartbeat_gap_ns == 1 * S
