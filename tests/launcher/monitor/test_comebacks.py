"""Who came back is remembered, told to other nodes in durations, and explains a wait that began before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.monitor.comebacks import Comeback, Comebacks, explaining, heard
from resilience_core.protocol.cell_layout import SHUT_DOWN
from resilience_core.protocol.cell_view import CellView, OpenSection
from tests.launcher.monitor.views import view as says

S = 1_000_000_000


def test_the_last_of_one_generation_are_remembered_the_newest_first() -> None:
    known = Comebacks()
    known.note(3, [Comeback(rank, rank, S) for rank in range(10)])
    known.note(3, [Comeback(rank, rank, S) for rank in range(10, 20)])
    assert [each.rank for each in known.of(3)] == list(range(19, 3, -1))
    assert (known.of(2), known.of(4)) == ((), ())
    known.note(4, [Comeback(7, 1, S)])
    assert ([each.rank for each in known.of(4)], known.of(3)) == ([7], ())


def test_the_longest_are_told_with_those_of_the_moment() -> None:
    known = Comebacks()
    known.note(3, [Comeback(rank, 50, 100 + rank) for rank in range(16)])
    told = known.told(3, 90, [Comeback(20, 80, 1000), Comeback(21, 85, 1)])
    assert told[:6] == (20, 10, 1000, 15, 40, 115)
    assert len(told) == 3 * 16
    assert 21 not in told[::3]
    assert known.told(2, 90) == ()


@given(st.lists(st.builds(Comeback, st.integers(0, 9), st.integers(0, S), st.integers(1, S)), max_size=8))
def test_what_is_heard_came_back_no_later_than_it_did(some: list[Comeback]) -> None:
    """The clock of another machine has another zero, and what is told was asked for before."""
    known = Comebacks()
    known.note(0, some)
    told = known.told(0, now_ns=3 * S)
    asked_ns, took_ns = 70 * S, S // 10
    assert sorted(heard(told, asked_ns)) == sorted(
        each._replace(at_ns=each.at_ns + asked_ns + took_ns - 3 * S - took_ns) for each in some
    )


@pytest.mark.parametrize("told", [(1,), (1, 2), (1, 2, 3, 4), (1, 2.5, 3), ("1", 2, 3), (True, 2, 3)])
def test_of_what_is_no_list_of_comebacks_nothing_is_taken(told: tuple[int, ...]) -> None:
    assert heard(told, 9) == ()


@pytest.mark.parametrize(
    ("comeback", "explains"),
    [
        (Comeback(1, 101, 50), True),
        (Comeback(1, 100, 50), False),  # the wait began when it was back
        (Comeback(1, 101, 49), False),  # somebody else took most of the time
    ],
)
def test_a_wait_is_explained_by_who_was_silent_for_half_of_the_limit_and_came_back_later(
    comeback: Comeback, explains: bool
) -> None:
    assert explaining([comeback], since_ns=100, limit_ns=100) == ([comeback] if explains else [])


# ---- who was late and was not found to be -------------------------------------------------------------------


class Rank(SimpleNamespace):
    """A rank in memory: what it has said last, and what it says when it is asked."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, number: int = 0, generation: int = 3) -> None:
        order = SimpleNamespace(rank=number, generation=generation, started_ns=6 * S)
        super().__init__(order=order, known=None, says=None)

    def view(self) -> CellView | None:
        self.known = self.says
        return self.known


IN_STEP = says(sections=(OpenSection("step", 0, 10 * S, 9 * S),))
OUTER = OpenSection("epoch", 1, 11 * S, 7 * S)


def returns(*views: CellView | None) -> list[Comeback]:
    known, rank = Comebacks(), Rank()
    for rank.known in views:
        known.look([rank])  # type: ignore[list-item]
    return list(known.of(3))


@pytest.mark.parametrize(
    ("before", "now", "comebacks"),
    [
        (IN_STEP, says(left_section_ns=10 * S), [Comeback(0, 10 * S, S)]),
        (IN_STEP, says(left_section_ns=12 * S), [Comeback(0, 10 * S, S)]),  # no later than it did
        (IN_STEP, says(left_section_ns=10 * S - 1), []),
        (IN_STEP, says(sections=(OpenSection("step", 0, 13 * S, 12 * S),)), [Comeback(0, 10 * S, S)]),
        (IN_STEP, IN_STEP, []),
        (IN_STEP, IN_STEP._replace(last_heartbeat_ns=12 * S), []),  # it is still in it
        (IN_STEP, IN_STEP._replace(sections=(*IN_STEP.sections, OpenSection("b", 1, 14 * S, 12 * S))), []),
        (IN_STEP, says(state=SHUT_DOWN, left_section_ns=12 * S), [Comeback(0, 10 * S, S)]),
        (IN_STEP, says(pid=4712, left_section_ns=12 * S), []),
        (IN_STEP, says(start_time=2, left_section_ns=12 * S), []),
        (IN_STEP, None, []),
        (says(), says(left_section_ns=12 * S), []),
        (says(heartbeat_ns=10 * S, last_heartbeat_ns=8 * S), says(heartbeat_ns=13 * S, last_heartbeat_ns=11 * S),
         [Comeback(0, 10 * S, 2 * S)]),
        (says(out_of_section_ns=10 * S, left_section_ns=6 * S), IN_STEP._replace(last_heartbeat_ns=11 * S),
         [Comeback(0, 10 * S, 4 * S)]),
        (IN_STEP._replace(sections=(OUTER, *IN_STEP.sections)), says(left_section_ns=12 * S),
         [Comeback(0, 10 * S, S)]),  # one, the first that has passed
    ],
)  # fmt: skip
def test_who_meets_a_limit_that_has_passed_has_come_back(
    before: CellView | None, now: CellView | None, comebacks: list[Comeback]
) -> None:
    assert returns(says(), before, now) == comebacks


def test_a_rank_that_has_given_signs_before_its_monitor_took_over_came_back_with_the_last_one() -> None:
    assert returns(IN_STEP) == [Comeback(0, 9 * S, 3 * S)]
    assert returns(None, says(left_section_ns=12 * S)) == [Comeback(0, 12 * S, 6 * S)]
    assert returns(says(), says(left_section_ns=12 * S)) == []


def test_it_is_noted_once_and_of_the_newest_generation_alone() -> None:
    known, rank, former = Comebacks(), Rank(number=5), Rank(number=6, generation=2)
    ranks: Any = [former, rank]
    for each in (says(), IN_STEP, says(left_section_ns=11 * S), says(left_section_ns=12 * S)):
        rank.known = former.known = each
        known.look(ranks)
    assert known.of(3) == (Comeback(5, 10 * S, S),)
    for of in ([], [former], ranks):  # a look at ranks that are no longer watched, say
        known.look(of)
    assert known.of(3) == (Comeback(5, 10 * S, S),)


def test_a_rank_that_cannot_be_read_for_a_while_is_no_rank_of_another_monitor() -> None:
    assert returns(says(), IN_STEP, None, says(left_section_ns=11 * S)) == [Comeback(0, 10 * S, S)]


def test_what_earlier_generations_have_said_is_not_kept() -> None:
    known = Comebacks()
    for generation in range(5):
        rank = Rank(generation=generation)
        rank.known = says()
        known.look([rank])  # type: ignore[list-item]
    assert [rank.order.generation for rank in known._before] == [4]


def test_what_ranks_say_now_counts_where_they_are_asked() -> None:
    known, rank = Comebacks(), Rank()
    ranks: Any = [rank]
    for rank.says in (says(), IN_STEP):
        known.look(ranks, read=True)
    rank.says = says(left_section_ns=11 * S)
    known.look(ranks)
    assert known.of(3) == ()
    known.look(ranks, read=True)
    assert known.of(3) == (Comeback(0, 10 * S, S),)
