"""What nodes say of a failure, what the leader makes of it, and what they hear: pure, in orders that a test chooses."""

from __future__ import annotations

import functools
import heapq
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.nodes.failure_messages import Account, LookDone, LookRequest, Proceed, Story, Suspicion
from launcher.nodes.gathering import (
    LONGEST_GATHERING_NS,
    Gathered,
    Gatherer,
    Heard,
    NodeAccounts,
    Word,
    longest_wait_ns,
)
from launcher.nodes.membership import Membership, NodeInfo

MS = 1_000_000
NAMES = ("a-node-11-x", "b-node-22-y", "c-node-33-z")
A, B, C = NAMES
HOSTS = {name: name.rsplit("-", 2)[0] for name in (*NAMES, "d-node-44-w")}

LONGEST_WAIT_OF_ONE_NS = longest_wait_ns(1)


class Job:
    """A leader's part, over a membership that the test changes."""

    def __init__(self, *members: str) -> None:
        self.now = 0
        self.membership = Membership()
        self.gatherer = Gatherer(self.membership)
        self.agree("begin", members[0])
        for name in members:
            self.join(name)
        self.form(*members)

    def agree(self, *command: Any) -> None:
        self.membership.apply(0, command)

    def join(self, name: str) -> None:
        self.agree("join", name, tuple(NodeInfo(HOSTS[name], name, 1, "", 2)))

    def form(self, *members: str) -> None:
        self.agree("form", self.membership.generation + 1, members, "host", 1)

    def fail(self, name: str = A, why: str = "it broke") -> None:
        """Have it agreed that the generation is over, and the leader learn of that."""
        self.agree("failed", self.membership.generation, name, why)
        self.gatherer.flush(self.now)

    def lose(self, name: str, why: str = "it was silent") -> None:
        self.agree("gone", name, why, False, False)

    def tells(self, name: str, text: str = "", generation: int = 0) -> None:
        self.gatherer.receive(name, Account(generation, text or f"seen by {name}"), self.now)

    def suspects(self, name: str, generation: int = 0) -> None:
        self.gatherer.receive(name, Suspicion(generation), self.now)

    def looks(self, name: str, generation: int = 0, came_back: tuple[int, ...] = (), **how: bool) -> None:
        self.gatherer.receive(name, LookDone(generation, "", came_back, **how), self.now)

    def gathered(self) -> list[Gathered]:
        """Return what is complete now."""
        self.gatherer.flush(self.now)
        gathered, self.gatherer.gathered = self.gatherer.gathered, []
        return gathered

    def sent(self) -> list[tuple[str, LookRequest | Proceed | Story]]:
        sent, self.gatherer.outbox = self.gatherer.outbox, []
        return sent


def to_all(generation: int, text: str, names: tuple[str, ...] = NAMES) -> list[tuple[str, Story]]:
    return [(name, Story(generation, text)) for name in names]


def due_of(part: Gatherer | NodeAccounts) -> int | None:
    return part.due_ns


# ---- the leader: looks ---------------------------------------------------------------------------------------


def test_a_suspicion_makes_the_others_look_and_not_who_suspects() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    assert job.sent() == [(A, LookRequest(0)), (C, LookRequest(0))]
    assert (job.gathered(), due_of(job.gatherer)) == ([], None)


def test_who_suspects_proceeds_once_all_have_looked() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    for name in (C, B, B):
        job.looks(name)
        assert job.sent() == []
    job.looks(A)
    assert job.sent() == [(B, Proceed(0))]
    job.looks(A)
    assert job.sent() == []


def test_who_came_back_is_passed_on_with_the_time_since_it_was_told() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    job.looks(A, came_back=(1, 10, 500, 2, 20, 600))
    job.now += 7
    job.looks(B, came_back=(3, 30, 400))
    job.now += 1
    job.looks(C)
    assert job.sent() == [(B, Proceed(0, came_back=(2, 28, 600, 1, 18, 500, 3, 31, 400)))]


def brief_to(*names: str, came_back: tuple[int, ...] = ()) -> list[tuple[str, LookRequest]]:
    return [(name, LookRequest(0, is_brief=True, came_back=came_back)) for name in names]


def test_who_only_waits_proceeds_once_all_have_said_who_came_back_since() -> None:
    """The one that it waits for may be spared at the last moment: its node goes first, and answers after that."""
    job = Job(*NAMES)
    job.suspects(A)
    job.suspects(B)
    job.sent()
    job.looks(A)
    job.looks(B, only_waits=True)
    job.looks(C, came_back=(5, 0, 9))
    came_back = (5, 0, 9)
    assert job.sent() == [(A, Proceed(0, came_back=came_back)), *brief_to(*NAMES, came_back=came_back)]
    job.now += 10
    for name in (C, B, B):
        job.looks(name, is_brief=True)
        assert job.sent() == []
    job.looks(A, came_back=(1, 2, 700), is_brief=True)
    assert job.sent() == [(B, Proceed(0, came_back=(1, 2, 700, 5, 10, 9)))]
    job.looks(A, is_brief=True)
    assert job.sent() == []


def test_where_all_only_wait_all_are_asked_once_more() -> None:
    job = Job(*NAMES)
    for name in NAMES:
        job.suspects(name)
    job.sent()
    for name in NAMES:
        job.looks(name, only_waits=True)
    assert job.sent() == brief_to(*NAMES)
    for name in NAMES:
        job.looks(name, is_brief=True)
    assert sorted(job.sent()) == [(name, Proceed(0)) for name in sorted(NAMES)]


def test_who_has_gone_is_not_asked_who_came_back() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    job.lose(C)
    job.looks(B, only_waits=True)
    job.looks(A)
    assert job.sent() == brief_to(A, B)
    job.looks(B, is_brief=True)
    job.lose(A)
    job.gathered()
    assert job.sent() == [(B, Proceed(0))]


def test_who_has_waited_once_and_has_one_to_blame_now_proceeds_at_once() -> None:
    job = Job(*NAMES)
    for only_waits in (True, False):
        job.suspects(B)
        job.sent()
        for name in NAMES:
            job.looks(name, only_waits=only_waits and name == B)
        if only_waits:
            assert job.sent() == brief_to(*NAMES)
            for name in NAMES:
                job.looks(name, is_brief=True)
        assert job.sent() == [(B, Proceed(0))]


def test_what_was_answered_to_an_earlier_question_is_no_answer_to_this_one() -> None:
    job = Job(*NAMES)
    for _ in range(2):
        job.suspects(B)
        job.sent()
        for name in NAMES:
            job.looks(name, only_waits=name == B)
        assert job.sent() == brief_to(*NAMES)
        for name in NAMES:
            assert job.sent() == []
            job.looks(name, is_brief=True)
        assert job.sent() == [(B, Proceed(0))]


def test_another_one_that_only_waits_does_not_begin_the_question_anew() -> None:
    """With many nodes whose limits pass one after another, the first one would wait until its time is up."""
    job = Job(*NAMES)
    for late in (B, C):
        job.suspects(late)
        job.sent()
        for name in NAMES:
            job.looks(name, only_waits=name in (B, late))
        assert job.sent() == brief_to(*NAMES)
        job.looks(A, is_brief=True)
        assert job.sent() == []
        job.looks(late, is_brief=True)
    assert job.sent() == [(B, Proceed(0))]
    job.looks(B, is_brief=True)
    assert job.sent() == [(C, Proceed(0))]


def test_the_answers_for_a_verdict_that_was_withdrawn_do_not_let_the_next_one_proceed() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    for name in NAMES:
        job.looks(name, only_waits=name == B)
    assert job.sent() == brief_to(*NAMES)
    job.suspects(B)
    for name in NAMES:
        job.looks(name, is_brief=True)
    assert job.sent() == []
    job.looks(B)
    assert job.sent() == [(B, Proceed(0))]


def test_who_is_kept_waiting_and_looks_for_a_later_suspicion_goes_on_with_the_first_one() -> None:
    """Its looks for the first one count no more, and the other one has somebody to blame and goes first."""
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    job.looks(B, only_waits=True)
    job.looks(A)
    job.now += 1_000_000_001
    job.suspects(C)
    assert job.sent() == [(A, LookRequest(0)), (B, LookRequest(0))]
    job.looks(A)
    job.looks(B, only_waits=True)
    job.looks(C)
    assert job.sent() == [(C, Proceed(0)), *brief_to(*NAMES)]
    for name in NAMES:
        job.looks(name, is_brief=True)
    assert job.sent() == [(B, Proceed(0))]


@pytest.mark.parametrize("damaged", [5, "who", (1, 2, "3"), (1, 2.0, 3), None])
def test_of_a_node_that_tells_no_whole_numbers_nothing_is_taken(damaged: Any) -> None:
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    job.looks(A, came_back=(1, 2, 3))
    job.looks(B, came_back=damaged)
    job.looks(C)
    assert job.sent() == [(B, Proceed(0, came_back=(1, 2, 3)))]


def test_the_longest_silent_are_passed_on_where_there_are_many() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    rows = [(rank, 0, rank) for rank in range(400)]
    for name in NAMES:
        job.looks(name, came_back=tuple(value for row in rows for value in row) if name == A else ())
    ((_, word),) = job.sent()
    assert isinstance(word, Proceed)
    assert word.came_back[::3] == tuple(range(399, 143, -1))


def test_all_who_suspect_proceed_and_nobody_looks_twice_for_that() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    job.suspects(C)
    assert job.sent() == []
    for name in NAMES:
        job.looks(name)
    assert sorted(job.sent()) == [(B, Proceed(0)), (C, Proceed(0))]
    job.suspects(A)
    assert job.sent() == []
    job.looks(A)  # for its own suspicion
    assert job.sent() == [(A, Proceed(0))]


def test_looks_of_long_ago_are_made_anew() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    for name in NAMES:
        job.looks(name)
    job.sent()
    job.now += 10_000 * MS
    job.suspects(B)
    assert job.sent() == [(A, LookRequest(0)), (C, LookRequest(0))]
    job.looks(B)
    job.looks(C)
    assert job.sent() == []
    job.looks(A)
    assert job.sent() == [(B, Proceed(0))]


def test_a_member_that_has_gone_is_not_waited_for_with_the_looks() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    job.lose(A)
    job.looks(B)
    job.looks(C)
    assert job.sent() == [(B, Proceed(0))]


def test_looks_are_made_anew_only_for_a_suspicion_that_comes_more_than_a_second_later() -> None:
    job = Job(*NAMES)
    job.suspects(B)
    job.sent()
    job.now += 1000 * MS
    job.suspects(B)
    assert job.sent() == []
    job.now += 1
    job.suspects(B)
    assert job.sent() == [(A, LookRequest(0)), (C, LookRequest(0))]


def test_a_suspicion_of_later_keeps_who_suspected_before_and_both_proceed_once_all_have_looked_anew() -> None:
    job = Job(*NAMES)
    job.suspects(A)
    job.looks(A)
    job.looks(B)
    job.sent()
    job.now += 1100 * MS
    job.suspects(B)
    assert job.sent() == [(A, LookRequest(0)), (C, LookRequest(0))]
    job.looks(C)
    job.looks(B)
    assert job.sent() == []
    job.looks(A)
    assert sorted(job.sent()) == [(A, Proceed(0)), (B, Proceed(0))]
    job.looks(A)
    assert job.sent() == []


def test_when_the_last_one_whose_look_is_awaited_goes_who_suspects_proceeds_once() -> None:
    job = Job(*NAMES)
    job.suspects(A)
    job.looks(A)
    job.looks(B)
    job.sent()
    job.lose(C)
    assert job.gathered() == []
    assert job.sent() == [(A, Proceed(0))]
    assert job.gathered() == []
    assert job.sent() == []


def test_when_one_goes_whose_look_has_come_the_others_are_still_waited_for() -> None:
    job = Job(*NAMES)
    job.suspects(A)
    job.looks(A)
    job.looks(C)
    job.sent()
    job.lose(C)
    assert job.gathered() == []
    assert job.sent() == []
    job.looks(B)
    assert job.sent() == [(A, Proceed(0))]


def test_a_verdict_that_is_withdrawn_leaves_nothing_behind() -> None:
    """What is gathered later has all of its time, and has nothing of then."""
    job = Job(*NAMES)
    job.suspects(B)
    job.looks(A)
    job.now += 10 * LONGEST_GATHERING_NS
    assert (job.gathered(), due_of(job.gatherer)) == ([], None)
    job.fail(C, "c-node it was")
    assert due_of(job.gatherer) == job.now + LONGEST_GATHERING_NS
    job.tells(C)
    job.now += LONGEST_GATHERING_NS
    (gathered,) = job.gathered()
    assert gathered == Gathered(0, {C: f"seen by {C}"}, (HOSTS[A], HOSTS[B]), (), "c-node it was", 0.8)


# ---- the leader: what is complete ----------------------------------------------------------------------------


def test_when_all_accounts_have_come_they_are_handed_over_at_once_and_the_story_is_told_to_every_member() -> None:
    job = Job(*NAMES)
    job.tells(A)
    job.fail(A, "a rank of a-node failed")
    for name in (B, C):
        assert job.gathered() == []
        job.now += 100 * MS
        job.tells(name)
    accounts = {name: f"seen by {name}" for name in NAMES}
    assert job.gathered() == [Gathered(0, accounts, (), (), "a rank of a-node failed", 0.2)]
    assert job.sent() == []
    assert due_of(job.gatherer) is None

    job.gatherer.decided(0, "c was late")

    assert job.sent() == to_all(0, "c was late")


def test_nothing_is_gathered_while_the_generation_runs() -> None:
    job = Job(*NAMES)
    for name in NAMES:
        job.tells(name)
    job.now += LONGEST_GATHERING_NS
    assert (job.gathered(), due_of(job.gatherer)) == ([], None)
    job.gatherer.decided(0, "too early")
    assert job.sent() == []
    job.fail(B, "it is over now")
    assert [(each.why, each.seconds) for each in job.gathered()] == [("it is over now", 0)]


def test_what_was_handed_over_is_not_handed_over_again() -> None:
    job = Job(*NAMES)
    job.tells(A)
    job.fail()
    job.now += LONGEST_GATHERING_NS
    assert len(job.gathered()) == 1
    job.tells(B)
    job.tells(C)
    job.now += LONGEST_GATHERING_NS
    assert job.gathered() == []
    job.gatherer.decided(0, "the story")
    assert job.sent() == to_all(0, "the story")  # those that came meanwhile too
    job.now += LONGEST_GATHERING_NS
    assert job.gathered() == []


def test_a_node_that_repeats_itself_counts_once_with_its_last_word() -> None:
    job = Job(A, B)
    job.fail()
    job.tells(A, "at first")
    job.tells(A, "with more")
    assert job.gathered() == []
    job.tells(B, "nothing of note")
    assert [each.accounts for each in job.gathered()] == [{A: "with more", B: "nothing of note"}]


def test_a_silent_member_is_waited_for_until_the_time_is_up_which_runs_from_the_end_of_the_generation() -> None:
    job = Job(*NAMES)
    job.now = 5000 * MS
    job.suspects(A)
    job.now = over_ns = 9000 * MS
    job.tells(A)
    job.fail()
    job.now += 100 * MS
    job.tells(C)
    assert due_of(job.gatherer) == over_ns + LONGEST_GATHERING_NS
    job.now = over_ns + LONGEST_GATHERING_NS - 1
    assert job.gathered() == []
    job.now += 1
    (gathered,) = job.gathered()
    assert (list(gathered.accounts), gathered.silent, gathered.lost) == ([A, C], ("b-node",), ())
    assert gathered.seconds == LONGEST_GATHERING_NS / 1e9
    assert due_of(job.gatherer) is None


@pytest.mark.parametrize("is_known_before", [True, False], ids=["gone while it is awaited", "gone before"])
def test_a_member_that_has_gone_is_lost_and_not_waited_for_and_why_the_generation_is_over_is_said(
    is_known_before: bool,
) -> None:
    job = Job(*NAMES)
    if is_known_before:
        job.suspects(A)
    job.lose(B, "node b-node was silent for 5.0 s")
    job.tells(A)
    assert job.gathered() == []
    job.tells(C)
    (gathered,) = job.gathered()
    assert (gathered.silent, gathered.lost) == ((), ("b-node",))
    assert gathered.why == "node b-node was silent for 5.0 s"


def test_whose_account_has_come_is_neither_silent_nor_lost_when_it_goes() -> None:
    job = Job(A, B)
    job.tells(B)
    job.lose(B)
    job.tells(A)
    (gathered,) = job.gathered()
    assert (list(gathered.accounts), gathered.silent, gathered.lost) == ([B, A], (), ())


def test_why_a_generation_is_over_is_kept_when_the_next_one_has_begun_before_the_accounts_are_complete() -> None:
    job = Job(A, B)
    job.tells(A)
    job.fail(A, "a rank of a-node failed")
    assert job.gathered() == []
    job.form(A, B)
    assert job.membership.why == ""
    job.tells(B)
    assert [(each.generation, each.why) for each in job.gathered()] == [(0, "a rank of a-node failed")]


def test_of_a_generation_that_nobody_has_an_account_of_nothing_is_told() -> None:
    job = Job(*NAMES)
    job.suspects(A)
    job.fail()
    job.now += LONGEST_GATHERING_NS
    assert (job.gathered(), due_of(job.gatherer)) == ([], None)
    job.sent()
    job.gatherer.decided(0, "out of nothing")
    assert job.sent() == []


# ---- the leader: one that leads since the failure ------------------------------------------------------------


def succeeded(job: Job) -> None:
    """Have another node lead, which has heard nothing yet."""
    job.gatherer = Gatherer(job.membership)


@pytest.mark.parametrize("is_ended", [False, True], ids=["stopping", "ended"])
def test_who_leads_only_since_a_generation_was_over_blames_nobody_for_silence_in_it(is_ended: bool) -> None:
    """The others may have heard its story of the former leader, and say nothing more."""
    job = Job(*NAMES)
    job.fail(A, "a rank of a-node failed")
    if is_ended:
        job.agree("end", "enough", 7)
    succeeded(job)
    job.tells(A)
    assert job.gathered() == []
    job.now += LONGEST_GATHERING_NS
    (gathered,) = job.gathered()
    assert (list(gathered.accounts), gathered.silent, gathered.lost) == ([A], ("b-node", "c-node"), ())
    assert not gathered.may_blame_silent
    assert gathered.why == ("enough" if is_ended else "a rank of a-node failed")
    job.gatherer.decided(0, "the story")
    assert job.sent() == to_all(0, "the story")


def test_the_story_of_a_former_leader_is_told_by_the_next_one() -> None:
    """One failure has one story: who has not heard it is not asked for another."""
    job = Job(*NAMES)
    job.fail(A, "a rank of a-node failed")
    job.gatherer = Gatherer(job.membership, Story(0, "the story of before"))
    job.tells(C)
    assert job.gathered() == []
    assert job.sent() == [(C, Story(0, "the story of before"))]
    job.now += LONGEST_GATHERING_NS
    assert job.gathered() == []
    assert job.gatherer.has_told(0)
    job.form(*NAMES)
    job.tells(A, generation=1)
    job.fail()
    job.now += LONGEST_GATHERING_NS
    assert [each.generation for each in job.gathered()] == [1]


def test_who_leads_only_since_a_generation_was_over_still_tells_who_is_lost() -> None:
    job = Job(*NAMES)
    job.lose(B, "b-node was silent")
    succeeded(job)
    job.tells(A)
    job.now += LONGEST_GATHERING_NS
    assert job.gathered() == []  # its time runs from when the new leader has first heard of it
    job.now += LONGEST_GATHERING_NS
    (gathered,) = job.gathered()
    assert (gathered.silent, gathered.lost, gathered.why) == (("c-node",), ("b-node",), "b-node was silent")
    assert not gathered.may_blame_silent


def test_who_leads_only_since_a_generation_was_over_blames_the_silent_ones_of_the_next() -> None:
    job = Job(*NAMES)
    job.fail()
    succeeded(job)
    job.form(*NAMES)
    job.tells(A, generation=1)
    job.fail()
    job.now += LONGEST_GATHERING_NS
    (gathered,) = job.gathered()
    assert (gathered.generation, gathered.silent) == (1, ("b-node", "c-node"))
    assert gathered.may_blame_silent


@pytest.mark.parametrize("generation", [0, 1])
def test_who_leads_since_the_generation_ran_blames_the_silent_ones(generation: int) -> None:
    job = Job(*NAMES)
    if generation:
        job.fail()
        job.form(*NAMES)
    succeeded(job)
    job.tells(A, generation=generation)
    job.fail()
    job.now += LONGEST_GATHERING_NS
    assert [each.silent for each in job.gathered()] == [("b-node", "c-node")]


# ---- the leader: whether the story was told ------------------------------------------------------------------


def test_a_story_is_told_once_it_was_decided_and_not_while_it_is_gathered() -> None:
    job = Job(A, B)
    job.fail()
    assert not job.gatherer.has_told(0)
    for name in (A, B):
        job.tells(name)
        assert not job.gatherer.has_told(0)
    assert len(job.gathered()) == 1
    assert not job.gatherer.has_told(0)
    job.gatherer.decided(0, "")
    assert job.gatherer.has_told(0)
    assert not job.gatherer.has_told(1)


def test_where_no_generation_was_made_there_is_no_story_to_wait_for() -> None:
    assert Gatherer(Membership()).has_told(-1)


# ---- the leader: who is heard, and who is answered -----------------------------------------------------------


def test_an_account_that_comes_after_the_story_is_answered_with_it_and_nobody_else_is() -> None:
    job = Job(*NAMES)
    job.tells(A)
    job.tells(B)
    job.fail()
    job.now += LONGEST_GATHERING_NS
    assert len(job.gathered()) == 1
    job.gatherer.decided(0, "the story")
    job.sent()
    job.tells(C)
    assert job.sent() == [(C, Story(0, "the story"))]
    job.now += LONGEST_GATHERING_NS
    assert job.gathered() == []


def test_who_was_no_member_is_not_heard() -> None:
    job = Job(A, B)
    job.join(C)  # it waits for the next generation
    for stranger in (C, "d-node-44-w"):
        job.suspects(stranger)
        job.looks(stranger)
        job.tells(stranger)
    assert job.sent() == []
    job.suspects(A)
    assert job.sent() == [(B, LookRequest(0))]
    job.looks(A)
    job.looks(C)
    assert job.sent() == []
    job.looks(B)
    assert job.sent() == [(A, Proceed(0))]
    job.fail()
    job.tells(A)
    job.tells(C)
    assert job.gathered() == []
    job.tells(B)
    assert [each.accounts.keys() for each in job.gathered()] == [{A, B}]
    job.gatherer.decided(0, "the story")
    assert job.sent() == to_all(0, "the story", (A, B))
    job.tells(C)
    assert job.sent() == []


@pytest.mark.parametrize("generation", [-1, 0, 2, 1 << 40])
def test_what_is_said_of_another_generation_than_the_current_one_is_not_heard(generation: int) -> None:
    job = Job(*NAMES)
    job.fail()
    job.form(*NAMES)
    assert job.membership.generation == 1
    job.fail()
    for name in NAMES:
        job.suspects(name, generation)
        job.looks(name, generation)
        job.tells(name, "of another time", generation)
    assert (job.gathered(), job.sent(), due_of(job.gatherer)) == ([], [], None)
    job.gatherer.decided(generation, "nobody has asked")
    assert job.sent() == []


def test_nothing_is_heard_before_the_first_generation() -> None:
    membership = Membership()
    gatherer = Gatherer(membership)
    for message in (Suspicion(-1), LookDone(-1), Account(-1, "early")):
        gatherer.receive(A, message, 0)
    gatherer.flush(LONGEST_GATHERING_NS)
    assert (gatherer.gathered, gatherer.outbox, gatherer.due_ns) == ([], [], None)


# ---- the leader: one generation after another ----------------------------------------------------------------


def test_the_next_failure_is_gathered_while_the_former_is_not_told_yet_and_each_is_told_to_its_own_members() -> None:
    job = Job(*NAMES)
    job.tells(A, "of the first")
    job.fail(A, "the first reason")
    job.lose(C)
    job.form(A, B)
    job.tells(B, "of the second", 1)
    job.tells(B, "of the first")
    job.tells(A, "of the second", 1)
    job.fail(B, "the second reason")
    gathered = {each.generation: each for each in job.gathered()}
    assert {number: each.accounts for number, each in gathered.items()} == {
        0: {A: "of the first", B: "of the first"},
        1: {A: "of the second", B: "of the second"},
    }
    assert (gathered[0].lost, gathered[0].why) == (("c-node",), "the first reason")
    assert (gathered[1].lost, gathered[1].why) == ((), "the second reason")

    job.gatherer.decided(1, "second story")
    assert job.sent() == to_all(1, "second story", (A, B))
    job.gatherer.decided(0, "first story")
    assert job.sent() == to_all(0, "first story")


def test_the_time_of_each_of_two_generations_runs_for_itself() -> None:
    job = Job(*NAMES)
    job.tells(A)
    job.fail()
    first_ns = job.now + LONGEST_GATHERING_NS
    job.form(*NAMES)
    job.now += 300 * MS
    job.tells(A, generation=1)
    job.fail()
    second_ns = job.now + LONGEST_GATHERING_NS
    for due_ns, generation in ((first_ns, 0), (second_ns, 1)):
        assert due_of(job.gatherer) == due_ns
        job.now = due_ns
        assert [each.generation for each in job.gathered()] == [generation]
    assert due_of(job.gatherer) is None


def test_the_time_runs_too_where_the_next_generation_is_made_before_the_leader_has_looked() -> None:
    job = Job(*NAMES)
    job.tells(A)
    job.agree("failed", 0, A, "it broke")
    job.form(*NAMES)
    assert job.gathered() == []
    assert due_of(job.gatherer) == job.now + LONGEST_GATHERING_NS
    job.now += LONGEST_GATHERING_NS
    assert [each.generation for each in job.gathered()] == [0]


def test_the_leader_keeps_no_more_after_ten_thousand_generations_than_after_ten() -> None:
    job = Job(*NAMES)
    sizes = []
    for generation in range(10_000):
        job.suspects(A, generation)
        for name in NAMES[: generation % 4]:
            job.looks(name, generation)
            job.tells(name, "x" * 100, generation)
        job.fail()
        job.now += LONGEST_GATHERING_NS // (1 + generation % 2)
        for each in job.gathered():
            if each.generation % 5:
                job.gatherer.decided(each.generation, "y" * 100)
        job.sent()
        if generation in (10, 9_999):
            sizes.append(len(pickle.dumps(job.gatherer)))
        job.form(*NAMES)
    assert job.membership.generation == 10_000
    assert sizes[1] < 2 * sizes[0]


# ---- a node --------------------------------------------------------------------------------------------------

SILENCE = Heard(0, Word.SILENCE)


class Node:
    """A node's part, and the time."""

    def __init__(self) -> None:
        self.now = 0
        self.accounts = NodeAccounts()

    def gives(self, text: str, generation: int = 0, size: int = 1) -> None:
        self.accounts.give(generation, text, self.now, size)

    def sent(self) -> list[Suspicion | LookDone | Account]:
        sent, self.accounts.outbox = self.accounts.outbox, []
        return sent

    def heard(self) -> list[Heard]:
        heard, self.accounts.heard = self.accounts.heard, []
        return heard

    def wait(self, for_ns: int = 2 * LONGEST_WAIT_OF_ONE_NS) -> list[Suspicion | LookDone | Account]:
        """Let time pass, and return what it says meanwhile; it is woken when it says that something is due."""
        end, sent = self.now + for_ns, self.sent()
        while (due := self.accounts.due_ns) is not None and due <= end:
            assert due >= self.now
            self.now = due
            self.accounts.tick(self.now)
            assert self.accounts.due_ns is None or self.accounts.due_ns > self.now, "it would be woken without end"
            sent += self.sent()
        self.now = end
        return sent


def test_what_a_node_says_of_looks_it_says_once_and_awaits_nothing() -> None:
    node = Node()
    node.accounts.suspect(3)
    node.accounts.looked(3, (1, 2, 3), only_waits=True)
    node.accounts.looked(3, is_brief=True)
    assert node.wait() == [Suspicion(3), LookDone(3, "", (1, 2, 3), only_waits=True), LookDone(3, is_brief=True)]
    assert node.heard() == []


def test_a_node_repeats_its_account_until_it_hears_the_story() -> None:
    node = Node()
    node.gives("it broke")
    assert node.sent() == [Account(0, "it broke")]
    said = node.wait(LONGEST_WAIT_OF_ONE_NS // 2)
    assert len(said) >= 2
    assert set(said) == {Account(0, "it broke")}
    assert node.heard() == []
    node.accounts.receive(Story(0, "the story"))
    assert node.wait() == []
    assert node.heard() == [Heard(0, Word.STORY, "the story")]


@pytest.mark.parametrize(
    ("size", "wait_ms", "repeat_ms"),
    [(0, 2000, 250), (1, 2002, 250), (250, 2500, 250), (251, 2502, 251), (4000, 10_000, 4000)],
)
def test_the_more_nodes_there_are_the_longer_each_waits_and_the_less_often_it_repeats_itself(
    size: int, wait_ms: int, repeat_ms: int
) -> None:
    """Else a thousand nodes would say again what the leader has no time to read."""
    assert longest_wait_ns(size) == wait_ms * MS
    node = Node()
    node.now = 7000 * MS
    node.gives("it broke", size=size)
    assert node.sent() == [Account(0, "it broke")]
    assert node.wait(repeat_ms * MS - 1) == []
    assert node.wait(1) == [Account(0, "it broke")]
    assert node.wait(repeat_ms * MS - 1) == []
    assert node.wait(1) == [Account(0, "it broke")]
    node.wait((wait_ms - 2 * repeat_ms) * MS - 1)
    assert node.heard() == []
    node.wait(1)
    assert node.heard() == [SILENCE]


def test_an_account_waits_as_long_as_the_job_is_large_when_it_is_given() -> None:
    node = Node()
    node.gives("of many", size=4000)
    node.gives("of few", 1, size=2)
    assert node.heard() == [SILENCE]
    node.wait(longest_wait_ns(2))
    assert node.heard() == [Heard(1, Word.SILENCE)]


def test_when_nobody_answers_that_is_told_once_after_the_bound() -> None:
    node = Node()
    node.now = 7000 * MS
    node.gives("it broke")
    node.wait(LONGEST_WAIT_OF_ONE_NS - 1)
    assert node.heard() == []
    node.wait(1)
    assert node.heard() == [SILENCE]
    assert node.wait() == []
    assert node.heard() == []
    node.accounts.tick(node.now)
    assert (node.heard(), due_of(node.accounts)) == ([], None)


def test_a_story_that_comes_after_the_silence_is_heard() -> None:
    node = Node()
    node.gives("it broke")
    node.wait()
    assert node.heard() == [SILENCE]
    node.accounts.receive(Story(0, "the story, late"))
    assert node.heard() == [Heard(0, Word.STORY, "the story, late")]


def test_what_is_said_of_looks_is_heard_and_answers_no_account() -> None:
    node = Node()
    node.gives("it broke")
    node.sent()
    node.accounts.receive(LookRequest(0))
    node.accounts.receive(LookRequest(0, is_brief=True, came_back=(4, 5, 6)))
    node.accounts.receive(Proceed(0, came_back=(1, 2, 3)))
    assert node.heard() == [
        Heard(0, Word.LOOK),
        Heard(0, Word.CONFIRM, came_back=(4, 5, 6)),
        Heard(0, Word.PROCEED, came_back=(1, 2, 3)),
    ]
    assert Account(0, "it broke") in node.wait()
    assert node.heard() == [SILENCE]


@pytest.mark.parametrize("other", [0, 2])
def test_a_story_of_another_generation_ends_no_wait(other: int) -> None:
    node = Node()
    node.gives("it broke", 1)
    node.sent()
    node.accounts.receive(Story(other, "another story"))
    assert node.heard() == [Heard(other, Word.STORY, "another story")]
    assert Account(1, "it broke") in node.wait(LONGEST_WAIT_OF_ONE_NS // 2)
    node.accounts.receive(Story(1, "the story"))
    assert node.wait() == []
    assert node.heard() == [Heard(1, Word.STORY, "the story")]


def test_who_gives_an_account_of_the_next_generation_waits_for_the_former_story_no_more() -> None:
    node = Node()
    node.gives("of the first")
    node.gives("of the second", 1)
    assert node.heard() == [SILENCE]
    assert set(node.wait(LONGEST_WAIT_OF_ONE_NS - 1)) == {Account(0, "of the first"), Account(1, "of the second")}
    assert node.heard() == []
    node.wait(1)
    assert node.heard() == [Heard(1, Word.SILENCE)]


def test_a_new_account_is_repeated_in_place_of_the_former_and_has_the_whole_time() -> None:
    node = Node()
    node.gives("at first")
    node.wait(LONGEST_WAIT_OF_ONE_NS - 1)
    node.gives("with more")
    assert set(node.wait(LONGEST_WAIT_OF_ONE_NS - 1)) == {Account(0, "with more")}
    assert node.heard() == []
    node.wait(1)
    assert node.heard() == [SILENCE]


def test_a_node_keeps_no_more_after_ten_thousand_generations_than_after_ten() -> None:
    node = Node()
    sizes = []
    for generation in range(10_000):
        node.accounts.suspect(generation)
        node.accounts.looked(generation)
        node.gives("x" * 100, generation)
        if generation % 3:
            node.accounts.receive(Story(generation, "y" * 100))
        node.accounts.receive(LookRequest(generation))
        node.accounts.receive(Proceed(generation))
        node.wait(LONGEST_WAIT_OF_ONE_NS * (generation % 2))
        node.heard()
        if generation in (10, 9_999):
            sizes.append(len(pickle.dumps(node.accounts)))
    assert sizes[1] < 2 * sizes[0]


# ---- in any order --------------------------------------------------------------------------------------------

NAMED = st.sampled_from(NAMES)
STEPS = st.one_of(
    st.tuples(st.just("suspects"), NAMED, st.integers(0, 1)),
    st.tuples(st.just("looks"), NAMED, st.integers(0, 1)),
    st.tuples(st.just("tells"), NAMED, st.sampled_from(["one", "another"]), st.integers(0, 1)),
    st.tuples(st.just("lose"), NAMED),
    st.tuples(st.just("fail"), NAMED),
    st.tuples(st.just("form")),
    st.tuples(st.just("decided"), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.integers(0, LONGEST_GATHERING_NS)),
)


@given(st.lists(STEPS, max_size=30))
def test_what_is_due_to_the_leader_is_done_when_it_is_due(steps: list[tuple[Any, ...]]) -> None:
    """Else its thread would be woken without end."""
    job = Job(*NAMES)
    for what, *arguments in steps:
        if what == "wait":
            job.now += arguments[0]
        elif what == "form":
            if job.membership.nodes:
                job.form(*job.membership.nodes)
        elif what == "decided":
            job.gatherer.decided(arguments[0], "the story")
        else:
            getattr(job, what)(*arguments)
        job.gathered()
        due_ns = job.gatherer.due_ns
        assert due_ns is None or job.now < due_ns <= job.now + LONGEST_GATHERING_NS


class Network:
    """Three nodes of one generation, the first of which leads, with a delay for each message, or its loss."""

    def __init__(self, delays_ms: list[int], losses: list[bool]) -> None:
        self.job = Job(*NAMES)
        self.nodes = {name: NodeAccounts() for name in NAMES}
        self.heard: dict[str, list[Heard]] = {name: [] for name in NAMES}
        self._delays, self._losses = itertools.cycle(delays_ms), itertools.cycle(losses)
        self._number = itertools.count()
        self._last_ns: dict[tuple[str, str], int] = {}
        """When the last message of one node to another arrives; none overtakes it, as over a connection."""
        self._under_way: list[tuple[int, int, Callable[[int], object]]] = []
        """When it arrives, and what follows; in that order."""

    def run(self, over_ms: int, acts: list[tuple[int, str, str]]) -> None:
        """Let everything happen, and time pass until nothing more can follow."""
        job, left = self.job, sorted(acts)
        end = max(over_ms, *(at for at, _, _ in left)) * MS + 4 * LONGEST_WAIT_OF_ONE_NS
        while job.now < end:
            if job.now >= over_ms * MS:
                job.fail()
            while left and left[0][0] * MS <= job.now:
                _, name, what = left.pop(0)
                if what == "suspects":
                    self.nodes[name].suspect(0)
                    self.nodes[name].looked(0)
                else:
                    self.nodes[name].give(0, "seen", job.now)
            while self._under_way and self._under_way[0][0] <= job.now:
                heapq.heappop(self._under_way)[2](job.now)
            self._turn()
            job.now += 10 * MS
        assert not self._under_way
        assert [due_of(job.gatherer), *map(due_of, self.nodes.values())] == [None] * 4

    def _turn(self) -> None:
        for gathered in self.job.gathered():
            text = f"from {len(gathered.accounts)} accounts at {self.job.now}"
            self._later("decider", A, functools.partial(self._decided, text))
        for name, message in self.job.sent():
            if not next(self._losses):
                self._later("leader", name, functools.partial(self._arrives, name, message))
        for name, node in self.nodes.items():
            node.tick(self.job.now)
            for said in node.outbox:
                if not next(self._losses):
                    self._later(name, "leader", functools.partial(self.job.gatherer.receive, name, said))
            self.heard[name] += node.heard
            node.outbox, node.heard = [], []

    def _decided(self, text: str, now_ns: int) -> None:
        self.job.gatherer.decided(0, text)

    def _arrives(self, name: str, message: LookRequest | Proceed | Story, now_ns: int) -> None:
        self.nodes[name].receive(message)
        if isinstance(message, LookRequest):
            self.nodes[name].looked(message.generation)

    def _later(self, sender: str, to: str, what: Callable[[int], object]) -> None:
        at = max(self.job.now + next(self._delays) * MS, self._last_ns.get((sender, to), 0))
        self._last_ns[sender, to] = at
        heapq.heappush(self._under_way, (at, next(self._number), what))

    def stories(self, name: str) -> set[str]:
        return {each.text for each in self.heard[name] if each.word == Word.STORY}

    def count(self, name: str, word: str) -> int:
        return sum(each.word == word for each in self.heard[name])


DELAYS = st.lists(st.integers(0, 300), min_size=1, max_size=20)
OVER = st.integers(0, 500)
TIMES = st.integers(0, 1500)
GIVEN = st.tuples(TIMES, NAMED, st.just("gives"))
SUSPECTED = st.tuples(TIMES, NAMED, st.just("suspects"))


@given(DELAYS, OVER, st.lists(GIVEN | SUSPECTED, min_size=1, max_size=8))
@example([0], 0, [(0, A, "gives")])
@example([300], 0, [(0, A, "suspects"), (0, B, "gives"), (1500, C, "gives")])
def test_who_gives_an_account_hears_one_story_which_is_the_same_on_all_nodes(
    delays_ms: list[int], over_ms: int, acts: list[tuple[int, str, str]]
) -> None:
    network = Network(delays_ms, [False])
    network.run(over_ms, acts)
    everybody = {name: network.stories(name) for name in NAMES}
    assert len({frozenset(each) for each in everybody.values()}) == 1, everybody
    assert len(everybody[A]) == any(what == "gives" for _, _, what in acts)
    assert [network.count(name, Word.SILENCE) for name in NAMES] == [0, 0, 0]


@given(DELAYS, OVER, st.lists(st.booleans(), min_size=1, max_size=40), st.lists(GIVEN, min_size=1, max_size=6))
@example([100], 0, [True], [(0, A, "gives"), (0, B, "gives")])
def test_where_messages_are_lost_who_gives_an_account_hears_the_one_story_or_that_nobody_answers(
    delays_ms: list[int], over_ms: int, losses: list[bool], acts: list[tuple[int, str, str]]
) -> None:
    network = Network(delays_ms, losses)
    network.run(over_ms, acts)
    assert len(set().union(*(network.stories(name) for name in NAMES))) <= 1, network.heard
    for name in {name for _, name, _ in acts}:
        stories, silences = len(network.stories(name)), network.count(name, Word.SILENCE)
        assert stories or silences, network.heard
        assert silences <= sum(name == each for _, each, _ in acts)
        if all(losses):
            assert (stories, silences) == (0, 1)


@given(DELAYS, st.dictionaries(NAMED, st.integers(0, 200), min_size=1))
def test_whoever_suspects_proceeds_once_when_all_have_looked(delays_ms: list[int], suspecting: dict[str, int]) -> None:
    """In whatever order that is heard; who suspects a rank looks as well."""
    network = Network(delays_ms, [False])
    network.run(5000, [(at, name, "suspects") for name, at in suspecting.items()])
    for name in NAMES:
        assert network.count(name, Word.PROCEED) == (name in suspecting)
