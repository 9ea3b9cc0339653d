"""One node's protocol: messages, whom it is told to ask, and when it may go."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.nodes.membership import NodeInfo, Phase
from launcher.nodes.policy import Policy
from launcher.nodes.protocol import FORMAT, Farewell, Message, NodeProtocol
from launcher.nodes.raft_log import Entry, Snapshot
from launcher.nodes.raft_messages import Append, Appended, Install, RequestVote, TimeoutNow, Vote
from launcher.nodes.session_messages import Doing, Elsewhere, Granted, Renew, Status, View
from launcher.processes.message_format import MessageError

MS = 1_000_000
LEASE = 1000 * MS


def make(name: str, *, founds: bool = False, least: int = 1, most: int = 3) -> NodeProtocol:
    info = NodeInfo(f"host {name}", name, 1, name, 2)
    policy = Policy(least, most, False, 2, LEASE, 0, 30 * LEASE)
    return NodeProtocol(name, info, [("a", 1)], policy, random.Random(name), 0, founds=founds)


def is_released(node: NodeProtocol) -> bool:
    return node.is_released


class Nodes:
    """Protocols, joined by a network without delay."""

    def __init__(self, *names: str, least: int = 1, most: int = 3) -> None:
        self.now = 0
        self.all = {name: make(name, founds=name == "a", least=least, most=most) for name in names}
        self.cut: set[str] = set()

    def settle(self) -> None:
        for _ in range(60):
            sent = []
            for name, node in self.all.items():
                node.flush(self.now)
                sent += [(name, *each) for each in node.outbox]
                node.outbox.clear()
            if not sent:
                return
            for sender, to, address, message in sent:
                place = address[0] if address is not None else to
                if place in self.all and not {sender, place} & self.cut:
                    self.all[place].receive(sender, FORMAT.decode(FORMAT.encode(message)), self.now)
        raise AssertionError("they talk without end")

    def run(self, for_ms: int) -> None:
        for _ in range(for_ms // 10):
            self.now += 10 * MS
            self.settle()

    def views(self) -> list[View | None]:
        return [node.view for node in self.all.values()]


# ---- messages ------------------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 2**63)
TEXTS = st.text(max_size=5)
INFOS = st.builds(NodeInfo, TEXTS, TEXTS, NUMBERS, TEXTS, NUMBERS)
STATUSES = st.builds(Status, TEXTS, st.integers(-1, 9), TEXTS, st.booleans(), NUMBERS, NUMBERS)
VIEWS = st.builds(
    View,
    *(NUMBERS, st.integers(-1, 9), TEXTS, st.none() | NUMBERS, NUMBERS, NUMBERS, NUMBERS, TEXTS, NUMBERS, NUMBERS),
    *(TEXTS, st.booleans(), st.none() | NUMBERS),
)
JSON = st.recursive(st.none() | st.booleans() | NUMBERS | TEXTS, lambda each: st.lists(each, max_size=3), max_leaves=4)
ENTRIES = st.builds(Entry, NUMBERS, TEXTS, JSON)
VOTERS = st.lists(TEXTS, max_size=3).map(tuple)
ADDRESSES = st.none() | st.dictionaries(TEXTS, st.tuples(TEXTS, NUMBERS), max_size=3)
MESSAGES = st.one_of(
    st.builds(RequestVote, NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.booleans(), TEXTS),
    st.builds(Vote, NUMBERS, st.booleans(), st.booleans(), st.none() | NUMBERS, TEXTS),
    st.builds(Append, NUMBERS, NUMBERS, NUMBERS, st.lists(ENTRIES, max_size=3).map(tuple), NUMBERS, NUMBERS, TEXTS),
    st.builds(Appended, NUMBERS, st.booleans(), NUMBERS, NUMBERS, TEXTS),
    st.builds(Install, NUMBERS, st.builds(Snapshot, NUMBERS, NUMBERS, VOTERS, JSON), NUMBERS, TEXTS),
    st.builds(TimeoutNow, NUMBERS, TEXTS),
    st.builds(Renew, INFOS, STATUSES, NUMBERS, st.integers(-1, 9), st.integers(-1, 9)),
    st.builds(Granted, st.none() | NUMBERS, st.integers(-9, 9), st.none() | VIEWS, NUMBERS, ADDRESSES),
    st.builds(Elsewhere, st.none() | TEXTS, TEXTS, NUMBERS, TEXTS, TEXTS, st.booleans()),
    st.builds(Farewell, TEXTS, TEXTS),
)


@given(MESSAGES)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    arrived = FORMAT.decode(FORMAT.encode(message))
    assert arrived == message
    assert type(arrived) is type(message)


def test_what_is_no_message_is_refused() -> None:
    good = FORMAT.encode(TimeoutNow(1))
    for bad in (b"", b"[]", good[:-1], good.replace(b"TimeoutNow", b"Unknown"), good.replace(b'"term": 1', b'"x": 1')):
        with pytest.raises(MessageError):
            FORMAT.decode(bad)


# ---- together ------------------------------------------------------------------------------------------------


def test_three_nodes_make_a_generation_and_the_next_one_after_a_failure() -> None:
    nodes = Nodes("a", "b", "c", least=3)
    nodes.run(500)
    views = [view for view in nodes.views() if view is not None]
    assert [(view.generation, view.phase, view.group_rank) for view in views] == [
        (0, Phase.RUNNING, rank) for rank in range(3)
    ]
    assert nodes.all["a"].raft.voters == ("a", "b", "c")
    nodes.all["c"].say(Status(Doing.FAILED, 0, "it broke"), nodes.now)
    nodes.settle()
    assert {view.phase for view in nodes.views() if view is not None} == {Phase.STOPPING}
    for node in nodes.all.values():
        node.say(Status(Doing.IDLE, 0), nodes.now)
    nodes.run(200)
    assert {(view.generation, view.failures) for view in nodes.views() if view is not None} == {(1, 1)}


def test_when_the_leader_is_lost_another_one_takes_it_out() -> None:
    nodes = Nodes("a", "b", "c")
    nodes.run(500)
    nodes.cut = {"a"}
    for node in nodes.all.values():
        node.say(Status(Doing.RUNNING, 0), nodes.now)
    fence = nodes.all["a"].session.fence_ns
    assert fence is not None
    while "a" in nodes.all["b"].membership.nodes:
        nodes.run(10)
        assert nodes.now < 10 * LEASE
    assert nodes.now > fence
    assert not nodes.all["a"].session.holds_lease(nodes.now)
    assert not nodes.all["a"].raft.is_leader


def test_who_asks_one_that_does_not_lead_is_told_who_does() -> None:
    nodes = Nodes("a", "b", "c")
    nodes.run(500)
    node = nodes.all["b"]
    renew = Renew(NodeInfo("h", "x", 1, "", 1), Status(Doing.IDLE, -1), 1, -1, -1)
    node.receive("x", renew, nodes.now)
    assert node.outbox == [("x", None, Elsewhere("a", "a", 1))]
    stranger = make("z")
    stranger.receive("x", renew, 0)
    assert stranger.outbox == [("x", None, Elsewhere(None, "", 0))]


def test_a_leader_that_leaves_hands_over_and_is_released_when_another_votes_in_its_place() -> None:
    nodes = Nodes("a", "b", "c")
    nodes.run(500)
    leaver = nodes.all["a"]
    assert is_released(leaver)  # nothing is asked of who does not leave
    nodes.cut = {"b", "c"}
    leaver.say(Status(Doing.LEFT, 0), nodes.now)
    nodes.settle()
    assert not is_released(leaver)
    nodes.cut = set()
    nodes.run(2000)
    assert is_released(leaver)
    leaders = [name for name, node in nodes.all.items() if node.raft.is_leader]
    assert leaders in (["b"], ["c"])
    assert "a" not in nodes.all[leaders[0]].membership.nodes
    assert "a" not in nodes.all[leaders[0]].raft.voters


def test_the_last_node_may_leave() -> None:
    nodes = Nodes("a")
    nodes.run(100)
    nodes.all["a"].say(Status(Doing.LEFT, 0), nodes.now)
    nodes.settle()
    assert nodes.all["a"].is_released


def ends(nodes: Nodes, exit_code: int) -> None:
    nodes.all["b"].say(Status(Doing.ENDING, 0, "enough", exit_code=exit_code), nodes.now)
    nodes.run(200)
    view = nodes.all["b"].view
    assert view is not None
    assert view.exit_code == exit_code
    assert is_released(nodes.all["b"])


def tell_the_story(nodes: Nodes) -> None:
    """Have all give an account, and the leader decide."""
    for node in nodes.all.values():
        node.accounts.give(0, "seen", nodes.now)
    nodes.settle()
    (gathered,) = nodes.all["a"].take_gathered()
    nodes.all["a"].decided(gathered.generation, "the story")
    nodes.settle()


@pytest.mark.parametrize("exit_code", [0, 7])
def test_the_leader_stays_until_all_know_that_the_job_has_ended(exit_code: int) -> None:
    nodes = Nodes("a", "b", "c")
    nodes.run(500)
    if exit_code:
        nodes.all["b"].say(Status(Doing.FAILED, 0, "it broke"), nodes.now)
        nodes.settle()
        tell_the_story(nodes)
    nodes.cut = {"c"}
    ends(nodes, exit_code)
    assert not is_released(nodes.all["a"])
    nodes.cut = set()
    nodes.run(500)
    assert is_released(nodes.all["a"])


def test_the_leader_of_a_job_that_has_ended_badly_stays_until_the_story_is_told() -> None:
    nodes = Nodes("a", "b", "c")
    nodes.run(500)
    ends(nodes, 7)
    nodes.run(500)
    assert is_released(nodes.all["c"])
    assert nodes.all["a"]._coordinator is not None
    assert nodes.all["a"]._coordinator.has_told_all
    assert not is_released(nodes.all["a"])
    tell_the_story(nodes)
    assert is_released(nodes.all["a"])


def test_the_leader_of_a_job_that_has_ended_well_waits_for_no_story() -> None:
    nodes = Nodes("a", "b", "c")
    nodes.run(500)
    ends(nodes, 0)
    nodes.run(500)
    assert is_released(nodes.all["a"])


def test_the_leader_of_a_job_that_has_ended_before_its_first_generation_waits_for_no_story() -> None:
    nodes = Nodes("a", "b", least=3)
    nodes.run(200)
    assert nodes.all["a"].membership.generation == -1
    nodes.all["b"].say(Status(Doing.ENDING, -1, "too few", exit_code=7), nodes.now)
    nodes.run(500)
    assert nodes.all["a"].membership.phase == Phase.ENDED
    assert is_released(nodes.all["a"])


def test_a_farewell_ends_the_generation_at_once() -> None:
    nodes = Nodes("a", "b", "c", least=2)
    nodes.run(500)
    for node in nodes.all.values():
        node.say(Status(Doing.RUNNING, 0), nodes.now)
    nodes.settle()
    nodes.cut = {"c"}
    nodes.all["a"].receive("one shot", Farewell("c", "killed"), nodes.now)
    nodes.settle()
    view = nodes.all["b"].view
    assert view is not None
    assert (view.phase, view.why) == (Phase.STOPPING, "killed")


def test_what_is_due_is_due_in_the_future() -> None:
    nodes = Nodes("a", "b", "c")
    nodes.run(500)
    for node in nodes.all.values():
        assert nodes.now < node.due_ns <= nodes.now + 100 * MS


# ---- a job that is begun a second time -----------------------------------------------------------------------


def begun_again(nodes: Nodes) -> NodeProtocol:
    """Lose the node that began the job, have the others go on, and start it again under another name."""
    nodes.run(1500)
    for node in nodes.all.values():
        node.say(Status(Doing.RUNNING, 0), nodes.now)
    nodes.cut.add("a")
    nodes.run(1500)
    nodes.cut.clear()
    again = nodes.all["a"] = make("a2", founds=True, least=2)
    again.session.info = again.session.info._replace(address="a")
    return again


def test_who_begins_a_job_again_gives_it_up_for_the_one_that_lives() -> None:
    nodes = Nodes("a", "b", "c", least=2)
    again = begun_again(nodes)
    again.flush(nodes.now)
    again.outbox.clear()
    assert again.raft.is_leader

    nodes.run(600)

    assert not again.raft.is_leader
    assert again.session.job == "a"
    assert nodes.all["b"].membership.nodes["a"].host == "host a2"  # the network calls it by its place


def test_a_leader_shows_itself_only_where_nobody_of_its_job_is() -> None:
    nodes = Nodes("a", "b", "c", least=2)
    nodes.run(500)
    leader = nodes.all["a"]
    leader._contacts = (("a", 1), ("b", 1), ("z", 1))
    leader._show_ns = nodes.now
    leader.flush(nodes.now)
    assert [to for _, to, message in leader.outbox if isinstance(message, Elsewhere)] == [("z", 1)]


def test_a_leader_shows_itself_where_a_node_of_its_job_has_fallen_silent() -> None:
    """Its launcher may be started again at once, and must not begin another job before this one has missed it."""
    nodes = Nodes("a", "b", "c", least=2)
    nodes.run(500)
    leader = nodes.all["a"]
    leader._contacts = (("a", 1), ("b", 1))
    nodes.cut = {"b"}
    nodes.run(LEASE // 2 // MS)
    assert "b" in leader.membership.nodes
    leader._show_ns = nodes.now
    leader.outbox.clear()
    leader.flush(nodes.now)
    assert [to for _, to, message in leader.outbox if isinstance(message, Elsewhere)] == [("b", 1)]


def test_a_job_that_has_made_a_generation_is_given_up_for_nobody() -> None:
    nodes = Nodes("a", "b", least=2)
    nodes.run(1500)
    assert nodes.all["a"].membership.phase == Phase.RUNNING

    nodes.all["a"].receive("stranger", Elsewhere("stranger", "s", 1), nodes.now)

    assert nodes.all["a"].raft.is_leader


def test_who_begins_a_job_again_takes_no_entry_of_the_log_of_the_one_that_lives() -> None:
    """Both logs have entries of the same terms and indices, and nothing else in common."""
    nodes = Nodes("a", "b", "c", least=2)
    again = begun_again(nodes)
    again._show_ns = nodes.all["b"]._show_ns = nodes.all["c"]._show_ns = 1 << 62  # nobody tells it
    again.flush(nodes.now)
    (leader,) = (node for node in nodes.all.values() if node.raft.is_leader and node is not again)
    leader.raft.learn(["a"], nodes.now)
    nodes.run(600)

    assert again.raft.is_leader
    assert again.membership.job == "a2"
    assert list(again.membership.nodes) == ["a2"]


def given_up_with_a_newcomer(nodes: Nodes) -> tuple[NodeProtocol, NodeProtocol]:
    """Have a newcomer join a job that was begun again, while the leader of the first one cannot show itself."""
    again = begun_again(nodes)
    newcomer = nodes.all["d"] = make("d", least=2)
    others = {"b", "c"}
    nodes.cut |= others
    nodes.run(250)
    nodes.cut -= others
    assert newcomer.session.job == "a2"
    assert newcomer.view is not None
    assert newcomer.view.generation == -1
    return again, newcomer


def test_who_has_joined_a_job_that_is_given_up_follows_to_the_one_that_lives() -> None:
    nodes = Nodes("a", "b", "c", least=2, most=4)
    again, newcomer = given_up_with_a_newcomer(nodes)

    nodes.run(900)

    assert again.session.job == "a"
    assert newcomer.session.job == "a"


def test_who_has_joined_a_job_whose_only_node_is_dead_looks_for_another_one_after_a_silence() -> None:
    nodes = Nodes("a", "b", "c", least=2, most=4)
    _, newcomer = given_up_with_a_newcomer(nodes)
    nodes.all["a"] = make("a3")  # the launcher was killed and started again, and does not begin a job this time
    nodes.all["a"].session.info = nodes.all["a"].session.info._replace(address="a")
    nodes.run(2800)
    assert newcomer.session.job == "a2"

    nodes.run(300)
    assert newcomer.session.job == ""
    newcomer.say(Status(Doing.IDLE, -1, "anything"), nodes.now)
    assert newcomer.session.outbox == []

    nodes.run(1500)
    assert newcomer.session.job == "a"


def test_of_two_jobs_that_wait_the_one_of_the_greater_name_gives_way() -> None:
    waiting = [make(name, founds=True, least=2) for name in ("a", "b")]
    for node in waiting:
        node.flush(0)
    shown = [node._hint() for node in waiting]
    for node, other in ((waiting[0], shown[1]), (waiting[1], shown[0])):
        node.receive(str(other.leader), other, 1)

    assert [node.raft.is_leader for node in waiting] == [True, False]
    assert [node.session.job for node in waiting] == ["a", ""]
