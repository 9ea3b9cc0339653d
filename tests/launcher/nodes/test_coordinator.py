"""The leader's work: leases, and the commands that follow from what nodes say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from launcher.nodes.coordinator import Coordinator
from launcher.nodes.membership import Membership, NodeInfo, Phase
from launcher.nodes.policy import Policy
from launcher.nodes.raft import RaftNode, Timing
from launcher.nodes.raft_log import Entry
from launcher.nodes.raft_messages import Append, Appended, Vote
from launcher.nodes.session_messages import Doing, Granted, Renew, Status
from launcher.nodes.views import Views

MS = 1_000_000
LEASE = 1000 * MS
TIMING = Timing(50 * MS, 200 * MS)


def info(name: str) -> NodeInfo:
    return NodeInfo(f"host {name}", f"address of {name}", 7, name, 2)


def make_policy(least: int = 2, most: int = 3, **others: Any) -> Policy:
    known: dict[str, Any] = {"max_restarts": 2, "last_call_ns": 0, "join_ns": 30_000 * MS, "is_fixed": False}
    return Policy(least=least, most=most, lease_ns=LEASE, **{**known, **others})


class Job:
    """A leader that votes alone, its coordinator, and nodes that the test speaks for."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.now = 0
        self.membership = Membership()
        self.raft = RaftNode("a", self.membership, TIMING, random.Random(1), 0, founds=True)
        self.raft.tick(0)
        self.coordinator = Coordinator(self.raft, self.membership, policy or make_policy(), 0)
        self.stamp = 0
        self.slots: dict[str, int] = {}
        self.flush()

    def says(self, name: str, doing: str = Doing.IDLE, generation: int = -1, **more: Any) -> Granted | None:
        """Have a node say something; what it is answered."""
        self.coordinator.renewed(name, self.word_of(name, doing, generation, **more), self.now)
        answer = next((word for to, word in self.coordinator.outbox if to == name), None)
        self.coordinator.outbox.clear()
        return answer

    def word_of(self, name: str, doing: str, generation: int, **more: Any) -> Renew:
        seen = more.pop("seen", self.membership.version)
        self.stamp += 1
        stamp = more.pop("stamp", self.stamp)
        node = info(name)._replace(slots=self.slots.get(name, 2))
        return Renew(node, Status(doing, generation, **{"why": "", "store_port": 77, **more}), stamp, seen, -1)

    def flush(self) -> None:
        self.coordinator.flush(self.now)

    def answer(self, *names: str) -> None:
        """Have these nodes, or all, acknowledge what the log has for them."""
        self.raft.tick(self.now)
        self.raft.flush(self.now)
        sent = list(self.raft.outbox)
        self.raft.outbox.clear()
        for to, message in sent:
            if isinstance(message, Append) and (not names or to in names):
                last = message.previous_index + len(message.entries)
                self.raft.receive(to, Appended(self.raft.term, True, last, message.stamp_ns), self.now)

    def told(self) -> dict[str, Granted]:
        words = dict(self.coordinator.outbox)
        self.coordinator.outbox.clear()
        return words

    def passes(self, for_ms: int, *speak: str, **status: Any) -> None:
        """Let time pass in which these nodes speak."""
        for _ in range(for_ms // 100):
            self.now += 100 * MS
            for name in speak:
                self.says(name, **status)
            self.flush()

    def runs(self, *names: str, spares: tuple[str, ...] = ()) -> Job:
        """Have the first generation made of these; where others may come, that takes a lease, or two."""
        for _ in range(2):
            for name in (*names, *spares):
                self.says(name)
        self.flush()
        for _ in range(2):
            if self.membership.generation < 0:
                self.passes(1000, *names, *spares)
        assert self.membership.members == names
        self.told()
        return self


# ---- generations ---------------------------------------------------------------------------------------------


def test_nodes_join_and_make_a_generation() -> None:
    job = Job(make_policy(2, 2))
    assert job.says("a") is not None
    job.flush()
    assert job.membership.generation == -1
    assert job.says("b") is not None
    job.flush()
    assert job.membership.members == ("a", "b")
    assert job.membership.store == ("address of a", 77)
    words = job.told()
    views = {name: word.view for name, word in words.items()}
    assert {name: (view.group_rank, view.first_rank) for name, view in views.items() if view is not None} == {
        "a": (0, 0),
        "b": (1, 2),
    }
    assert all(word.stamp_ns is None for word in words.values())


def test_the_first_generation_waits_for_further_nodes_and_not_for_ever() -> None:
    job = Job(make_policy(2, 3, last_call_ns=1500 * MS))
    for name in ("a", "b"):
        job.says(name)
    job.flush()
    job.passes(1400, "a", "b")
    assert job.membership.generation == -1
    job.passes(200, "a", "b")
    assert job.membership.members == ("a", "b")


@pytest.mark.parametrize("is_fixed", [False, True])
def test_the_first_generation_waits_for_a_lease_unless_all_nodes_are_there(is_fixed: bool) -> None:
    """Meanwhile a job that lives elsewhere shows itself, or its ranks lose their lease."""
    job = Job(make_policy(2, 3, is_fixed=is_fixed))
    for name in ("a", "b"):
        job.says(name)
    job.flush()
    job.passes(900, "a", "b")
    assert job.membership.generation == -1
    job.passes(200, "a", "b")
    assert job.membership.members == ("a", "b")


def test_nobody_else_votes_before_the_first_generation_unless_the_only_voter_leaves() -> None:
    job = Job(make_policy(3, 4))
    for name in ("a", "b", "c"):
        job.says(name)
    job.passes(900, "a", "b", "c")
    assert job.raft.outbox == []
    assert job.raft.voters == ("a",)
    job.says("a", Doing.LEFT)
    job.passes(300, "b", "c")
    assert [name for name, message in job.raft.outbox if isinstance(message, Append)][:1] == ["b"]


def test_the_first_generation_is_made_at_once_when_all_are_there() -> None:
    job = Job(make_policy(2, 2, last_call_ns=5000 * MS))
    job.runs("a", "b")
    assert job.now == 0


@pytest.mark.parametrize("answers", [True, False])
def test_the_first_generation_waits_until_any_node_may_be_lost_for_a_lease_at_most(answers: bool) -> None:
    """Ranks that run while a single node votes would be lost with it."""
    job = Job(make_policy(2, 3))
    for _ in range(2):
        for name in ("a", "b", "c"):
            job.says(name)
    job.flush()
    assert (job.membership.generation, job.raft.voters) == (-1, ("a",))
    for _ in range(9):
        if answers:
            job.answer()
        job.passes(100, "a", "b", "c")
    expected = (0, ("a", "b", "c")) if answers else (-1, ("a",))
    assert (job.membership.generation, job.raft.voters) == expected
    job.passes(100, "a", "b", "c")
    assert job.membership.generation == 0


def test_no_more_nodes_than_the_most_are_let_in() -> None:
    job = Job(make_policy(1, 2)).runs("a", "b")
    job.says("c")
    job.flush()
    assert list(job.membership.nodes) == ["a", "b"]


def test_too_few_nodes_for_too_long_end_the_job() -> None:
    job = Job(make_policy(2, 3, join_ns=2000 * MS))
    job.passes(1800, "a")
    assert job.membership.phase == Phase.WAITING
    job.passes(500, "a")
    assert (job.membership.phase, job.membership.exit_code) == (Phase.ENDED, 1)
    assert job.membership.why == "only 1 of at least 2 nodes could take part within 2 s"


def test_a_spare_with_another_number_of_ranks_takes_no_place_and_is_told() -> None:
    """It took one, and the world had another size without a word."""
    job = Job(make_policy(2, 4, is_fixed=True, join_ns=2000 * MS))
    job.slots["c"] = 3
    job.runs("a", "b", spares=("c",))
    word = job.says("c")
    assert word is not None
    assert "it runs 3 ranks (--nproc-per-node), while each node of the job runs 2" in word.refusal
    assert word.stamp_ns is not None  # it stays, and may vote

    job.slots["d"] = 1
    word = job.says("d")
    assert word is not None
    assert "it runs 1 ranks" in word.refusal
    assert "d" not in job.membership.nodes

    job.says("b", Doing.LEFT, 0, why="broken")
    job.says("a", Doing.IDLE, 0)
    job.flush()
    assert job.membership.phase == Phase.STOPPING
    job.passes(2500, "a", "c")
    assert (job.membership.phase, job.membership.exit_code) == (Phase.ENDED, 1)
    assert job.membership.why == (
        "only 1 of at least 2 nodes could take part within 2 s; 1 of the others run another number of ranks "
        "(--nproc-per-node)"
    )


def test_a_spare_with_as_many_ranks_takes_the_place_that_it_fits() -> None:
    job = Job(make_policy(2, 4, is_fixed=True))
    job.slots |= {"c": 3, "d": 2}
    job.runs("a", "b", spares=("c", "d"))
    job.says("b", Doing.LEFT, 0, why="broken")
    for name in ("a", "c", "d"):
        job.says(name, Doing.IDLE, 0)
    job.flush()
    for name in ("a", "c", "d"):
        job.says(name, Doing.IDLE, 0)
    job.flush()
    assert (job.membership.generation, job.membership.members) == (1, ("a", "d"))


@pytest.mark.parametrize("doing", [Doing.FAILED, Doing.IDLE])
def test_a_failure_is_followed_by_a_generation_when_all_members_have_stopped(doing: str) -> None:
    job = Job().runs("a", "b")
    for name in ("a", "b"):
        job.says(name, Doing.RUNNING, 0)
    job.says("b", doing, 0)
    job.flush()
    assert (job.membership.phase, job.membership.failures) == (Phase.STOPPING, 1)
    job.says("b", Doing.IDLE, 0)
    job.flush()
    assert job.membership.generation == 0
    job.says("a", Doing.IDLE, 0)
    job.flush()
    assert (job.membership.generation, job.membership.phase) == (1, Phase.RUNNING)


def test_ready_is_who_has_seen_the_present_state() -> None:
    job = Job().runs("a", "b")
    old = job.membership.version
    job.says("b", Doing.FAILED, 0)
    job.flush()
    job.says("b", Doing.IDLE, 0)
    job.says("a", Doing.IDLE, -1, seen=old)  # it never started, and may be about to
    job.flush()
    assert job.membership.generation == 0
    job.says("a", Doing.IDLE, -1)
    job.flush()
    assert job.membership.generation == 1


def test_a_node_that_is_ready_no_more_makes_no_generation() -> None:
    job = Job(make_policy(2, 3))
    job.says("a")
    job.says("b")
    job.says("a")
    job.says("b", Doing.LEAVING)
    job.flush()
    assert job.membership.generation == -1


def test_a_word_that_was_longer_on_its_way_is_ignored() -> None:
    job = Job().runs("a", "b")
    job.says("b", Doing.FAILED, 0)
    job.flush()
    job.says("a", Doing.RUNNING, 0, stamp=1000)
    assert job.says("a", Doing.IDLE, 0, stamp=999) is None
    job.says("b", Doing.IDLE, 0)
    job.flush()
    assert job.membership.generation == 0
    assert job.says("a", Doing.IDLE, 0, stamp=1001) is not None


def test_a_budget_that_is_spent_ends_the_job() -> None:
    job = Job(make_policy(1, 2, max_restarts=0)).runs("a")
    job.says("a", Doing.FAILED, 0, why="it broke")
    job.flush()
    assert job.membership.phase == Phase.STOPPING
    job.says("a", Doing.IDLE, 0)
    job.flush()
    assert (job.membership.phase, job.membership.exit_code) == (Phase.ENDED, 1)
    assert job.membership.why == "it broke; no restart is left of 0"


def test_who_leaves_ends_the_generation_without_a_failure() -> None:
    job = Job().runs("a", "b", "c")
    job.says("c", Doing.LEAVING, 0, why="asked to")
    job.flush()
    assert (job.membership.phase, job.membership.failures, job.membership.may_save) == (Phase.STOPPING, 0, True)
    job.says("c", Doing.LEFT, 0)
    job.flush()
    assert "c" not in job.membership.nodes
    job.says("c", Doing.LEFT, 0)
    job.flush()
    assert "c" not in job.membership.nodes
    for name in ("a", "b"):
        job.says(name, Doing.IDLE, 0)
    job.flush()
    assert job.membership.members == ("a", "b")


def test_who_leaves_after_its_ranks_have_ended_is_not_missed() -> None:
    """Even where that was not agreed before."""
    job = Job().runs("a", "b", "c")
    job.says("c", Doing.LEFT, 0, why="asked to", has_finished=True)
    job.flush()
    assert "c" not in job.membership.nodes
    assert (job.membership.phase, job.membership.finished) == (Phase.RUNNING, {"c"})
    for name in ("a", "b"):
        job.says(name, Doing.FINISHED, 0)
    job.flush()
    assert (job.membership.phase, job.membership.exit_code) == (Phase.ENDED, 0)


def test_who_is_not_let_in_is_told_why() -> None:
    job = Job(make_policy(2, 2)).runs("a", "b")
    word = job.says("c")
    assert word is not None
    assert (word.refusal, word.is_excluded) == ("the job has 2 nodes, as many as --nnodes lets in", False)
    job.says("b", Doing.LEFT, 0, is_excluded=True, why="broken")
    job.flush()
    assert "b" not in job.membership.nodes
    host = info("b").host
    job.coordinator.outbox.clear()
    word = job.says("b")
    assert word is not None
    assert (word.refusal, word.is_excluded) == (f"node {host} was excluded from this job before: broken", True)
    word = job.says("a", Doing.IDLE, 0)
    assert word is not None
    assert (word.refusal, word.is_excluded) == ("", False)


def test_an_unhealthy_node_may_come_back_when_it_was_repaired_but_counts_as_lost() -> None:
    """It was refused for the rest of the job, which then ended for lack of it."""
    job = Job(make_policy(2, 3)).runs("a", "b", "c")
    job.says("b", Doing.LEFT, 0, why="its disk was full", is_unhealthy=True)
    job.flush()
    assert (job.membership.phase, job.membership.may_save, job.membership.failures) == (Phase.STOPPING, True, 0)
    assert job.membership.strikes_of(info("b").host) == 1
    job.says("b")
    job.flush()
    assert "b" in job.membership.nodes


def test_who_is_not_let_in_is_told_why_also_where_it_has_not_asked_again() -> None:
    """A change that all are told of took the reason away: a node that gave up then said that nobody had answered."""
    job = Job(make_policy(2, 2)).runs("a", "b")
    job.says("c")
    job.coordinator.renewed("b", job.word_of("b", Doing.FAILED, 0), job.now)
    job.flush()
    assert job.membership.phase == Phase.STOPPING
    assert job.told()["c"].refusal == "the job has 2 nodes, as many as --nnodes lets in"


def test_who_ends_ends_the_job_for_all() -> None:
    job = Job().runs("a", "b")
    job.says("b", Doing.ENDING, 0, why="enough", exit_code=7)
    job.flush()
    assert (job.membership.phase, job.membership.why, job.membership.exit_code) == (Phase.ENDED, "enough", 7)


def test_the_job_ends_when_all_have_finished_and_is_told_to_all() -> None:
    job = Job().runs("a", "b")
    for name in ("a", "b"):
        job.says(name, Doing.FINISHED, 0)
    job.flush()
    assert (job.membership.phase, job.membership.exit_code) == (Phase.ENDED, 0)
    assert not job.coordinator.has_told_all
    job.says("b", Doing.FINISHED, 0, seen=job.membership.version)
    assert job.coordinator.has_told_all


# ---- leases --------------------------------------------------------------------------------------------------


def test_who_is_in_gets_its_stamp_back_and_who_is_not_does_not() -> None:
    job = Job(make_policy(1, 2)).runs("a", "b")
    word = job.says("b", Doing.RUNNING, 0, stamp=1234)
    assert word is not None
    assert (word.stamp_ns, word.quorum_age_ns, word.view) == (1234, 0, None)
    stranger = job.says("c", stamp=1234)
    assert stranger is not None
    assert stranger.stamp_ns is None


def test_who_is_silent_for_a_lease_is_gone_and_not_before() -> None:
    job = Job(make_policy(1, 2)).runs("a", "b")
    job.passes(900, "a", doing=Doing.RUNNING, generation=0)
    assert "b" in job.membership.nodes
    job.passes(200, "a", doing=Doing.RUNNING, generation=0)
    assert "b" not in job.membership.nodes
    assert "silent" in job.membership.why
    assert job.membership.strikes_of("host b") == 1


def test_a_word_in_time_keeps_a_node() -> None:
    job = Job(make_policy(1, 2)).runs("a", "b")
    job.passes(5000, "a", "b", doing=Doing.RUNNING, generation=0)
    assert "b" in job.membership.nodes


def test_a_farewell_takes_a_node_out_at_once_and_what_it_said_before_does_not_bring_it_back() -> None:
    job = Job(make_policy(1, 2)).runs("a", "b")
    job.coordinator.farewell("b", "killed")
    job.flush()
    assert (job.membership.why, "b" in job.membership.nodes) == ("killed", False)
    job.says("b", Doing.RUNNING, 0)
    job.flush()
    assert "b" not in job.membership.nodes


def test_who_is_gone_must_speak_again_to_join() -> None:
    job = Job(make_policy(1, 2)).runs("a", "b")
    job.passes(1200, "a", doing=Doing.RUNNING, generation=0)
    assert "b" not in job.membership.nodes
    job.passes(3000, "a", doing=Doing.IDLE, generation=0)
    assert "b" not in job.membership.nodes
    job.says("b", Doing.IDLE, 0)
    job.flush()
    assert "b" in job.membership.nodes


def test_an_excluded_host_does_not_join() -> None:
    job = Job(make_policy(1, 2)).runs("a", "b")
    job.says("b", Doing.LEFT, 0, is_excluded=True, why="broken")
    job.flush()
    job.says("b", Doing.IDLE, 0)
    job.flush()
    assert "b" not in job.membership.nodes


# ---- with other voters ---------------------------------------------------------------------------------------


def test_a_node_of_another_job_is_not_let_in_and_gets_no_lease() -> None:
    job = Job()
    job.says("a")
    job.flush()
    renew = Renew(info("b"), Status(Doing.RUNNING, 0), 1, 5, -1, "another")
    job.coordinator.renewed("b", renew, job.now)
    job.flush()

    assert set(job.membership.nodes) == {"a"}
    assert {word.stamp_ns for to, word in job.coordinator.outbox if to == "b"} == {None}
    assert job.membership.job == "a"


class Elected:
    """A voter that has become leader after another one, at 1,200 ms, with a command that is not committed."""

    def __init__(self, *uncommitted: tuple[Any, ...]) -> None:
        self.membership = Membership()
        self.raft = raft = RaftNode("a", self.membership, TIMING, random.Random(1), 0, founds=False)
        commands: list[tuple[Any, ...]] = [("begin", "a"), *(("join", name, tuple(info(name))) for name in "abc")]
        commands.append(("form", 0, ("a", "b", "c"), "h", 1))
        entries = [Entry(1, "voters", ("a", "b", "c")), *(Entry(1, "command", each) for each in commands)]
        raft.receive("b", Append(1, 0, 0, tuple(entries), len(entries), 0), 0)
        more = tuple(Entry(1, "command", each) for each in uncommitted)
        raft.receive("b", Append(1, len(entries), 1, more, len(entries), 0), 700 * MS)
        self.now = 1200 * MS
        raft.tick(self.now)
        raft.receive("c", Vote(2, True, True, 600 * MS), self.now)
        raft.receive("c", Vote(2, True, False, 600 * MS), self.now)
        self.coordinator = Coordinator(raft, self.membership, make_policy(1, 3), self.now)

    def says(self, name: str, doing: str = Doing.RUNNING, stamp: int = 5) -> Granted | None:
        self.coordinator.renewed(name, Renew(info(name), Status(doing, 0), stamp, 0, -1), self.now)
        answer = next((word for to, word in self.coordinator.outbox if to == name), None)
        self.coordinator.outbox.clear()
        return answer

    def commits(self) -> None:
        self.raft.receive("c", Appended(2, True, self.raft.log.last_index, self.now), self.now)
        self.coordinator.flush(self.now)


def test_a_new_leader_answers_nobody_before_it_knows_what_is_agreed() -> None:
    job = Elected(("gone", "b", "silent", False, False))
    assert job.says("b", Doing.IDLE) is None
    job.coordinator.flush(job.now)
    assert job.coordinator.outbox == []
    job.commits()
    assert "b" not in job.membership.nodes
    word = job.says("b", Doing.IDLE)
    assert word is not None
    assert (word.stamp_ns, word.view) == (None, None)


def test_a_new_leader_waits_for_the_leases_of_the_one_before() -> None:
    job = Elected()
    job.commits()
    job.says("a")
    for now_ms, is_there in ((1650, True), (1800, False)):  # heard last 500 ms ago by its own account
        job.now = now_ms * MS
        job.says("a")
        job.coordinator.flush(job.now)
        job.raft.flush(job.now)
        job.commits()
        assert ("c" in job.membership.nodes) is is_there, now_ms


def test_a_new_leader_keeps_the_voters_that_have_not_found_it_yet() -> None:
    job = Elected()
    for _ in range(3):
        job.commits()
    assert job.raft.voters == ("a", "b", "c")


def test_who_is_being_taken_out_gets_no_lease() -> None:
    job = Elected()
    job.commits()
    job.says("c")
    word = job.says("b")
    assert word is not None
    assert word.stamp_ns == 5
    job.coordinator.farewell("c", "killed")
    for now_ms in range(1300, 2300, 100):
        job.now = now_ms * MS
        job.says("a", stamp=now_ms)
        job.coordinator.flush(job.now)
    assert "b" in job.membership.nodes  # nobody has confirmed that it is to go
    word = job.says("b", Doing.IDLE, stamp=9)
    assert word is not None
    assert (word.stamp_ns, word.view) == (None, None)


def test_a_newcomer_ends_a_healthy_generation_after_a_checkpoint_if_asked() -> None:
    job = Job(make_policy(1, 3, joins_at_checkpoint=True)).runs("a", "b")
    for name in ("a", "b"):
        job.says(name)  # it has seen the generation, and starts its ranks
    for saved in (10, 10, 20):
        job.now += 100 * MS
        job.says("c")
        for name in ("a", "b"):
            job.says(name, Doing.RUNNING, 0, saved=saved)
        assert job.membership.phase == Phase.RUNNING
        job.flush()
    assert (job.membership.phase, job.membership.failures, job.membership.may_save) == (Phase.STOPPING, 0, True)
    for name in ("b", "c"):
        job.says(name, Doing.IDLE, 0)
    job.flush()
    assert job.membership.phase == Phase.STOPPING  # ranks of a still run
    job.says("a", Doing.IDLE, 0)
    job.flush()
    assert (job.membership.generation, job.membership.members) == (1, ("a", "b", "c"))


# ---- voters and views ----------------------------------------------------------------------------------------


def test_with_a_third_node_two_begin_to_learn_and_become_voters_at_once() -> None:
    """Of two voters none may be lost."""
    job = Job().runs("a", "b")
    job.coordinator.flush(job.now)
    assert job.raft.outbox == []
    job.says("c", Doing.IDLE)
    job.flush()
    job.flush()
    assert {to for to, _ in job.raft.outbox} == {"b", "c"}
    job.now += 100 * MS  # when it looks again
    job.answer("b")
    job.flush()
    assert job.raft.voters == ("a",)
    job.now += 100 * MS
    job.answer()
    job.flush()
    assert job.raft.voters == ("a", "b", "c")


def test_views_differ_in_the_place_alone_and_only_a_running_generation_has_places() -> None:
    membership = Membership()
    for index, name in enumerate(("a", "b", "c")):
        membership.apply(index, ("join", name, tuple(info(name)._replace(slots=index + 1))))
    views = Views(membership)
    assert (views.of("a").group_rank, views.of("a").phase) == (None, Phase.WAITING)
    membership.apply(9, ("form", 0, ("b", "c"), "h", 1))
    assert views.of("b")._replace(group_rank=None, first_rank=0) == views.of("a")
    assert [(views.of(name).group_rank, views.of(name).first_rank) for name in "bc"] == [(0, 0), (1, 2)]
    assert (views.of("a").world_size, views.of("a").group_size, views.of("a").store_port) == (5, 2, 1)
    membership.apply(10, ("failed", 0, "b", "why"))
    assert (views.of("b").group_rank, views.of("b").world_size, views.of("b").why) == (None, 0, "why")
