"""What one look believes, whom the last look spares, and how long to sleep in between. Ranks and clock are invented."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launcher.monitor.deadline_rules import DUE_TOGETHER_NS, LONGEST_SLEEP_NS, DeadlineRules
from launcher.monitor.lost_time import Freeze
from launcher.monitor.verdict import Deadline, Sighting, sight
from resilience_core.protocol.cell_layout import CLOSED, SHUT_DOWN, UNUSED, WATCHED
from resilience_core.protocol.cell_view import CellView, OpenSection

S = 1_000_000_000
MS = 1_000_000
T = 1_000 * S


class Rank:
    """A rank in memory; ``says`` is what is in its cell."""

    def __init__(self, deadline_ns: int = 0, opened_ns: int = T - S) -> None:
        self.kill_at_ns: int | None = None
        self.is_condemned = False
        self.startup: Deadline | None = None
        self.says: CellView | None = CellView(
            pid=4711, start_time=1, state=WATCHED, smallest_limit_ns=0, iteration=0, heartbeat_ns=CLOSED,
            out_of_section_ns=CLOSED, last_heartbeat_ns=0, left_section_ns=0, rank=0, sections=(),
        )  # fmt: skip
        if deadline_ns:
            self.open(deadline_ns, opened_ns)

    def open(self, deadline_ns: int, opened_ns: int = T - S, slot: int = 0) -> None:
        assert self.says is not None
        others = tuple(section for section in self.says.sections if section.slot != slot)
        opened = OpenSection(f"section {slot}", slot, deadline_ns, opened_ns)
        self.says = self.says._replace(sections=(*others, opened))

    def close(self, slot: int = 0) -> None:
        assert self.says is not None
        self.says = self.says._replace(sections=tuple(s for s in self.says.sections if s.slot != slot))

    def view(self) -> CellView | None:
        return self.says

    def sight(self, view: CellView, now_ns: int, freezes: Sequence[Freeze]) -> Sighting:
        return sight(view, now_ns, freezes, startup=self.startup)

    def is_watched(self, view: CellView) -> bool:
        return not self.is_condemned

    def basis(self, deadline: Deadline) -> str | None:
        return None


class World:
    """A clock that moves in pauses only, and something that may happen in each of them."""

    def __init__(self, smallest_configured_ns: int = 0) -> None:
        self.now = T
        self.freezes: list[Freeze] = []
        self.in_pause: Callable[[], None] = lambda: None
        self.rules: DeadlineRules[Rank] = DeadlineRules(
            lambda: self.now, self.pause, lambda now_ns: self.freezes, smallest_configured_ns
        )

    def pause(self, ns: int) -> None:
        self.now += ns
        self.in_pause()


def test_all_is_well_at_one_look() -> None:
    world = World()
    world.in_pause = lambda: (_ for _ in ()).throw(AssertionError("no second look is needed"))
    assert world.rules.look([Rank(T + 1), Rank()]) is None


def test_a_rank_that_is_late_twice_is_a_case_with_the_view_it_was_judged_by() -> None:
    world, late, well = World(), Rank(T), Rank(T + S)
    findings = world.rules.look([late, well])
    assert findings is not None
    (case,) = findings.cases
    assert (case.rank, case.view, case.is_late) == (late, late.says, True)
    assert (case.verdict.section, case.verdict.deadline_ns) == ("section 0", T)
    assert set(findings.views) == {late, well}


def test_a_rank_that_closes_between_two_looks_is_not_late() -> None:
    world, rank = World(), Rank(T)
    world.in_pause = rank.close
    assert world.rules.look([rank]) is None


def test_a_rank_that_is_late_with_something_else_at_the_second_look_is_not_believed_yet() -> None:
    """It was late, came back, and is late anew: each lateness is seen twice, or it is none."""
    world, rank = World(), Rank(T)

    def move_on() -> None:
        rank.close()
        rank.open(T + MS, slot=1)

    world.in_pause = move_on
    assert world.rules.look([rank]) is None
    world.in_pause = lambda: None
    assert world.rules.look([rank]) is not None


def test_a_section_that_is_closed_and_opened_anew_between_two_looks_is_another_one() -> None:
    world, rank = World(), Rank(T)
    world.in_pause = lambda: rank.open(T + MS // 2, T + MS // 4)
    assert world.rules.look([rank]) is None


def test_a_freeze_between_two_looks_is_heeded() -> None:
    world, rank = World(), Rank(T)
    world.in_pause = lambda: world.freezes.append(Freeze(T - MS, T + S))
    assert world.rules.look([rank]) is None


def test_those_due_with_the_late_one_are_condemned_with_it_and_nobody_else() -> None:
    world = World()
    late, soon, later = Rank(T), Rank(T + DUE_TOGETHER_NS), Rank(T + DUE_TOGETHER_NS + 2 * MS)
    findings = world.rules.look([late, soon, later])
    assert findings is not None
    assert [(case.rank, case.is_late) for case in findings.cases] == [(late, True), (soon, False)]


def test_a_rank_whose_deadline_was_moved_is_not_condemned_with_others() -> None:
    world = World()
    world.freezes = [Freeze(T - 5 * S, T - 4 * S)]
    late, moved = Rank(T), Rank(T + MS, T - 6 * S)
    findings = world.rules.look([late, moved])
    assert findings is not None
    assert [case.rank for case in findings.cases] == [late]


# ---- the last look --------------------------------------------------------------------------------------


def condemned(world: World, *ranks: Rank) -> list:  # type: ignore[type-arg]
    findings = world.rules.look(ranks)
    assert findings is not None
    for case in findings.cases:
        case.rank.is_condemned = True
    return findings.cases


def test_a_rank_that_is_still_silent_stands_condemned() -> None:
    world, rank = World(), Rank(T)
    cases = condemned(world, rank)
    assert world.rules.still_due(cases) == (cases, [])


def test_a_rank_that_has_closed_what_was_overdue_is_spared() -> None:
    world, rank = World(), Rank(T)
    cases = condemned(world, rank)
    rank.close()
    stand, withdrawn = world.rules.still_due(cases)
    assert (stand, [case.rank for case, _ in withdrawn]) == ([], [rank])


def test_a_rank_that_is_in_the_next_instance_of_the_same_section_is_spared() -> None:
    world, rank = World(), Rank(T)
    cases = condemned(world, rank)
    rank.open(T + 5 * S, T + 2 * MS)
    assert world.rules.still_due(cases)[0] == []


def test_a_rank_that_closed_an_inner_section_but_not_the_overdue_outer_one_stands_condemned() -> None:
    world, rank = World(), Rank(T)
    rank.open(T, slot=1)
    cases = condemned(world, rank)
    rank.close(slot=1)
    assert world.rules.still_due(cases)[0] == cases


def test_one_of_several_that_is_back_is_spared_and_the_others_go() -> None:
    world, back, silent, soon = World(), Rank(T), Rank(T), Rank(T + 50 * MS)
    cases = condemned(world, back, silent, soon)
    back.close()
    stand, withdrawn = world.rules.still_due(cases)
    assert ([case.rank for case in stand], [case.rank for case, _ in withdrawn]) == ([silent, soon], [back])


def test_who_was_only_due_together_is_let_go_with_the_one_that_was_late() -> None:
    world, back, soon = World(), Rank(T), Rank(T + 50 * MS)
    cases = condemned(world, back, soon)
    back.close()
    assert world.rules.still_due(cases)[0] == []


def test_who_was_due_together_and_is_overdue_by_now_goes_alone() -> None:
    world, back, soon = World(), Rank(T), Rank(T + 50 * MS)
    cases = condemned(world, back, soon)
    back.close()
    world.now += 60 * MS
    assert [case.rank for case in world.rules.still_due(cases)[0]] == [soon]


def test_a_rank_that_has_shut_down_or_was_taken_over_is_spared() -> None:
    for change in ({"state": SHUT_DOWN}, {"pid": 4712}, {"start_time": 2}):
        world, rank = World(), Rank(T)
        cases = condemned(world, rank)
        assert rank.says is not None
        rank.says = rank.says._replace(**change)
        assert world.rules.still_due(cases)[0] == []


def test_a_damaged_cell_is_no_excuse() -> None:
    world, rank = World(), Rank(T)
    cases = condemned(world, rank)
    rank.says = None
    assert world.rules.still_due(cases)[0] == cases


def test_a_rank_that_initialises_at_the_last_moment_is_spared_and_one_that_does_not_is_not() -> None:
    world, rank = World(), Rank()
    assert rank.says is not None
    rank.says = rank.says._replace(pid=0, start_time=0, state=UNUSED)
    rank.startup = Deadline("startup", None, -1, T, T - S)
    cases = condemned(world, rank)
    assert world.rules.still_due(cases)[0] == cases
    rank.says = rank.says._replace(pid=4711, start_time=1)
    assert world.rules.still_due(cases)[0] == []


# ---- how long to sleep ----------------------------------------------------------------------------------


def test_the_nearest_deadline_ends_the_sleep_lost_time_included() -> None:
    world = World()
    assert world.rules.time_until_next_look([Rank(T + 100 * MS), Rank()], T) == 100 * MS
    world.freezes = [Freeze(T - 500 * MS, T - 300 * MS)]
    assert world.rules.time_until_next_look([Rank(T + 100 * MS), Rank()], T) == 300 * MS


def test_a_rank_that_cannot_be_read_or_is_condemned_does_not_wake_it() -> None:
    unreadable, gone = Rank(), Rank(T)
    unreadable.says, gone.is_condemned = None, True
    assert World().rules.time_until_next_look([unreadable, gone], T) == LONGEST_SLEEP_NS


def test_the_kill_of_a_survivor_ends_the_sleep() -> None:
    rank = Rank()
    rank.is_condemned, rank.kill_at_ns = True, T + 3 * MS
    assert World().rules.time_until_next_look([rank], T) == 3 * MS


def test_no_limit_that_a_rank_may_set_meanwhile_is_slept_through() -> None:
    """Half of the smallest one in force; of the configured ones where a rank has not claimed its cell yet."""
    slow, quick, left, new = Rank(), Rank(), Rank(), Rank()
    for rank, changes in (
        (slow, {"smallest_limit_ns": 900 * MS}),
        (quick, {"smallest_limit_ns": 40 * MS}),
        (left, {"smallest_limit_ns": 10 * MS, "state": SHUT_DOWN}),
        (new, {"state": UNUSED, "pid": 0}),
    ):
        assert rank.says is not None
        rank.says = rank.says._replace(**changes)  # type: ignore[arg-type]
    world = World(smallest_configured_ns=30 * MS)
    for ranks, half_ns in (
        ([slow, left], 450 * MS),
        ([quick, slow], 20 * MS),
        ([slow, quick], 20 * MS),
        ([new], 15 * MS),
    ):
        assert world.rules.time_until_next_look(ranks, T) == half_ns
        assert world.rules.smallest_limit_ns == 2 * half_ns
    assert world.rules.time_until_next_look([Rank()], T) == LONGEST_SLEEP_NS
