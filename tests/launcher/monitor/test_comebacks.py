"""Who came back is remembered, told to other nodes in durations, and explains a wait that began before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.monitor.comebacks import Comeback, Comebacks, explaining, heard

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
