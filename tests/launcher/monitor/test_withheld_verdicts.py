"""A learned limit does not undercut a configured one through a peer that is waited for; nor does that hide a hang."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from launcher.monitor.deadline_rules import LONGEST_SLEEP_NS, Case, DeadlineRules
from launcher.monitor.lost_time import Freeze
from launcher.monitor.verdict import OUT_OF_SECTION, Deadline, Sighting, sight
from launcher.monitor.withheld_verdicts import PATIENCE_NS
from resilience_core.protocol.cell_layout import CLOSED, NO_LIMIT, SHUT_DOWN, WATCHED
from resilience_core.protocol.cell_view import CellView, OpenSection
from resilience_core.protocol.limit_kinds import CONFIGURED, LEARNED

S = 1_000_000_000
MS = 1_000_000
T = 1_000 * S
LEARNED_NS, CONFIGURED_NS = 60 * S, 600 * S


class Rank:
    """Goes in and out of sections under a configured limit; the time between them is under a learned one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kill_at_ns: int | None = None
        self.is_condemned = False
        self.bases: dict[str, str | None] = {"section": CONFIGURED, OUT_OF_SECTION: LEARNED}
        self.says = CellView(
            pid=4711, start_time=1, state=WATCHED, smallest_limit_ns=0, iteration=0, heartbeat_ns=CLOSED,
            out_of_section_ns=NO_LIMIT, last_heartbeat_ns=0, left_section_ns=0, rank=0, sections=(),
        )  # fmt: skip

    def open(self, limit_ns: int = CONFIGURED_NS, slot: int = 0) -> None:
        now = self.world.now
        section = OpenSection("step", slot, now + limit_ns, now)
        self.says = self.says._replace(sections=(*self.says.sections, section))

    def close(self) -> None:
        now = self.world.now
        self.says = self.says._replace(sections=(), left_section_ns=now, out_of_section_ns=now + LEARNED_NS)

    def view(self) -> CellView:
        return self.says

    def sight(self, view: CellView, now_ns: int, freezes: Sequence[Freeze]) -> Sighting:
        return sight(view, now_ns, freezes)

    def is_watched(self, view: CellView) -> bool:
        return not self.is_condemned

    def basis(self, deadline: Deadline) -> str | None:
        return self.bases[deadline.cause]


class World:
    """A rank that waits outside of any section for one that is inside; a monitor that looks when it says it must."""

    def __init__(self) -> None:
        self.now = T
        self.freezes: list[Freeze] = []
        self.looks = 0
        self.rules: DeadlineRules[Rank] = DeadlineRules(lambda: self.now, self._pause, lambda _: self.freezes, 0)
        self.waiting, self.peer = Rank(self), Rank(self)
        self.ranks = [self.waiting, self.peer]
        self.waiting.close()
        self.peer.open()

    def _pause(self, ns: int) -> None:
        self.now += ns

    def watch_until(self, at_ns: int, meanwhile: Callable[[], None] = lambda: None) -> list[Case[Rank]]:
        """Look as the monitor does, and return the first cases."""
        while self.now < at_ns:
            sleep_ns = self.rules.time_until_next_look(self.ranks, self.now)
            assert sleep_ns <= LONGEST_SLEEP_NS
            self.now = min(self.now + max(sleep_ns, MS), at_ns)
            meanwhile()
            self.looks += 1
            assert self.looks < 20_000, "it does not sleep"
            if (findings := self.rules.look(self.ranks)) is not None:
                return findings.cases
        return []


@pytest.fixture
def world() -> World:
    return World()


def test_who_waits_for_a_peer_in_a_section_with_time_left_is_not_condemned(world: World) -> None:
    assert world.watch_until(T + CONFIGURED_NS - S) == []
    # Two looks a second, and one more at the deadline: what is withheld wakes nobody.
    assert world.looks <= 2 * CONFIGURED_NS // S + 10
    world.peer.close()
    world.waiting.open()
    assert {case.rank for case in world.watch_until(world.now + CONFIGURED_NS + S)} == set(world.ranks)


def test_the_configured_limit_ends_the_wait_and_both_are_condemned(world: World) -> None:
    cases = world.watch_until(T + 2 * CONFIGURED_NS)
    assert {case.rank: case.is_late for case in cases} == {world.peer: True, world.waiting: False}
    assert T + CONFIGURED_NS <= world.now <= T + CONFIGURED_NS + 5 * MS


def test_who_was_let_go_has_its_learned_limit_anew_and_no_longer(world: World) -> None:
    assert world.watch_until(T + 100 * S) == []
    world.peer.close()
    world.peer.bases["section"] = None
    world.peer.open()  # under a limit that nobody has configured
    (case,) = world.watch_until(T + CONFIGURED_NS)
    assert (case.rank, case.is_late, case.verdict.cause) == (world.waiting, True, OUT_OF_SECTION)
    assert 0 <= world.now - (T + 100 * S + LEARNED_NS) <= LONGEST_SLEEP_NS + 10 * MS


def test_who_was_let_go_just_before_its_deadline_has_its_learned_limit_anew_and_once(world: World) -> None:
    world.watch_until(T + 59 * S)
    world.peer.close()
    assert world.watch_until(T + 59 * S + LEARNED_NS - 10 * MS) == []
    assert {case.rank for case in world.watch_until(T + 60 * S + LEARNED_NS)} == set(world.ranks)


def test_what_a_peer_left_before_the_wait_began_does_not_count(world: World) -> None:
    world.peer.close()
    world.peer.says = world.peer.says._replace(left_section_ns=T - 1, out_of_section_ns=NO_LIMIT)
    assert [case.rank for case in world.watch_until(T + 61 * S)] == [world.waiting]


def test_a_freeze_after_it_was_let_go_is_given_back(world: World) -> None:
    world.watch_until(T + 100 * S)
    world.peer.close()
    world.watch_until(T + 110 * S)
    world.freezes = [Freeze(T + 105 * S, T + 110 * S)]
    assert world.watch_until(T + 164 * S) == []
    assert world.watch_until(T + 166 * S) != []


class GoesOn:
    """A peer that goes from section to section, each under a configured limit."""

    def __init__(self, world: World, section_ns: int, gap_ns: int) -> None:
        self.world, self.section_ns, self.gap_ns = world, section_ns, gap_ns

    def __call__(self) -> None:
        now, says = self.world.now, self.world.peer.says
        if says.sections and now - says.sections[0].opened_ns > self.section_ns:
            self.world.peer.close()
        if not says.sections and now - says.left_section_ns > self.gap_ns:
            self.world.peer.open()


PACES = [(S // 4, 0), (S // 4, 2 * S), (50 * S, 50 * S), (100 * S, 0)]


@pytest.mark.parametrize(("section_ns", "gap_ns"), PACES)
def test_who_waits_for_a_peer_in_many_sections_is_not_condemned(world: World, section_ns: int, gap_ns: int) -> None:
    """It was, one learned limit after its own had passed, and once more in the next generation."""
    goes_on = GoesOn(world, section_ns, gap_ns)
    assert world.watch_until(T + 3000 * S, goes_on) == []
    assert world.looks <= 2 * 3000 + 200  # two a second, and one where a limit that runs anew has passed


@pytest.mark.parametrize(("section_ns", "gap_ns"), PACES)
def test_a_hang_is_found_one_learned_limit_after_the_peers_have_stopped(
    world: World, section_ns: int, gap_ns: int
) -> None:
    world.watch_until(T + 1000 * S, GoesOn(world, section_ns, gap_ns))
    world.peer.close()
    stopped_ns = world.now
    assert world.watch_until(T + 3000 * S) != []  # one of them, who takes the other with it
    assert stopped_ns + LEARNED_NS <= world.now <= stopped_ns + LEARNED_NS + LONGEST_SLEEP_NS + 10 * MS


def test_who_hangs_is_found_with_the_configured_limit_in_which_its_peers_have_stopped(world: World) -> None:
    world.watch_until(T + 1000 * S, GoesOn(world, S, 0))
    world.peer.close()
    world.peer.open()
    stopped_ns = world.now
    cases = world.watch_until(T + 3000 * S)
    assert {case.rank: bool(case.held) for case in cases} == {world.peer: False, world.waiting: True}
    assert stopped_ns + CONFIGURED_NS <= world.now <= stopped_ns + CONFIGURED_NS + 10 * MS


@pytest.mark.parametrize(("section_ns", "gap_ns"), PACES)
def test_a_peer_that_goes_on_for_ever_hides_a_hang_for_an_hour(world: World, section_ns: int, gap_ns: int) -> None:
    (case,) = world.watch_until(T + 3 * PATIENCE_NS, GoesOn(world, section_ns, gap_ns))
    assert (case.rank, case.is_late, bool(case.held)) == (world.waiting, True, True)
    patience_ns = T + LEARNED_NS + PATIENCE_NS
    assert patience_ns <= world.now <= patience_ns + section_ns + 2 * S + LEARNED_NS


def test_a_peer_that_sends_heartbeats_goes_on(world: World) -> None:
    def beat() -> None:
        world.peer.says = world.peer.says._replace(last_heartbeat_ns=world.now)

    world.peer.close()
    world.peer.says = world.peer.says._replace(out_of_section_ns=CLOSED)
    assert world.watch_until(T + 1000 * S, beat) == []
    assert [case.rank for case in world.watch_until(T + 2000 * S)] == [world.waiting]
    assert world.now <= T + 1000 * S + LEARNED_NS + LONGEST_SLEEP_NS + 10 * MS


def test_what_it_does_itself_elsewhere_does_not_count(world: World) -> None:
    """Another thread of it goes on; what its deadline is about does not."""

    def beat() -> None:
        world.waiting.says = world.waiting.says._replace(last_heartbeat_ns=world.now)

    world.peer.close()
    world.peer.says = world.peer.says._replace(out_of_section_ns=CLOSED)
    assert [case.rank for case in world.watch_until(T + 1000 * S, beat)] == [world.waiting]
    assert world.now <= T + LEARNED_NS + LONGEST_SLEEP_NS + 10 * MS


def test_the_last_of_several_that_are_waited_for_counts(world: World) -> None:
    slow = Rank(world)
    slow.open(300 * S)
    world.ranks.append(slow)
    world.watch_until(T + 70 * S)
    world.peer.close()
    world.peer.open()
    assert world.watch_until(T + 299 * S) == []
    assert {case.rank for case in world.watch_until(T + 301 * S)} == {slow, world.waiting}


@pytest.mark.parametrize("own", [CONFIGURED, None])
def test_a_limit_that_was_not_learned_alone_is_never_withheld(world: World, own: str | None) -> None:
    world.waiting.bases[OUT_OF_SECTION] = own
    assert [case.rank for case in world.watch_until(T + 61 * S)] == [world.waiting]


@pytest.mark.parametrize("theirs", [LEARNED, None])
def test_only_configured_limits_of_others_count(world: World, theirs: str | None) -> None:
    world.peer.bases["section"] = theirs
    assert [case.rank for case in world.watch_until(T + 61 * S)] == [world.waiting]


def test_a_configured_limit_of_its_own_or_of_who_is_gone_does_not_count(world: World) -> None:
    world.waiting.bases["section"] = LEARNED
    world.waiting.open(LEARNED_NS)
    world.waiting.bases["heartbeat"] = CONFIGURED
    world.waiting.says = world.waiting.says._replace(heartbeat_ns=T + CONFIGURED_NS, last_heartbeat_ns=T)
    world.peer.is_condemned = True
    assert [case.rank for case in world.watch_until(T + 61 * S)] == [world.waiting]


@pytest.mark.parametrize("basis", [CONFIGURED, LEARNED])
def test_a_learned_limit_of_heartbeats_does_not_undercut_its_own_configured_section(world: World, basis: str) -> None:
    """Heartbeats between short sections teach a limit that a long one, which somebody has allowed, would not meet."""
    world.ranks = [world.waiting]
    world.waiting.bases = {"section": basis, "heartbeat": LEARNED}
    world.waiting.open()
    world.waiting.says = world.waiting.says._replace(heartbeat_ns=T + LEARNED_NS, last_heartbeat_ns=T)

    (case,) = world.watch_until(T + 2 * CONFIGURED_NS)

    passed = {deadline.cause for deadline in case.deadlines}
    assert (passed, world.now >= T + CONFIGURED_NS) == (
        ({"section"}, True) if basis == CONFIGURED else ({"heartbeat"}, False)
    )


@pytest.mark.parametrize("basis", [CONFIGURED, LEARNED])
def test_a_learned_limit_between_sections_does_not_undercut_configured_heartbeats(world: World, basis: str) -> None:
    def beat() -> None:
        if world.now < T + 1000 * S:
            world.waiting.says = world.waiting.says._replace(
                heartbeat_ns=world.now + CONFIGURED_NS, last_heartbeat_ns=world.now
            )

    world.ranks = [world.waiting]
    world.waiting.bases["heartbeat"] = basis

    (case,) = world.watch_until(T + 2000 * S, beat)

    # When it falls silent it is found by the later of the two.
    passed = {deadline.cause for deadline in case.deadlines}
    assert passed == ({"heartbeat"} if basis == CONFIGURED else {OUT_OF_SECTION})
    assert world.now >= T + (999 * S + CONFIGURED_NS if basis == CONFIGURED else LEARNED_NS)


def test_a_rank_that_left_its_configured_section_has_the_learned_limit_of_heartbeats_anew(world: World) -> None:
    world.ranks = [world.waiting]
    world.waiting.bases["heartbeat"] = LEARNED
    world.waiting.open()
    world.waiting.says = world.waiting.says._replace(heartbeat_ns=T + LEARNED_NS, last_heartbeat_ns=T)
    assert world.watch_until(T + 300 * S) == []
    world.waiting.says = world.waiting.says._replace(sections=(), out_of_section_ns=NO_LIMIT)
    left_ns = world.now

    assert [case.rank for case in world.watch_until(T + 1000 * S)] == [world.waiting]
    assert left_ns + LEARNED_NS <= world.now <= left_ns + LEARNED_NS + LONGEST_SLEEP_NS + 10 * MS


def test_a_peer_between_sections_under_a_configured_limit_is_waited_for(world: World) -> None:
    for rank in world.ranks:
        rank.bases = {"section": LEARNED, OUT_OF_SECTION: CONFIGURED}
    world.waiting.open(LEARNED_NS)
    world.peer.close()
    world.peer.says = world.peer.says._replace(out_of_section_ns=T + CONFIGURED_NS)
    assert world.watch_until(T + CONFIGURED_NS - S) == []
    assert {case.rank for case in world.watch_until(T + CONFIGURED_NS + S)} == {world.peer, world.waiting}


def test_a_peer_that_is_late_and_comes_back_takes_the_one_that_waits_with_it(world: World) -> None:
    cases = world.watch_until(T + 2 * CONFIGURED_NS)
    world.peer.close()
    standing, withdrawn = world.rules.still_due(cases)
    assert standing == []
    assert {case.rank: case.was_late for case, _ in withdrawn} == {world.peer: True, world.waiting: False}
    assert world.watch_until(world.now + LEARNED_NS - S) == []


def test_a_peer_that_has_shut_down_is_waited_for_while_it_lives(world: World) -> None:
    """It may be at its last save, which nobody limits."""
    world.watch_until(T + 100 * S)
    world.peer.says = world.peer.says._replace(state=SHUT_DOWN)
    assert world.watch_until(T + 1000 * S) == []
    world.ranks.remove(world.peer)  # its process has ended
    ended_ns = world.now
    assert [case.rank for case in world.watch_until(T + 2000 * S)] == [world.waiting]
    assert world.now <= ended_ns + LEARNED_NS + LONGEST_SLEEP_NS + 10 * MS


def test_a_peer_that_has_shut_down_and_never_ends_hides_a_hang_for_an_hour(world: World) -> None:
    world.peer.says = world.peer.says._replace(state=SHUT_DOWN, sections=())
    assert [case.rank for case in world.watch_until(T + 2 * PATIENCE_NS)] == [world.waiting]
    assert T + PATIENCE_NS <= world.now <= T + PATIENCE_NS + 2 * LEARNED_NS + 10 * MS


def test_a_new_wait_is_judged_anew(world: World) -> None:
    world.watch_until(T + 100 * S)
    world.peer.close()
    world.watch_until(T + 101 * S)
    world.waiting.open()
    world.waiting.close()
    world.peer.open()
    assert world.watch_until(T + 101 * S + CONFIGURED_NS - S) == []
