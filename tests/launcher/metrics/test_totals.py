"""Counters over generations: they never go down, whatever comes in which order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as some

from launcher.metrics.totals import RankTotals, SectionTotals, Totals


def one(steps: int, closed: int = 0, calls: int = 0) -> RankTotals:
    return RankTotals(steps, {"step": SectionTotals(closed * 1000, calls, {20: closed})})


def steps(totals: Totals) -> dict[int, int]:
    return {rank: each.steps for rank, _, each in totals.ranks()}


def test_generations_are_added_up() -> None:
    totals = Totals()
    for generation in range(6):
        totals.note(generation, 0, 0, one(10, closed=9, calls=1))
    ((rank, local_rank, found),) = totals.ranks()
    assert (rank, local_rank, found.steps) == (0, 0, 60)
    assert found.sections["step"] == SectionTotals(54_000, 6, Counter({20: 54}))


def test_what_comes_twice_counts_once() -> None:
    """From shared memory while the generation runs, and from the log folder once it is over."""
    totals = Totals()
    totals.note(0, 0, 0, one(10))
    totals.note(1, 0, 0, one(3))
    totals.note(0, 0, 0, one(12))
    totals.note(0, 0, 0, one(12))
    assert steps(totals) == {0: 15}


def test_figures_of_a_generation_long_over_change_nothing() -> None:
    totals = Totals()
    for generation in range(5):
        totals.note(generation, 0, 0, one(1))
    totals.note(0, 0, 0, one(1000))
    assert steps(totals) == {0: 5}


def test_ranks_that_are_here_no_more_are_not_served() -> None:
    """The nodes have changed, and with them which ranks run here."""
    totals = Totals()
    totals.note(0, 4, 0, one(1))
    totals.note(0, 5, 1, one(1))
    totals.note(1, 2, 0, one(7))
    totals.note(1, 3, 1, one(7))
    assert steps(totals) == {2: 7, 3: 7}
    totals.note(2, 4, 0, one(2))
    assert steps(totals) == {4: 3, 3: 7}  # that of the other place has not begun yet
    totals.note(3, 4, 0, one(2))
    assert steps(totals) == {4: 5}


def test_a_rank_is_served_once_also_while_it_changes_its_place() -> None:
    totals = Totals()
    totals.note(0, 1, 1, one(5))
    totals.note(1, 1, 0, one(2))
    assert [(rank, local_rank, each.steps) for rank, local_rank, each in totals.ranks()] == [(1, 0, 7)]


def test_steps_are_told_by_iterations_and_by_sections() -> None:
    closed = {"step": SectionTotals(0, 0, {10: 4, 11: 3})}
    assert RankTotals.of(100, 108, None, closed).steps == 9  # two steps of the warm-up open no section
    assert RankTotals.of(0, 2, None, closed).steps == 7  # the iterations of an epoch begin again
    assert RankTotals.of(None, None, None, closed).steps == 7
    assert RankTotals.of(0, 9, None, closed).steps == 10  # an exception has left some before the last one
    assert RankTotals.of(5, 4, None, {}).steps == 0
    assert RankTotals.of(3, None, None, {}).steps == 0


def test_steps_are_those_that_the_rank_has_counted() -> None:
    """Sections are closed for evaluation steps, and for saves within steps, too."""
    closed = {"step": SectionTotals(0, 0, {10: 70})}
    assert RankTotals.of(0, 39, 40, closed).steps == 40
    assert RankTotals.of(0, 78, 40, closed).steps == 40  # every second number
    assert RankTotals.of(0, 9, 40, closed).steps == 40  # the iterations of an epoch begin again
    assert RankTotals.of(0, 39, 38, closed).steps == 40  # of two that were left out nobody has noted the end


@given(some.lists(some.tuples(some.integers(0, 6), some.integers(0, 2), some.integers(0, 50)), max_size=40))
def test_no_counter_goes_down(noted: list[tuple[int, int, int]]) -> None:
    totals, before = Totals(), {}
    for generation, rank, count in noted:
        totals.note(generation, rank, rank, one(count, closed=count, calls=count))
        now = {rank: each for rank, _, each in totals.ranks()}
        for known, each in now.items():
            if known in before:
                former, section = before[known], each.sections["step"]
                assert each.steps >= former.steps
                assert section.took_ns >= former.sections["step"].took_ns
                assert section.close_calls >= former.sections["step"].close_calls
                assert section.closed >= former.sections["step"].closed
        before.update(now)
