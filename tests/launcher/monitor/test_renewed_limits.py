"""Which limits run anew, for how long, and when that is forgotten. Ranks and clock are invented."""

from __future__ import annotations

from launcher.monitor.lost_time import Freeze
from tests.launcher.monitor.test_deadline_rules import MS, Rank, S, T, World


def late(world: World, *ranks: Rank) -> list[Rank]:
    """Return who is condemned as of now, those that are due together included."""
    findings = world.rules.look(ranks)
    return [case.rank for case in findings.cases] if findings is not None else []


def renew(world: World, *ranks: Rank) -> None:
    findings = world.rules.look(ranks)
    assert findings is not None
    world.rules.renew(findings.cases)


def test_a_limit_that_runs_anew_ends_the_sleep_when_it_passes_and_is_a_verdict_then() -> None:
    world, rank = World(), Rank(T - S, T - 3 * S)  # a limit of two seconds
    renew(world, rank)
    now_ns = world.now
    assert late(world, rank) == []
    assert world.rules.time_until_next_look([rank], now_ns + 2 * S - 7) == 7
    world.now = now_ns + 2 * S - 2 * MS
    assert late(world, rank) == []
    world.now = now_ns + 2 * S
    findings = world.rules.look([rank])
    assert findings is not None
    (case,) = findings.cases
    assert (case.held, findings.deadline_ns) == (case.deadlines, None)


def test_time_that_everybody_lost_meanwhile_is_given_back() -> None:
    world, rank = World(), Rank(T - S, T - 3 * S)
    renew(world, rank)
    now_ns = world.now
    world.freezes = [Freeze(now_ns + S, now_ns + 11 * S)]
    world.now = now_ns + 11 * S
    assert late(world, rank) == []
    world.now = now_ns + 12 * S
    assert late(world, rank) == [rank]


def test_the_next_section_and_other_ranks_are_judged_by_their_own_deadlines() -> None:
    world, rank, other = World(), Rank(T - S, T - 3 * S), Rank(T - S)
    renew(world, rank)
    assert late(world, rank, other) == [other]
    rank.close()
    rank.open(world.now - 1)
    assert late(world, rank) == [rank]


def test_another_limit_that_would_pass_before_runs_anew_with_it_and_a_later_one_does_not() -> None:
    """One of heartbeats, say, passes some milliseconds after that of the section."""
    world, rank = World(), Rank(T - S, T - 3 * S)
    rank.open(T + 200 * MS, T - 3 * S, slot=1)
    rank.open(T + 2 * S + 100 * MS, T - 60 * S, slot=2)
    renew(world, rank)
    world.now = T + S
    assert late(world, rank) == []
    world.now = T + 2 * S + 100 * MS
    findings = world.rules.look([rank])
    assert findings is not None
    assert {deadline.slot for deadline in findings.cases[0].deadlines} == {0, 2}


def test_a_successor_in_the_same_cell_has_no_limit_anew() -> None:
    world, rank = World(), Rank(T - S, T - 3 * S)
    renew(world, rank)
    assert rank.says is not None
    rank.says = rank.says._replace(pid=4712)
    assert late(world, rank) == [rank]


def test_it_is_forgotten_with_the_deadline_and_with_the_rank_and_not_while_the_cell_cannot_be_read() -> None:
    world, rank, other = World(), Rank(T - S, T - 3 * S), Rank()
    renew(world, rank)
    said, rank.says = rank.says, None
    assert late(world, rank) == []
    rank.says = said
    assert late(world, rank) == []
    assert len(world.rules._renewed._since_ns) == 1

    rank.close()
    assert late(world, rank) == []
    assert not world.rules._renewed._since_ns

    rank.open(T - S)
    renew(world, rank)
    assert late(world, other) == []
    assert not world.rules._renewed._since_ns


def test_who_is_due_with_another_by_a_limit_that_runs_anew_is_condemned_with_it() -> None:
    world, rank = World(), Rank(T - S, T - 3 * S)
    renew(world, rank)
    due_ns = world.now = world.now + 2 * S - 50 * MS
    other = Rank(due_ns)
    findings = world.rules.look([rank, other])
    assert findings is not None
    assert [(case.rank, case.is_late, bool(case.held)) for case in findings.cases] == [
        (other, True, False),
        (rank, False, True),
    ]
    assert findings.deadline_ns == due_ns
