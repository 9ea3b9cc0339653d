"""Saves while training steps go on: what they hold up, and which work is in them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from resilience_core.event_bus import EventBus
from resilience_core.hookspecs import RunContext
from resilience_core.plugins.heartbeat_monitor import HeartbeatMonitor
from resilience_core.plugins.section_monitor import SectionMonitor
from resilience_core.protocol.figures_read import Save
from tests.resilience_core.monitoring.test_figures_of_a_client import Rank, S, start

__all__ = ["start"]


def elsewhere(*calls: Callable[[], object]) -> None:
    """Make calls in another thread, and wait for them."""

    def run() -> None:
        for call in calls:
            call()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def save_over(rank: Rank, iteration: int) -> tuple[Callable[[], object], ...]:
    return (
        lambda: rank.client.note_checkpoint_saved(iteration),
        lambda: rank.client.end_section("checkpointing"),
    )


def test_a_save_over_which_steps_begin_holds_up_nothing_and_holds_what_was_done_before_it(
    start: Callable[..., Rank],
) -> None:
    rank = start()
    rank.spend("checkpointing", 2.0)
    rank.spend("step", 1.0)
    began = rank.clock()
    elsewhere(lambda: rank.client.start_section("checkpointing"))
    rank.spend("step", 1.0)
    rank.client.start_section("step")
    rank.clock.advance(3.0)
    elsewhere(*save_over(rank, 10))
    assert rank.figures.saves == (Save(10, began, 2 * S),)
    assert (rank.figures.sections["checkpointing"].took_ns, rank.figures.beside_ns) == (6 * S, 4 * S)


def test_what_the_loop_waits_for_such_a_save_holds_it_up(start: Callable[..., Rank]) -> None:
    rank = start()
    began = rank.clock()
    elsewhere(lambda: rank.client.start_section("checkpointing"))
    rank.spend("step", 3.0)
    rank.clock.advance(2.0)
    elsewhere(*save_over(rank, 10))
    assert rank.figures.saves == (Save(10, began + 2 * S, 2 * S),)  # 2 s of it are no work, whenever that was
    assert rank.figures.beside_ns == 3 * S


def test_a_short_save_within_one_step_of_the_main_thread(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.client.start_section("step")
    rank.clock.advance(1.0)
    began = rank.clock()
    elsewhere(lambda: rank.client.start_section("checkpointing"))
    rank.clock.advance(2.0)
    elsewhere(*save_over(rank, 10))
    rank.client.end_section("step")
    assert (rank.figures.saves, rank.figures.beside_ns) == ((Save(10, began, 0),), 2 * S)


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_save_that_the_loop_makes_itself_holds_it_up(start: Callable[..., Rank], is_inside: bool) -> None:
    rank = start()
    rank.client.start_section("step")
    rank.clock.advance(1.0)
    if not is_inside:
        rank.client.end_section("step")
    rank.client.start_section("checkpointing")
    rank.spend("write", 2.0)
    save_over(rank, 10)[0]()
    save_over(rank, 10)[1]()
    assert (rank.figures.saves, rank.figures.beside_ns) == ((Save(10, rank.clock(), 2 * S),), 0)


def test_a_save_in_another_thread_for_which_the_loop_waits_holds_it_up(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.spend("step", 1.0)
    elsewhere(lambda: rank.client.start_section("checkpointing"), lambda: rank.clock.advance(2.0), *save_over(rank, 10))
    assert (rank.figures.saves, rank.figures.beside_ns) == ((Save(10, rank.clock(), 2 * S),), 0)


def test_a_save_may_be_noted_after_its_section(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.spend("step", 1.0)
    began = rank.clock()
    rank.client.start_section("checkpointing")
    rank.clock.advance(0.5)
    rank.spend("step", 2.5)
    rank.client.end_section("checkpointing")
    rank.spend("step", 1.0)
    rank.client.note_checkpoint_saved(10)
    rank.client.note_checkpoint_saved(11)
    assert rank.figures.saves == (Save(10, began, 0), Save(11, rank.clock(), 0))
    assert rank.figures.beside_ns == 3 * S


def test_without_a_section_the_caller_may_tell_when_a_save_began(start: Callable[..., Rank]) -> None:
    rank = start()
    began = rank.clock()
    rank.clock.advance(5.0)
    rank.client.note_checkpoint_saved(10, began)
    rank.client.note_checkpoint_saved(11, rank.clock() + S)
    rank.client.note_checkpoint_saved(12, "soon")  # type: ignore[arg-type]
    assert rank.figures.saves == (Save(10, began, 0), Save(11, rank.clock(), 0))


@pytest.mark.parametrize("monitor", [SectionMonitor, HeartbeatMonitor])
def test_the_monitors_of_the_bus_tell_of_a_save_over_steps(
    start: Callable[..., Rank], monitor: type[SectionMonitor | HeartbeatMonitor]
) -> None:
    rank = start(num_warmup_iterations=1)
    bus = EventBus()
    bus.register(monitor(rank.client))
    bus.setup(context=RunContext(rank=0, world_size=1, local_rank=0))
    for step in range(2):
        if step:
            began = rank.clock()
            elsewhere(lambda: bus.checkpoint_start(iteration=1, kind="save"))
        bus.step_start(iteration=step)
        rank.clock.advance(2.0)
        bus.step_end(iteration=step)
    bus.step_start(iteration=2)
    rank.clock.advance(1.0)
    bus.checkpoint_end(iteration=1, kind="save", error=None)
    assert rank.figures.saves == (Save(1, began, 0),)
    bus.step_end(iteration=2)
    bus.checkpoint_start(iteration=3, kind="save")
    rank.clock.advance(4.0)
    bus.checkpoint_end(iteration=3, kind="save", error=None)
    blocked = 4 * S if monitor is SectionMonitor else 0
    assert rank.figures.saves[1:] == (Save(3, rank.clock(), blocked, done=2),)
    assert rank.figures.beside_ns == (3 * S if monitor is SectionMonitor else 0)


def on_the_bus(start: Callable[..., Rank], monitor: type[SectionMonitor | HeartbeatMonitor]) -> tuple[Rank, EventBus]:
    rank, bus = start(num_warmup_iterations=0), EventBus()
    bus.register(monitor(rank.client))
    bus.setup(context=RunContext(rank=0, world_size=1, local_rank=0))
    return rank, bus


@pytest.mark.parametrize("monitor", [SectionMonitor, HeartbeatMonitor])
@pytest.mark.parametrize(("number", "done"), [(3, 2), (2, None), (7, None)])
def test_a_save_inside_a_step_holds_that_step_if_its_number_is_the_next_one(
    start: Callable[..., Rank], monitor: type[SectionMonitor | HeartbeatMonitor], number: int, done: int | None
) -> None:
    rank, bus = on_the_bus(start, monitor)
    for step in range(3):
        bus.step_start(iteration=step)
        if step == 2:
            bus.checkpoint_start(iteration=number, kind="save")
            bus.checkpoint_end(iteration=number, kind="save", error=None)
        bus.step_end(iteration=step)
    assert [save.done for save in rank.figures.saves] == [done]


@pytest.mark.parametrize("monitor", [SectionMonitor, HeartbeatMonitor])
@pytest.mark.parametrize("number", [2, 3, 9])
def test_a_save_after_an_evaluation_holds_the_last_training_step(
    start: Callable[..., Rank], monitor: type[SectionMonitor | HeartbeatMonitor], number: int
) -> None:
    rank, bus = on_the_bus(start, monitor)
    for step in range(3):
        bus.step_start(iteration=step)
        bus.step_end(iteration=step)
    bus.eval_step_start(iteration=3, eval_index=0)
    bus.eval_step_end(iteration=3, eval_index=0)
    bus.checkpoint_start(iteration=number, kind="save")
    bus.checkpoint_end(iteration=number, kind="save", error=None)
    assert [save.done for save in rank.figures.saves] == [2]


def test_of_two_saves_at_once_each_holds_what_was_done_before_it(start: Callable[..., Rank]) -> None:
    """They share a section, which is opened anew when the older one ends."""
    rank = start(num_warmup_iterations=0)
    bus = EventBus()
    bus.register(SectionMonitor(rank.client))
    bus.setup(context=RunContext(rank=0, world_size=1, local_rank=0))
    first, second = threading.Event(), threading.Event()

    def save(iteration: int, is_over: threading.Event, has_begun: threading.Event) -> None:
        bus.checkpoint_start(iteration=iteration, kind="save")
        has_begun.set()
        is_over.wait()
        bus.checkpoint_end(iteration=iteration, kind="save", error=None)

    began: dict[int, int] = {}
    threads = []
    for iteration, is_over in ((1, first), (2, second)):
        has_begun = threading.Event()
        began[iteration] = rank.clock()
        threads.append(threading.Thread(target=save, args=(iteration, is_over, has_begun)))
        threads[-1].start()
        has_begun.wait()
        bus.step_start(iteration=iteration - 1)
        rank.clock.advance(2.0)
        bus.step_end(iteration=iteration - 1)
    bus.step_start(iteration=2)
    for thread, is_over in zip(threads, (first, second), strict=True):
        rank.clock.advance(1.0)
        is_over.set()
        thread.join()
    assert rank.figures.saves == (Save(1, began[1], 0), Save(2, began[2], 0))
    assert rank.figures.beside_ns == 6 * S


@pytest.mark.parametrize("monitor", [SectionMonitor, HeartbeatMonitor])
def test_what_is_finalized_is_no_save_of_its_own(
    start: Callable[..., Rank], monitor: type[SectionMonitor | HeartbeatMonitor]
) -> None:
    rank = start()
    bus = EventBus()
    bus.register(monitor(rank.client))
    bus.setup(context=RunContext(rank=0, world_size=1, local_rank=0, asynchronous_saves=True))
    for iteration, kind in ((10, "save"), (11, "finalize"), (12, "finalize"), (13, "remove"), (20, "save")):
        bus.checkpoint_start(iteration=iteration, kind=kind)
        rank.clock.advance(1.0)
        bus.checkpoint_end(iteration=iteration, kind=kind, error=None)
    assert [save.iteration for save in rank.figures.saves] == [10, 20]
