"""Raft without sockets or threads: each rule of the papers, by messages that the test carries by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from launcher.nodes import raft
from launcher.nodes.raft import RaftNode, Timing
from launcher.nodes.raft_log import Entry, Snapshot
from launcher.nodes.raft_messages import Append, Appended, Install, RaftMessage, RequestVote, TimeoutNow, Vote

MS = 1_000_000
TIMING = Timing(heartbeat_ns=50 * MS, election_ns=200 * MS)


class Machine:
    """Remembers what was applied."""

    def __init__(self) -> None:
        self.commands: list[Any] = []

    def apply(self, index: int, command: Any) -> None:
        self.commands.append(command)

    def snapshot(self) -> Any:
        return list(self.commands)

    def restore(self, state: Any) -> None:
        self.commands = list(state)


def make(name: str, *, founds: bool = False, seed: int = 1) -> RaftNode:
    return RaftNode(name, Machine(), TIMING, random.Random(seed), 0, founds=founds)


def applied(node: RaftNode) -> list[Any]:
    machine = node._machine
    assert isinstance(machine, Machine)
    return machine.commands


def leads(node: RaftNode) -> bool:
    return node.is_leader


def is_due(node: RaftNode) -> bool:
    return node.due_ns is not None


def voter(name: str, entries: tuple[Entry, ...] = (), *, leader: str = "b", term: int = 1, commit: int = 1) -> RaftNode:
    """Return a voter of a, b and c that a leader has told these entries at 0 ms."""
    node = make(name)
    first = Entry(1, "voters", ("a", "b", "c"))
    node.receive(leader, Append(term, 0, 0, (first, *entries), commit, 0), 0)
    node.outbox.clear()
    return node


def take(node: RaftNode) -> list[tuple[str, RaftMessage]]:
    sent, node.outbox[:] = list(node.outbox), []
    return sent


def stand(node: RaftNode, now_ns: int) -> None:
    """Have a voter of three become a candidate: one other answers its question ahead."""
    node.tick(now_ns)
    assert node.role == "asking"
    other = next(name for name in node.voters if name != node.name)
    node.receive(other, Vote(node.term + 1, True, True, None), now_ns)
    assert node.role == "candidate"
    take(node)


def elect(node: RaftNode, now_ns: int, *ages: int | None) -> None:
    """Have a voter of three become the leader."""
    stand(node, now_ns)
    others = [name for name in node.voters if name != node.name]
    for name, age in zip(others, ages or (None,), strict=False):
        node.receive(name, Vote(node.term, True, False, age), now_ns)
    assert node.is_leader
    node.flush(now_ns)
    take(node)


class Cluster:
    """Nodes, joined by a network without delay."""

    def __init__(self, count: int) -> None:
        self.now = 0
        self.nodes = {"n0": make("n0", founds=True)}
        self.cut: set[str] = set()
        self.nodes["n0"].tick(0)
        for number in range(1, count):
            self.add(f"n{number}")

    def add(self, name: str) -> None:
        """Let somebody new learn and then vote."""
        self.nodes[name] = make(name, seed=len(self.nodes) + 1)
        self.leader.learn([name], self.now)
        self.settle()
        assert self.leader.change_voters((*self.leader.voters, name), self.now)
        self.settle()

    @property
    def leader(self) -> RaftNode:
        return max((each for each in self.nodes.values() if each.is_leader), key=lambda each: each.term)

    def settle(self) -> None:
        while True:
            for node in self.nodes.values():
                node.flush(self.now)
            sent = [(node, *each) for node in self.nodes.values() for each in take(node)]
            if not sent:
                return
            for node, to, message in sent:
                if to in self.nodes and not {node.name, to} & self.cut:
                    self.nodes[to].receive(node.name, message, self.now)

    def run(self, for_ms: int) -> None:
        for _ in range(for_ms // 10):
            self.now += 10 * MS
            for node in self.nodes.values():
                if node.due_ns is not None:
                    node.tick(self.now)
            self.settle()


# ---- elections -----------------------------------------------------------------------------------------------


def test_a_founder_leads_at_once_and_alone() -> None:
    node = make("a", founds=True)
    node.tick(0)
    assert node.is_leader
    assert node.is_current
    assert node.predecessors_contact_ns is None
    assert node.propose(["x"], 0)
    assert applied(node) == [["x"]]


def test_who_does_not_found_never_stands_before_a_leader_has_spoken() -> None:
    node = make("a")
    assert node.due_ns is None
    node.tick(10_000 * MS)
    assert (node.role, node.term, node.outbox) == ("follower", 0, [])


def test_a_voter_has_one_vote_in_a_term() -> None:
    node = voter("a")
    for sender, is_granted in (("b", True), ("c", False), ("b", True)):
        node.receive(sender, RequestVote(5, 9, 9, False, False), 1000 * MS)
        assert take(node) == [(sender, Vote(5, is_granted, False, 1000 * MS))]


def test_a_new_term_brings_a_new_vote_and_an_old_one_none() -> None:
    node = voter("a")
    node.receive("b", RequestVote(5, 9, 9, False, False), 1000 * MS)
    node.receive("c", RequestVote(6, 9, 9, False, False), 1000 * MS)
    assert [vote.is_granted for _, vote in take(node) if isinstance(vote, Vote)] == [True, True]
    node.receive("c", RequestVote(5, 9, 9, False, False), 1000 * MS)
    assert take(node) == [("c", Vote(6, False, False, 1000 * MS))]


@pytest.mark.parametrize(
    ("last_term", "last_index", "is_granted"),
    [(2, 2, True), (2, 3, True), (3, 1, True), (2, 1, False), (1, 9, False)],
)
@pytest.mark.parametrize("is_ahead", [True, False])
def test_only_who_has_all_that_the_voter_has_gets_its_vote(
    last_term: int, last_index: int, is_granted: bool, is_ahead: bool
) -> None:
    node = voter("a", (Entry(2, "command", 1),), term=2)
    node.receive("c", RequestVote(9, last_index, last_term, is_ahead, False), 1000 * MS)
    ((_, vote),) = take(node)
    assert isinstance(vote, Vote)
    assert vote.is_granted is is_granted


def test_a_request_of_an_older_term_gets_nothing() -> None:
    node = voter("a", term=7)
    node.receive("c", RequestVote(6, 99, 99, False, False), 1000 * MS)
    assert take(node) == [("c", Vote(7, False, False, 1000 * MS))]


def test_a_question_ahead_changes_neither_the_term_nor_the_vote() -> None:
    node = voter("a")
    node.receive("c", RequestVote(7, 9, 9, True, False), 1000 * MS)
    assert take(node) == [("c", Vote(7, True, True, 1000 * MS))]
    assert node.term == 1
    node.receive("b", RequestVote(7, 9, 9, False, False), 1000 * MS)
    assert take(node) == [("b", Vote(7, True, False, 1000 * MS))]


def test_who_stands_asks_ahead_without_raising_its_term() -> None:
    node = voter("a")
    node.tick(1000 * MS)
    assert node.term == 1
    assert take(node) == [(name, RequestVote(2, 1, 1, True, False)) for name in ("b", "c")]
    node.tick(2000 * MS)
    assert node.term == 1


def test_the_cut_off_come_back_with_the_term_they_had() -> None:
    cluster = Cluster(3)
    term = cluster.leader.term
    cluster.cut = {"n2"}
    cluster.run(5000)
    cluster.cut = set()
    cluster.run(1000)
    assert {node.term for node in cluster.nodes.values()} == {term}
    assert cluster.leader.name == "n0"


@pytest.mark.parametrize("is_ahead", [True, False])
def test_who_hears_a_leader_answers_no_candidate(is_ahead: bool) -> None:
    node = voter("a")
    node.receive("c", RequestVote(9, 9, 9, is_ahead, False), 199 * MS)
    assert (take(node), node.term) == ([], 1)
    node.receive("c", RequestVote(9, 9, 9, is_ahead, False), 200 * MS)
    assert len(take(node)) == 1


def test_a_leader_with_a_majority_answers_no_candidate() -> None:
    cluster = Cluster(3)
    leader = cluster.leader
    leader.receive("n1", RequestVote(leader.term + 1, 99, 99, False, False), cluster.now)
    assert leader.is_leader
    assert take(leader) == []


def test_who_was_asked_to_stand_is_voted_for_though_the_leader_is_heard() -> None:
    node = voter("a")
    node.receive("c", RequestVote(2, 9, 9, False, True), 1 * MS)
    assert take(node) == [("c", Vote(2, True, False, 1 * MS))]


def test_two_votes_of_four_elect_nobody() -> None:
    node = make("a")
    node.receive("b", Append(1, 0, 0, (Entry(1, "voters", ("a", "b", "c", "d")),), 1, 0), 0)
    node.tick(1000 * MS)
    node.receive("c", Vote(2, True, True, None), 1000 * MS)
    assert node.role == "asking"
    node.receive("d", Vote(2, True, True, None), 1000 * MS)
    node.receive("c", Vote(2, True, False, None), 1000 * MS)
    assert node.role == "candidate"
    node.receive("c", Vote(2, True, False, None), 1000 * MS)  # the same once more
    node.receive("x", Vote(2, True, False, None), 1000 * MS)  # it does not vote
    assert node.role == "candidate"
    node.receive("b", Vote(2, True, False, None), 1000 * MS)
    assert node.is_leader


def test_a_refusal_of_a_newer_term_ends_a_candidacy() -> None:
    node = voter("a")
    stand(node, 1000 * MS)
    node.receive("b", Vote(9, False, False, None), 1000 * MS)
    assert (node.role, node.term) == ("follower", 9)


def test_a_leader_that_hears_from_no_majority_steps_down() -> None:
    cluster = Cluster(3)
    old = cluster.leader
    cluster.cut = {old.name}
    cluster.run(2000)
    assert not old.is_leader
    assert cluster.leader.name != old.name
    assert old.term < cluster.leader.term


def test_a_leader_with_a_majority_stays() -> None:
    cluster = Cluster(3)
    cluster.cut = {"n1"}
    cluster.run(5000)
    assert cluster.leader.name == "n0"


# ---- replication ---------------------------------------------------------------------------------------------


def test_a_command_is_applied_everywhere_once_a_majority_holds_it() -> None:
    cluster = Cluster(3)
    cluster.cut = {"n1", "n2"}
    cluster.leader.propose(["x"], cluster.now)
    cluster.settle()
    assert all(applied(node) == [] for node in cluster.nodes.values())
    cluster.cut = {"n1"}
    cluster.run(100)
    assert [applied(cluster.nodes[name]) for name in ("n0", "n1", "n2")] == [[["x"]], [], [["x"]]]
    cluster.cut = set()
    cluster.run(100)
    assert applied(cluster.nodes["n1"]) == [["x"]]


def test_entries_of_older_terms_are_committed_only_with_one_of_the_leader_s_own() -> None:
    node = voter("a", (Entry(1, "command", "old"),))
    elect(node, 1000 * MS)
    own = node.log.last_index
    assert own == 3
    node.receive("b", Appended(node.term, True, 2, 1000 * MS), 1001 * MS)
    assert node.commit_index == 1
    assert not node.is_current
    node.receive("b", Appended(node.term, True, 3, 1000 * MS), 1002 * MS)
    assert node.commit_index == 3
    assert applied(node) == ["old"]


def test_what_contradicts_the_leader_is_replaced() -> None:
    node = voter("a", (Entry(1, "command", "x"), Entry(1, "command", "y")))
    node.receive("c", Append(2, 2, 2, (Entry(2, "command", "z"),), 0, 7), 10 * MS)
    assert take(node) == [("c", Appended(2, False, 1, 7))]
    node.receive("c", Append(2, 1, 1, (Entry(2, "command", "z"),), 2, 8), 11 * MS)
    assert take(node) == [("c", Appended(2, True, 2, 8))]
    assert (node.log.last_index, applied(node)) == (2, ["z"])


def test_a_leader_goes_back_until_the_logs_agree() -> None:
    cluster = Cluster(3)
    cluster.cut = {"n2"}
    for number in range(5):
        cluster.leader.propose([number], cluster.now)
        cluster.run(100)
    cluster.cut = set()
    cluster.run(200)
    assert applied(cluster.nodes["n2"]) == [[number] for number in range(5)]


def test_entries_that_were_never_committed_are_lost_with_their_leader() -> None:
    cluster = Cluster(3)
    old = cluster.leader
    cluster.cut = {old.name}
    old.propose(["lost"], cluster.now)
    cluster.run(2000)
    cluster.leader.propose(["kept"], cluster.now)
    cluster.cut = set()
    cluster.run(2000)
    assert [applied(node) for node in cluster.nodes.values()] == [[["kept"]]] * 3


def test_a_follower_commits_no_more_than_agrees_for_sure() -> None:
    node = voter("a", (Entry(1, "command", "x"), Entry(1, "command", "of an older leader")))
    node.receive("c", Append(2, 2, 1, (), 3, 0), 10 * MS)
    assert node.commit_index == 2
    assert applied(node) == ["x"]


def test_an_older_leader_is_refused_with_the_newer_term() -> None:
    node = voter("a", term=5)
    node.receive("c", Append(4, 1, 1, (Entry(4, "command", 1),), 2, 7), 1)
    assert take(node) == [("c", Appended(5, False, 0, 7))]
    assert node.leader == "b"
    leader = Cluster(3).leader
    leader.receive("n1", Appended(leader.term + 1, False, 0, 0), 0)
    assert not leader.is_leader


def test_answers_to_an_older_term_count_for_nothing() -> None:
    node = voter("a")
    elect(node, 1000 * MS)
    node.receive("b", Appended(node.term - 1, True, node.log.last_index, 1), 1001 * MS)
    assert node.commit_index == 1


@pytest.fixture
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft, "_ENTRIES_KEPT", 3)


@pytest.mark.usefixtures("_short_logs")
def test_who_is_far_behind_is_sent_a_snapshot() -> None:
    cluster = Cluster(3)
    cluster.cut = {"n2"}
    for number in range(30):
        cluster.leader.propose([number], cluster.now)
        cluster.run(50)
    assert len(cluster.leader.log) <= 7
    cluster.cut = set()
    cluster.run(500)
    assert applied(cluster.nodes["n2"]) == [[number] for number in range(30)]
    assert cluster.nodes["n2"].voters == ("n0", "n1", "n2")
    cluster.add("n3")
    assert applied(cluster.nodes["n3"]) == [[number] for number in range(30)]


def test_a_snapshot_does_not_drop_what_follows_it_and_was_acknowledged() -> None:
    node = voter("a", tuple(Entry(1, "command", number) for number in range(2, 8)), commit=2)
    node.receive("b", Install(1, Snapshot(4, 1, ("a", "b", "c"), [2, 3, 4]), 9), 2)
    assert take(node) == [("b", Appended(1, True, 4, 9))]
    assert (node.log.last_index, node.commit_index, applied(node)) == (7, 4, [2, 3, 4])


def test_a_snapshot_replaces_a_log_that_does_not_hold_its_last_entry() -> None:
    node = voter("a", (Entry(1, "command", "x"),))
    node.receive("c", Install(2, Snapshot(2, 2, ("a", "c"), ["z"]), 9), 2)
    assert (node.log.last_index, node.commit_index, node.voters) == (2, 2, ("a", "c"))
    assert applied(node) == ["z"]


def test_a_snapshot_of_what_is_applied_already_changes_nothing() -> None:
    node = voter("a", tuple(Entry(1, "command", number) for number in range(2, 8)), commit=6)
    node.receive("b", Install(1, Snapshot(4, 3, (), []), 9), 2)
    assert (node.commit_index, node.voters, applied(node)) == (6, ("a", "b", "c"), [2, 3, 4, 5, 6])


# ---- voters --------------------------------------------------------------------------------------------------


def test_a_learner_gets_everything_and_does_not_count() -> None:
    cluster = Cluster(1)
    leader = cluster.leader
    cluster.nodes["x"] = make("x")
    leader.propose(["one"], cluster.now)
    leader.learn(["x"], cluster.now)
    assert not leader.has_caught_up("x", cluster.now)
    cluster.settle()
    assert leader.has_caught_up("x", cluster.now)
    assert applied(cluster.nodes["x"]) == [["one"]]
    cluster.cut = {"x"}
    leader.propose(["two"], cluster.now)
    assert applied(leader) == [["one"], ["two"]]
    assert not leader.has_caught_up("x", cluster.now)
    leader.learn([], cluster.now)
    assert not leader.has_caught_up("x", cluster.now)


def test_a_learner_whose_answer_was_long_on_its_way_has_not_caught_up() -> None:
    leader = make("a", founds=True)
    leader.tick(0)
    leader.learn(["x"], 0)
    leader.receive("x", Appended(leader.term, True, leader.log.last_index, 0), 900 * MS)
    assert not leader.has_caught_up("x", 900 * MS)


def test_one_voter_at_a_time() -> None:
    cluster = Cluster(3)
    leader = cluster.leader
    assert not leader.change_voters(("n0",), cluster.now)
    assert not leader.change_voters(("n0", "n1", "x"), cluster.now)
    assert not leader.change_voters((), cluster.now)
    assert leader.change_voters(("n0", "n1"), cluster.now)
    assert not leader.change_voters(("n0",), cluster.now)  # the last one is not committed yet
    cluster.settle()
    assert leader.change_voters(("n0",), cluster.now)


def test_a_single_voter_takes_in_several_at_once_and_decides_nothing_alone_from_then_on() -> None:
    cluster = Cluster(1)
    leader = cluster.leader
    for name in ("n1", "n2"):
        cluster.nodes[name] = make(name, seed=len(cluster.nodes) + 1)
    leader.learn(["n1", "n2"], cluster.now)
    cluster.settle()
    cluster.cut = {"n1", "n2"}
    assert leader.change_voters(("n0", "n1", "n2"), cluster.now)
    decided = leader.commit_index
    leader.propose(["x"], cluster.now)
    cluster.settle()
    assert leader.commit_index == decided
    cluster.cut = set()
    cluster.run(100)
    assert leader.commit_index == decided + 2
    assert {node.voters for node in cluster.nodes.values()} == {("n0", "n1", "n2")}


def test_several_voters_take_in_one_at_a_time() -> None:
    cluster = Cluster(3)
    leader = cluster.leader
    for name in ("n3", "n4"):
        cluster.nodes[name] = make(name, seed=len(cluster.nodes) + 1)
    leader.learn(["n3", "n4"], cluster.now)
    cluster.settle()
    assert not leader.change_voters(("n0", "n1", "n2", "n3", "n4"), cluster.now)
    assert leader.change_voters(("n0", "n1", "n2", "n3"), cluster.now)


def test_voters_do_not_change_where_the_new_ones_do_not_answer() -> None:
    cluster = Cluster(3)
    cluster.cut = {"n1", "n2"}
    cluster.run(250)
    assert cluster.leader.name == "n0"
    assert not cluster.leader.change_voters(("n0", "n1"), cluster.now)
    cluster.cut = {"n2"}
    cluster.run(60)
    assert cluster.leader.change_voters(("n0", "n1"), cluster.now)


def test_who_is_removed_is_not_sent_the_entry_that_removes_it() -> None:
    cluster = Cluster(3)
    leader = cluster.leader
    assert leader.change_voters(("n0", "n1"), cluster.now)
    leader.flush(cluster.now)
    assert {to for to, _ in take(leader)} == {"n1"}


def test_voters_change_only_after_an_entry_of_the_leader_s_own() -> None:
    node = voter("a")
    elect(node, 1000 * MS)
    assert not node.may_change_voters
    assert not node.change_voters(("a", "b"), 1001 * MS)
    node.receive("b", Appended(node.term, True, node.log.last_index, 1000 * MS), 1002 * MS)
    assert node.change_voters(("a", "b"), 1003 * MS)


def test_nobody_but_a_leader_changes_voters_or_proposes() -> None:
    node = voter("a")
    assert not node.change_voters(("a", "b"), 0)
    assert not node.propose(["x"], 0)
    assert node.log.last_index == 1


def test_a_change_that_is_overwritten_is_taken_back() -> None:
    node = voter("a", (Entry(1, "voters", ("a", "b")),))
    assert "".join(node.voters) == "ab"
    node.receive("c", Append(2, 1, 1, (Entry(2, "noop", None),), 1, 0), 1)
    assert "".join(node.voters) == "abc"


def test_who_is_being_removed_stands_without_counting_itself_until_that_is_agreed() -> None:
    node = voter("a", (Entry(1, "voters", ("b", "c", "d")),))
    assert is_due(node)
    node.tick(1000 * MS)
    assert take(node) == [(name, RequestVote(2, 2, 1, True, False)) for name in ("b", "c", "d")]
    node.receive("b", Vote(2, True, True, None), 1000 * MS)
    assert str(node.role) == "asking"
    node.receive("c", Vote(2, True, True, None), 1000 * MS)
    for name in ("b", "c"):
        assert str(node.role) == "candidate"
        node.receive(name, Vote(2, True, False, None), 1000 * MS)
    assert leads(node)
    assert node.predecessors_contact_ns == 0
    node.flush(1000 * MS)
    for name in ("b", "c"):
        assert leads(node)
        node.receive(name, Appended(2, True, 3, 1000 * MS), 1000 * MS)
    assert not leads(node)
    assert not is_due(node)
    assert TimeoutNow(2) in [message for _, message in take(node)]


def test_a_leader_that_is_removed_hands_over_to_who_has_most() -> None:
    cluster = Cluster(3)
    old = cluster.leader
    assert old.change_voters(("n1", "n2"), cluster.now)
    assert leads(old)  # until that is committed, by the others alone
    cluster.settle()
    assert not leads(old)
    assert cluster.leader.name in ("n1", "n2")
    assert cluster.leader.voters == ("n1", "n2")
    assert cluster.now == 0
    assert old.due_ns is None


def test_hand_over_asks_one_who_votes_and_an_old_request_is_ignored() -> None:
    cluster = Cluster(2)
    leader = cluster.leader
    leader.hand_over()
    assert take(leader) == [("n1", TimeoutNow(leader.term))]
    other = cluster.nodes["n1"]
    other.receive("n0", TimeoutNow(other.term - 1), 0)
    assert other.role == "follower"
    other.receive("n0", TimeoutNow(other.term), 0)
    assert take(other) == [("n0", RequestVote(other.term, other.log.last_index, other.log.last_term, False, True))]


def test_who_starts_again_is_somebody_new_and_the_others_go_on() -> None:
    cluster = Cluster(3)
    cluster.leader.propose(["x"], cluster.now)
    cluster.settle()
    cluster.cut = {"n2"}
    cluster.run(100)
    assert cluster.leader.change_voters(("n0", "n1"), cluster.now)
    cluster.settle()
    cluster.add("n2 again")
    cluster.cut = {"n2", "n0"}
    cluster.run(2000)
    assert cluster.leader.name in ("n1", "n2 again")
    assert cluster.leader.is_current
    assert applied(cluster.leader) == [["x"]]


# ---- what a new leader may derive ----------------------------------------------------------------------------


def test_a_vote_says_how_long_ago_a_leader_was_heard() -> None:
    never = make("a")
    never.receive("c", RequestVote(1, 0, 0, False, False), 400 * MS)
    assert take(never) == [("c", Vote(1, True, False, None))]
    node = voter("a")
    node.receive("c", RequestVote(2, 9, 9, False, False), 300 * MS)
    assert take(node) == [("c", Vote(2, True, False, 300 * MS))]


def test_a_new_leader_knows_until_when_another_can_have_led() -> None:
    node = voter("a")
    node.receive("b", Append(1, 1, 1, (), 1, 0), 100 * MS)
    stand(node, 1000 * MS)
    node.receive("c", Vote(2, True, False, 700 * MS), 1020 * MS)
    assert node.is_leader
    assert node.predecessors_contact_ns == 1020 * MS - 700 * MS
    node = voter("a")
    stand(node, 1000 * MS)
    node.receive("c", Vote(2, True, False, None), 1010 * MS)
    assert node.predecessors_contact_ns == 10 * MS  # its own word: 1,000 ms ago when it stood


def test_the_contact_of_a_leader_is_what_a_majority_has_answered() -> None:
    node = voter("a")
    elect(node, 1000 * MS)
    assert node.majority_contact_ns(1100 * MS) == 1000 * MS
    node.receive("b", Appended(node.term, True, 1, 1090 * MS), 1100 * MS)
    assert node.majority_contact_ns(1150 * MS) == 1090 * MS
    node.receive("b", Appended(node.term, True, 1, 1050 * MS), 1160 * MS)
    assert node.majority_contact_ns(1160 * MS) == 1090 * MS


def test_what_a_leader_has_once_answered_is_not_forgotten_when_the_voters_change() -> None:
    leader = make("a", founds=True)
    leader.tick(0)
    leader.learn(["b"], 0)
    leader.receive("b", Appended(leader.term, True, leader.log.last_index, 0), 1 * MS)
    assert leader.majority_contact_ns(90 * MS) == 90 * MS
    assert leader.change_voters(("a", "b"), 90 * MS)
    assert leader.majority_contact_ns(90 * MS) == 0
    leader.tick(1000 * MS)
    assert not leader.is_leader
    take(leader)
    leader.receive("b", RequestVote(leader.term + 1, 99, 99, False, False), 1000 * MS)
    ((_, vote),) = take(leader)
    assert isinstance(vote, Vote)
    assert vote.contact_age_ns == (1000 - 90) * MS


def test_the_word_that_the_leader_is_dead_brings_an_election_early() -> None:
    node = voter("a")
    node.leader_is_dead("c", 10 * MS)
    assert node.leader == "b"
    node.leader_is_dead("b", 10 * MS)
    assert node.due_ns is not None
    assert node.due_ns <= (10 + 13) * MS
    node.receive("c", RequestVote(2, 9, 9, True, False), 11 * MS)
    assert take(node) == [("c", Vote(2, True, True, 11 * MS))]


def test_of_those_who_know_that_the_leader_is_dead_the_first_stands_first() -> None:
    nodes = [voter(name, leader="c") for name in ("b", "a")]
    for node in nodes:
        node.leader_is_dead("c", 10 * MS)
    second, first = (node.due_ns for node in nodes)
    assert first is not None
    assert second is not None
    assert first < second <= first + 50 * MS


def test_a_voter_that_has_not_heard_of_the_death_yet_does_not_stick_to_the_dead_leader() -> None:
    told, other = voter("a", leader="c"), voter("b", leader="c")
    told.leader_is_dead("c", 10 * MS)
    told.tick(30 * MS)
    for _ in range(2):
        request = dict(take(told))["b"]
        assert isinstance(request, RequestVote)
        other.receive("a", request, 31 * MS)
        ((_, vote),) = take(other)
        told.receive("b", vote, 32 * MS)
    assert leads(told)


def test_who_hears_a_leader_after_the_death_of_another_one_waits_and_asks_as_ever() -> None:
    node = voter("a", leader="c")
    node.leader_is_dead("c", 10 * MS)
    node.receive("b", Append(2, 0, 0, (Entry(1, "voters", ("a", "b", "c")),), 1, 0), 20 * MS)
    assert node.due_ns is not None
    assert node.due_ns >= 220 * MS
    take(node)
    node.tick(500 * MS)
    assert {request.is_asked for _, request in take(node) if isinstance(request, RequestVote)} == {False}


def test_two_that_stood_at_once_after_a_death_do_not_wait_as_for_a_leader_that_is_silent() -> None:
    node = voter("a", leader="c")
    node.leader_is_dead("c", 10 * MS)
    node.tick(30 * MS)
    node.receive("b", Vote(2, True, True, None), 31 * MS)
    assert node.role == "candidate"
    assert node.due_ns is not None
    assert (31 + 50) * MS <= node.due_ns <= (31 + 101) * MS
    take(node)
    node.tick(140 * MS)
    requests = [request for _, request in take(node)]
    assert [isinstance(request, RequestVote) and request.is_asked for request in requests] == [False, False]
