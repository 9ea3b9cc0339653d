"""By how much a rank missed its limit: exactly where the cell tells it, else no more than an upper bound."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from launcher.monitor.near_miss import Lateness, NearMiss, announced, lateness
from launcher.monitor.verdict import HangVerdict, deadlines_in_force, verdict_on
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import (
    CLOSED,
    FIRST_CLOSED,
    HEARTBEAT,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    NOT_COUNTED,
    OUT_OF_SECTION,
    PID,
    SHUT_DOWN,
    STATE,
    WATCHED,
)
from resilience_core.protocol.cell_view import CellView

S = 1_000_000_000
MS = 1_000_000
T = 1_000 * S


class Rank:
    """Stores into a cell what a client stores, at instants that the test names."""

    def __init__(self, cell: Cell) -> None:
        self.words = cell.words
        self.slots = {name: cell.add_section(name) for name in ("step", "inner")}
        self.closed = dict.fromkeys(self.slots, 0)
        self.view = cell.view
        self.words[PID], self.words[STATE] = 4711, WATCHED

    def start(self, name: str, now_ns: int, limit_ns: int = 10 * S) -> None:
        self.words[self.slots[name] + 1], self.words[self.slots[name]] = now_ns, now_ns + limit_ns

    def end(self, name: str, now_ns: int) -> None:
        self.closed[name] += 1
        self.words[LEFT_SECTION] = now_ns
        self.words[FIRST_CLOSED + list(self.slots).index(name)] = self.closed[name]
        self.words[OUT_OF_SECTION] = now_ns + S
        self.words[self.slots[name]] = CLOSED

    def overdue(self, name: str | None = "step") -> tuple[CellView, HangVerdict]:
        view = self.view()
        verdict = verdict_on(view, [d for d in deadlines_in_force(view) if d.section == name])
        assert verdict is not None
        return view, verdict


@pytest.fixture
def rank() -> Iterator[Rank]:
    with contextlib.closing(Cell.detached()) as cell:
        yield Rank(cell)


def late_by(rank: Rank, before: tuple[CellView, HangVerdict], seen_ns: int = T + 500 * MS) -> Lateness:
    view, verdict = before
    return lateness(view, verdict, rank.view(), seen_ns)


def test_the_close_of_an_overdue_section_that_is_the_last_is_known_exactly(rank: Rank) -> None:
    rank.start("step", T - S, S)
    before = rank.overdue()
    rank.end("step", T + 15 * MS)
    assert late_by(rank, before) == (0.015, 0.015)
    rank.start("step", T + 17 * MS)
    assert late_by(rank, before) == (0.015, 0.015)


def test_a_fast_section_after_the_late_one_leaves_an_upper_bound(rank: Rank) -> None:
    """The cell keeps the last close only; it was the later, healthy one's."""
    rank.start("step", T - S, S)
    before = rank.overdue()
    rank.end("step", T + 15 * MS)
    for at_ns in range(T + 17 * MS, T + 100 * MS, 20 * MS):
        rank.start("step", at_ns)
        rank.end("step", at_ns + 18 * MS)
    assert late_by(rank, before) == (None, 0.115)
    assert late_by(rank, before, T + 40 * MS) == (None, 0.04)


def test_a_section_inside_the_overdue_one_is_not_taken_for_its_end(rank: Rank) -> None:
    rank.start("step", T - S, S)
    before = rank.overdue()
    rank.start("inner", T + 5 * MS)
    rank.end("step", T + 15 * MS)
    assert late_by(rank, before).seconds is None
    rank.end("inner", T + 20 * MS)
    assert late_by(rank, before) == (None, 0.02)


def test_a_close_that_was_under_way_when_it_was_overdue_is_not_counted_twice(rank: Rank) -> None:
    rank.start("step", T - S, S)
    deadline_ns = rank.words[rank.slots["step"]]
    rank.end("step", T + MS)
    rank.words[rank.slots["step"]] = deadline_ns  # all is stored but that it is closed
    before = rank.overdue()
    rank.words[rank.slots["step"]] = CLOSED
    rank.start("step", T + 3 * MS)
    rank.end("step", T + 20 * MS)
    assert late_by(rank, before) == (None, 0.02)


def test_sections_that_share_a_slot_are_not_counted(rank: Rank) -> None:
    rank.start("step", T - S, S)
    rank.words[NOT_COUNTED] = 7
    before = rank.overdue()
    rank.end("step", T + 15 * MS)
    assert late_by(rank, before) == (None, 0.015)


def test_time_out_of_section_ends_when_the_first_section_is_opened(rank: Rank) -> None:
    rank.start("step", T - 2 * S)
    rank.end("step", T - S)
    before = rank.overdue(None)
    rank.start("step", T + 15 * MS)
    rank.start("inner", T + 20 * MS)
    assert late_by(rank, before) == (0.015, 0.015)
    rank.end("step", T + 30 * MS)
    assert late_by(rank, before) == (None, 0.02)
    rank.end("inner", T + 40 * MS)
    assert late_by(rank, before) == (None, 0.04)


def test_of_heartbeats_only_the_last_is_known(rank: Rank) -> None:
    rank.words[HEARTBEAT], rank.words[LAST_HEARTBEAT] = T, T - S
    before = rank.overdue(None)
    rank.words[HEARTBEAT], rank.words[LAST_HEARTBEAT] = T + 2 * S, T + 15 * MS
    assert late_by(rank, before) == (None, 0.015)


def test_who_has_shut_down_was_back_when_it_was_seen_and_of_another_process_nothing_is_known(rank: Rank) -> None:
    rank.start("step", T - S, S)
    before = rank.overdue()
    rank.words[STATE] = SHUT_DOWN
    assert late_by(rank, before) == (None, 0.5)
    rank.words[PID] = 4712
    assert late_by(rank, before) == (None, None)


@pytest.mark.parametrize(
    ("late", "said"),
    [((0.0152, 0.0152), " 15.2 ms late"), ((None, 0.1146), " at most 114.6 ms late"), ((None, None), "")],
)
def test_an_upper_bound_is_told_as_one(late: tuple[float | None, float | None], said: str) -> None:
    miss = NearMiss(1, 1, 4711, "section", "step", 2.0, *late)
    assert announced(miss, 1).startswith("near miss 1: rank 1 (pid 4711) came back" + said + " (")
