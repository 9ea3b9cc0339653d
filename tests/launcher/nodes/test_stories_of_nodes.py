"""How several nodes come to one story of a failure: protocols, joined without sockets, and planes with sockets."""

from __future__ import annotations

import contextlib
import queue
import select
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.nodes import gathering
from launcher.nodes.failure_messages import Account, LookDone, LookRequest, Proceed, Story, Suspicion
from launcher.nodes.frames import MAX_PAYLOAD
from launcher.nodes.gathering import LONGEST_GATHERING_NS, Gathered, Heard, Word, longest_wait_ns
from launcher.nodes.membership import Phase
from launcher.nodes.plane import Plane, PlaneSettings
from launcher.nodes.policy import Policy
from launcher.nodes.protocol import FORMAT, Farewell, Message
from launcher.nodes.session import Address
from launcher.nodes.session_messages import Doing, Status
from launcher.nodes.transport import Transport
from tests.launcher.nodes.test_protocol import LEASE, MS, Nodes, make

GATHERING_MS = LONGEST_GATHERING_NS // MS
WAIT_MS = -(-longest_wait_ns(3) // (10 * MS)) * 10
"""In steps of 10 ms, as time passes here."""
SECRET = b"0123456789abcdef"
PATIENCE = 60.0
SECOND = 1_000_000_000


class Job(Nodes):
    """Nodes whose generation 0 runs; whoever leads decides at once, except where the test does."""

    def __init__(self, *names: str, least: int = 3, most: int = 3) -> None:
        super().__init__(*names, least=least, most=most)
        self.heard: dict[str, list[Heard]] = {name: [] for name in names}
        self.gathered: list[tuple[str, Gathered]] = []
        self.decides = True
        while {None if view is None else view.generation for view in self.views()} != {0}:
            self.run(10)
            assert self.now < 10 * LEASE
        self.run(200)
        self.say_all(Doing.RUNNING, 0)

    def say_all(self, doing: str, generation: int) -> None:
        for node in self.all.values():
            node.say(Status(doing, generation), self.now)
        self.settle()

    def settle(self) -> None:
        super().settle()
        while self._listen():
            super().settle()

    def _listen(self) -> bool:
        """Take what nodes hear, and decide; return whether anything may follow."""
        has_decided = False
        for name, node in self.all.items():
            self.heard.setdefault(name, []).extend(node.accounts.heard)
            node.accounts.heard.clear()
            for gathered in node.take_gathered():
                self.gathered.append((name, gathered))
                if self.decides:
                    node.decided(gathered.generation, f"{gathered.generation}: {sorted(gathered.accounts.values())}")
                    has_decided = True
        return has_decided

    def fails(self, name: str, generation: int = 0, why: str = "it broke") -> None:
        """Have it agreed that the generation is over."""
        self.all[name].say(Status(Doing.FAILED, generation, why), self.now)
        self.settle()

    def suspects(self, *names: str) -> None:
        for name in names:
            self.all[name].accounts.suspect(0)
        self.settle()

    def looks(self, *names: str) -> None:
        for name in names:
            self.all[name].accounts.looked(0)
        self.settle()

    def gives(self, *names: str, generation: int = 0) -> None:
        for name in names:
            self.all[name].accounts.give(generation, f"seen by {name}", self.now, 3)
        self.settle()

    def told(self) -> dict[str, list[Heard]]:
        """Return what each node has heard since it was asked last."""
        told, self.heard = self.heard, {name: [] for name in self.all}
        return told

    def next_generation(self, failed: str) -> None:
        """Have the current generation fail on a node, and the next one made."""
        view = self.all[failed].view
        assert view is not None
        self.fails(failed, view.generation)
        self.say_all(Doing.IDLE, view.generation)
        self.run(100)
        assert {each.generation for each in self.views() if each is not None} == {view.generation + 1}
        self.say_all(Doing.RUNNING, view.generation + 1)

    @property
    def leader(self) -> str:
        (leader,) = (name for name, node in self.all.items() if node.raft.is_leader)
        return leader


LOOK, PROCEED, SILENCE = Heard(0, Word.LOOK), Heard(0, Word.PROCEED), Heard(0, Word.SILENCE)
ALL_OF_0 = Heard(0, Word.STORY, "0: ['seen by a', 'seen by b', 'seen by c']")
NOTHING: dict[str, list[Heard]] = {name: [] for name in "abc"}

# ---- messages ------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=5)
GENERATIONS = st.integers(-1, 2**63)
OF_FAILURES = st.one_of(
    *(st.builds(kind, GENERATIONS, TEXTS) for kind in (Suspicion, LookRequest, LookDone, Proceed)),
    *(st.builds(kind, GENERATIONS, TEXTS, TEXTS) for kind in (Account, Story)),
)


@given(OF_FAILURES)
def test_what_is_said_of_failures_arrives_as_it_was_sent(message: Message) -> None:
    arrived = FORMAT.decode(FORMAT.encode(message))
    assert (arrived, type(arrived)) == (message, type(message))


# ---- protocols without sockets: looks ------------------------------------------------------------------------


@pytest.mark.parametrize("suspecting", ["a", "b"])
def test_a_suspicion_makes_the_others_look_whoever_leads_and_all_looks_let_it_proceed(suspecting: str) -> None:
    job = Job("a", "b", "c")
    assert job.leader == "a"
    job.suspects(suspecting)
    assert job.told() == {name: [] if name == suspecting else [LOOK] for name in "abc"}
    others = set("abc") - {suspecting}
    job.looks(suspecting, others.pop())
    assert job.told() == NOTHING
    job.looks(*others)
    assert job.told() == {name: [PROCEED] if name == suspecting else [] for name in "abc"}


def test_when_the_one_that_is_waited_for_is_killed_who_suspects_proceeds() -> None:
    job = Job("a", "b", "c")
    job.suspects("b")
    job.looks("a", "b")
    job.told()
    job.cut = {"c"}
    job.all["a"].receive("one shot", Farewell("c", "the launcher of node host c was killed"), job.now)
    job.settle()
    assert job.told()["b"] == [PROCEED]


def test_looks_alone_are_no_failure() -> None:
    job = Job("a", "b", "c")
    job.suspects("b")
    job.looks("a", "b", "c")
    job.told()
    job.run(2 * WAIT_MS)
    assert (job.gathered, job.told()) == ([], NOTHING)
    job.gives("a", "b", "c")
    job.fails("c", why="c it was")
    assert job.told() == {name: [ALL_OF_0] for name in "abc"}
    assert [gathered.why for _, gathered in job.gathered] == ["c it was"]


# ---- protocols without sockets: the story --------------------------------------------------------------------


def test_all_accounts_make_one_story_that_every_node_hears_at_once() -> None:
    job = Job("a", "b", "c")
    job.fails("b", why="rank 2 was killed")
    job.gives("b", "a")
    assert job.gathered == []
    job.gives("c")
    ((leader, gathered),) = job.gathered
    assert leader == job.leader
    assert gathered == Gathered(0, {name: f"seen by {name}" for name in "bac"}, (), (), "rank 2 was killed", 0)
    assert job.told() == {name: [ALL_OF_0] for name in "abc"}
    job.run(2 * WAIT_MS)
    assert len(job.gathered) == 1
    assert job.told() == NOTHING


def test_accounts_that_come_before_the_nodes_have_agreed_that_it_is_over_are_kept_until_then() -> None:
    job = Job("a", "b", "c")
    job.gives("a", "b", "c")
    assert (job.gathered, job.told()) == ([], NOTHING)
    job.fails("b", why="rank 2 was killed")
    assert [gathered.why for _, gathered in job.gathered] == ["rank 2 was killed"]
    assert job.told() == {name: [ALL_OF_0] for name in "abc"}


def test_a_silent_node_is_waited_for_until_the_time_is_up() -> None:
    job = Job("a", "b", "c")
    job.fails("b")
    job.gives("a", "b")
    job.run(GATHERING_MS - 10)
    assert job.gathered == []
    job.run(10)
    ((_, gathered),) = job.gathered
    assert (gathered.silent, gathered.lost) == (("host c",), ())
    story = Heard(0, Word.STORY, "0: ['seen by a', 'seen by b']")
    assert job.told() == {name: [story] for name in "abc"}

    job.gives("c")
    assert job.told() == {"a": [], "b": [], "c": [story]}
    job.run(2 * WAIT_MS)
    assert job.told() == NOTHING


def test_a_node_whose_launcher_was_killed_is_lost_and_not_waited_for() -> None:
    job = Job("a", "b", "c")
    job.gives("b")
    job.cut = {"c"}
    job.all["a"].receive("one shot", Farewell("c", "the launcher of node host c was killed"), job.now)
    job.gives("a")
    ((_, gathered),) = job.gathered
    assert (gathered.silent, gathered.lost) == ((), ("host c",))
    assert gathered.why == "the launcher of node host c was killed"
    told = job.told()
    assert told["a"] == told["b"] == [Heard(0, Word.STORY, "0: ['seen by a', 'seen by b']")]


def test_a_node_that_is_no_member_is_not_heard() -> None:
    job = Job("a", "b", "c", most=4)
    job.all["d"] = make("d", least=3, most=4)
    job.run(200)
    assert "d" in job.all[job.leader].membership.nodes
    assert job.all[job.leader].membership.members == ("a", "b", "c")
    job.suspects("d")
    job.fails("b")
    job.gives("a", "b", "d")
    assert (job.gathered, job.told()) == ([], {**NOTHING, "d": []})
    job.gives("c")
    assert job.told() == {**{name: [ALL_OF_0] for name in "abc"}, "d": []}


def test_accounts_of_another_generation_than_the_current_one_are_answered_with_silence() -> None:
    job = Job("a", "b", "c")
    job.next_generation("b")
    for generation in (0, 2):
        job.gives("a", "b", "c", generation=generation)
        job.run(WAIT_MS)
        assert job.told() == {name: [Heard(generation, Word.SILENCE)] for name in "abc"}
    assert job.gathered == []


def test_the_next_failure_is_told_while_the_former_is_not_yet() -> None:
    job = Job("a", "b", "c")
    job.decides = False
    job.gives("a", "b", "c")
    job.next_generation("b")
    assert [gathered.generation for _, gathered in job.gathered] == [0]
    job.fails("a", 1)
    job.gives("c", generation=1)
    job.all["a"].decided(0, "the first story")
    job.settle()
    first = Heard(0, Word.STORY, "the first story")
    assert job.told() == {"a": [first], "b": [first], "c": [SILENCE, first]}
    job.gives("a", "b", generation=1)
    assert [gathered.generation for _, gathered in job.gathered] == [0, 1]
    job.all["a"].decided(1, "the second story")
    job.settle()
    assert job.told() == {name: [Heard(1, Word.STORY, "the second story")] for name in "abc"}
    job.run(2 * WAIT_MS)
    assert job.told() == NOTHING


def test_messages_of_another_job_and_of_none_are_not_heard() -> None:
    job = Job("a", "b", "c")
    job.fails("b")
    for other in ("", "b", "another"):
        for sender in "bc":
            for said in (Account(0, "of another job", other), Suspicion(0, other), LookDone(0, other)):
                job.all["a"].receive(sender, said, job.now)
            for told in (Story(0, "of another job", other), LookRequest(0, other), Proceed(0, other)):
                job.all["b"].receive("a", told, job.now)
    job.run(GATHERING_MS + 10)
    assert (job.gathered, job.told()) == ([], NOTHING)
    job.gives("a")
    job.run(GATHERING_MS)
    assert [list(gathered.accounts) for _, gathered in job.gathered] == [["a"]]


def test_a_node_that_has_no_job_hears_nothing_of_failures_and_keeps_nothing() -> None:
    stranger = make("z")
    for message in (Account(0, "seen"), Suspicion(0), LookDone(0), Story(0, "seen"), LookRequest(0), Proceed(0)):
        stranger.receive("a", message, 0)
    stranger.accounts.suspect(0)
    stranger.accounts.give(0, "seen", 0)
    stranger.flush(0)
    assert (stranger.accounts.heard, stranger.take_gathered(), stranger.accounts.outbox) == ([], [], [])
    assert not [each for _, _, each in stranger.outbox if isinstance(each, (Account, Suspicion))]


def test_who_does_not_lead_gathers_nothing_and_tells_nothing() -> None:
    job = Job("a", "b", "c")
    job.fails("b")
    follower = job.all["b"]
    for sender in "abc":
        follower.receive(sender, Account(0, "seen", "a"), job.now)
        follower.receive(sender, Suspicion(0, "a"), job.now)
    job.run(GATHERING_MS)
    follower.decided(0, "a story of its own")
    job.run(GATHERING_MS)
    assert (job.gathered, job.told()) == ([], NOTHING)


# ---- protocols without sockets: leaders ----------------------------------------------------------------------


def test_a_new_leader_hears_the_accounts_that_are_repeated_and_tells_the_story() -> None:
    job = Job("a", "b", "c")
    job.fails("b")
    job.gives("b")
    job.cut = {"a"}
    job.gives("c")
    job.run(WAIT_MS)
    assert job.all["b"].raft.is_leader or job.all["c"].raft.is_leader
    told = job.told()
    assert set(told["b"]) == set(told["c"]) == {Heard(0, Word.STORY, "0: ['seen by b', 'seen by c']")}
    ((_, gathered),) = [(name, each) for name, each in job.gathered if name != "a"]
    assert set(gathered.silent + gathered.lost) <= {"host a"}


def test_a_new_leader_tells_the_story_of_the_former_one() -> None:
    """One failure has one story, and who was late for the former leader is told that one."""
    job = Job("a", "b", "c")
    job.fails("b")
    job.gives("a", "b")
    job.run(GATHERING_MS)
    assert [(name, gathered.silent) for name, gathered in job.gathered] == [("a", ("host c",))]
    job.run(200)  # until all know that it is over
    stories = job.told()
    (told,) = {each for heard in stories.values() for each in heard}
    job.cut = {"a"}
    while not (job.all["b"].raft.is_leader or job.all["c"].raft.is_leader):
        job.run(10)
        assert job.now < 20 * LEASE
    job.gives("c")
    job.run(WAIT_MS)
    assert job.gathered[1:] == []
    assert job.told()["c"] == [told]


def test_who_leads_no_more_has_forgotten_what_it_gathered_and_is_not_woken_for_it() -> None:
    """Two leaders would tell two stories; and what is due for ever would have the plane turn without a pause."""
    job = Job("a", "b", "c")
    job.decides = False
    job.fails("b")
    job.gives("a", "b", "c")
    assert [name for name, _ in job.gathered] == ["a"]
    job.gives("b")  # one more that nobody has answered
    job.cut = {"a"}
    old = job.all["a"]
    while old.raft.is_leader:
        job.run(10)
        assert job.now < 20 * LEASE
    old.decided(0, "by one that leads no more")
    for _ in range(WAIT_MS // 10):
        job.run(10)
        assert old.due_ns > job.now
    assert old._gatherer.due_ns is None
    assert job.told()["a"] == [SILENCE]


def test_an_old_leader_with_a_gathering_under_way_is_not_woken_without_end() -> None:
    job = Job("a", "b", "c")
    job.fails("b")
    job.gives("b")
    job.cut = {"a"}
    for _ in range(3 * LEASE // MS // 10):
        job.run(10)
        assert job.all["a"].due_ns > job.now
    assert not job.all["a"].raft.is_leader


def test_when_nobody_leads_that_is_told_once_after_the_bound() -> None:
    job = Job("a", "b", "c")
    job.cut = {"a", "b", "c"}
    job.gives("b")
    job.run(WAIT_MS - 10)
    assert job.heard == NOTHING
    job.run(10)
    assert job.heard == {"a": [], "b": [SILENCE], "c": []}
    job.run(2 * WAIT_MS)
    assert job.heard == {"a": [], "b": [SILENCE], "c": []}


def test_a_story_that_is_never_decided_is_silence_everywhere() -> None:
    job = Job("a", "b", "c")
    job.decides = False
    job.fails("b")
    job.gives("a", "b", "c")
    job.run(2 * WAIT_MS)
    assert job.heard == {name: [SILENCE] for name in "abc"}


# ---- protocols without sockets: when each is due -------------------------------------------------------------


@pytest.mark.parametrize("last", ["suspects", "looks", "gives", "fails", "decides not", "is told"])
def test_what_is_due_lies_ahead_after_each_turn(last: str) -> None:
    """Else the thread of the plane would turn without end, and without a pause."""
    job = Job("a", "b", "c")
    job.decides = last == "is told"
    steps = ("suspects", "looks", "gives", "fails", "decides not", "is told")
    reached = steps[: steps.index(last) + 1]
    job.suspects("b")
    if "looks" in reached:
        job.looks("a", "b")
    if "gives" in reached:
        job.gives("b")
    if "fails" in reached:
        job.fails("b")
    if "decides not" in reached:
        job.gives("a", "c")
    for _ in range((WAIT_MS + GATHERING_MS) // 10):
        job.run(10)
        for name, node in job.all.items():
            assert node.due_ns > job.now, name


def test_a_wait_for_accounts_or_for_the_story_is_due_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the plane is woken for it, not by chance for something else."""
    job = Job("a", "b", "c")
    job.gives("b")
    job.fails("b")
    leader, node = job.all["a"], job.all["b"]
    monkeypatch.setattr(type(leader.raft), "due_ns", None)
    assert leader._coordinator is not None
    leader.session._renew_ns = node.session._renew_ns = leader._coordinator.due_ns = 1 << 62
    assert leader.due_ns == job.now + LONGEST_GATHERING_NS
    assert job.now < node.due_ns < job.now + longest_wait_ns(3)
    assert node.due_ns == node.accounts.due_ns


EVENTS = st.lists(
    st.tuples(st.sampled_from(["gives", "suspects", "looks", "wait", "cut", "mend"]), st.sampled_from("abc")),
    max_size=12,
)


@given(EVENTS)
def test_nodes_that_can_speak_to_each_other_hear_one_story(events: list[tuple[str, str]]) -> None:
    """Whatever was lost while one of them was cut off for a while, which no leader misses yet."""
    job = Job("a", "b", "c")
    given: set[str] = set()
    job.fails("b")
    for what, name in events:
        if what == "gives":
            job.gives(name)
            given.add(name)
        elif what == "suspects":
            job.suspects(name)
        elif what == "looks":
            job.looks(name)
        elif what == "cut":
            job.cut = {name} - {"a"}
        elif what == "mend":
            job.cut = set()
        job.run(50)
    job.cut = set()
    job.run(WAIT_MS + LEASE // MS)
    stories = {each for heard in job.heard.values() for each in heard if each.word == Word.STORY}
    assert len(stories) == bool(given)
    for name in given:
        assert {each for each in job.heard[name] if each.word in (Word.STORY, Word.SILENCE)} == stories


# ---- planes with sockets -------------------------------------------------------------------------------------


class Node:
    """A plane and what it has been told of failures."""

    def __init__(self, name: str, contact: Address | None, size: int, *, listens: bool = True) -> None:
        self.name = name
        self.transport = Transport("run", SECRET, name, ("127.0.0.1", 0), lambda _: None)
        self.address: Address = ("127.0.0.1", self.transport.address[1])
        settings = PlaneSettings(
            run_id="run",
            secret=SECRET,
            name=name,
            host=f"host {name}",
            address="127.0.0.1",
            order=name,
            slots=2,
            contacts=(contact or self.address,),
            policy=Policy(size, size, False, 3, 20 * SECOND, 0, 60 * SECOND),
            founds=contact is None,
        )
        self.plane = Plane(settings, self.transport, lambda _: None, lambda to, what: None)
        self.all_heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.all_gathered: queue.SimpleQueue[Gathered] = queue.SimpleQueue()
        if listens:
            self.plane.listen(self)
        self.plane.start(Status(Doing.IDLE, -1, store_port=99))

    def heard(self, heard: Heard) -> None:
        self.all_heard.put(heard)

    def gathered(self, gathered: Gathered) -> None:
        self.all_gathered.put(gathered)

    def next_heard(self) -> Heard:
        return self.all_heard.get(timeout=PATIENCE)

    def next_gathered(self) -> Gathered:
        return self.all_gathered.get(timeout=PATIENCE)

    def runs(self, generation: int) -> None:
        """Wait for a generation, woken by the descriptor alone."""
        poll = select.poll()
        poll.register(self.plane.descriptor, select.POLLIN)
        while (view := self.plane.take_view()) is None or (view.generation, view.phase) != (generation, Phase.RUNNING):
            assert poll.poll(PATIENCE * 1000), view
        self.plane.say(Status(Doing.RUNNING, generation))


@pytest.fixture
def start() -> Iterator[Callable[..., list[Node]]]:
    """Starts planes that make generation 0 together; the first one leads."""
    nodes: list[Node] = []

    def all_of(*names: str, listen: bool = True) -> list[Node]:
        for name in names:
            nodes.append(Node(name, nodes[0].address if nodes else None, len(names), listens=listen))
        for node in nodes:
            node.runs(0)
        return nodes

    yield all_of
    for node in nodes:
        with contextlib.suppress(OSError):  # closed by the test
            node.plane.close(0)


@pytest.fixture
def without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all be waited for as long as a test waits: a busy machine makes no member a silent one."""
    monkeypatch.setattr(gathering, "LONGEST_GATHERING_NS", int(PATIENCE * SECOND))
    monkeypatch.setattr(gathering, "_LONGEST_WAIT_NS", int(PATIENCE * SECOND))


def story(text: str, generation: int = 0) -> Heard:
    return Heard(generation, Word.STORY, text)


@pytest.mark.usefixtures("without_hurry")
def test_planes_gather_and_every_listener_hears_the_one_story(start: Callable[..., list[Node]]) -> None:
    nodes = first, second, _ = start("a", "b", "c")
    second.plane.say(Status(Doing.FAILED, 0, "rank 2 was killed"))
    for node in nodes:
        node.plane.give_account(0, f"seen by {node.name}")
    gathered = first.next_gathered()
    assert gathered.accounts == {name: f"seen by {name}" for name in "abc"}
    assert (gathered.generation, gathered.silent, gathered.lost, gathered.why) == (0, (), (), "rank 2 was killed")
    first.plane.decided(0, "it was c")
    for node in nodes:
        assert node.next_heard() == story("it was c")
    assert all(node.all_gathered.empty() for node in nodes)


@pytest.mark.usefixtures("without_hurry")
def test_planes_have_the_others_look_and_let_who_suspects_proceed(start: Callable[..., list[Node]]) -> None:
    first, second = start("a", "b")
    second.plane.suspect(0)
    assert first.next_heard() == LOOK
    second.plane.looked(0)
    first.plane.looked(0)
    assert second.next_heard() == PROCEED  # the first that the suspecting one hears
    assert first.all_heard.empty()
    assert first.all_gathered.empty()


def test_a_plane_gathers_without_a_node_that_says_nothing(
    start: Callable[..., list[Node]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_LONGEST_WAIT_NS", int(PATIENCE * SECOND))
    first, second = start("a", "b")
    second.plane.say(Status(Doing.FAILED, 0, "it broke"))
    second.plane.give_account(0, "it broke")
    gathered = first.next_gathered()
    assert (gathered.accounts, gathered.silent) == ({"b": "it broke"}, ("host a",))
    first.plane.decided(0, "it was b")
    assert [node.next_heard() for node in (first, second)] == [story("it was b")] * 2
    first.plane.give_account(0, "late, but seen")
    assert first.next_heard() == story("it was b")


def test_a_plane_waits_as_its_job_is_large(start: Callable[..., list[Node]], monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = start("a", "b")
    monkeypatch.setattr(gathering, "longest_wait_ns", lambda size: size * SECOND // 10 if size == 2 else 1 << 62)
    first.plane.give_account(0, "seen")
    assert first.next_heard() == SILENCE


@pytest.mark.usefixtures("without_hurry")
@pytest.mark.parametrize("text", ["", "the same story"])
def test_two_stories_of_one_text_are_each_told_of_their_own_generation(
    start: Callable[..., list[Node]], text: str
) -> None:
    """The encoding of a story is shared by all that get it, within a turn of the thread."""
    first, second = start("a", "b")

    def both(_: int) -> None:
        first.plane._protocol._gatherer.outbox += [("b", Story(generation, text)) for generation in (0, 1)]

    first.plane._say_of_failure(both)
    assert [second.next_heard() for _ in range(2)] == [story(text, 0), story(text, 1)]


@pytest.mark.usefixtures("without_hurry")
def test_an_empty_story_is_told(start: Callable[..., list[Node]]) -> None:
    nodes = first, second = start("a", "b")
    second.plane.say(Status(Doing.FAILED, 0, "it broke"))
    for node in nodes:
        node.plane.give_account(0, "seen")
    first.next_gathered()
    first.plane.decided(0, "")
    assert [node.next_heard() for node in nodes] == [story("")] * 2


@pytest.mark.usefixtures("without_hurry")
def test_a_listener_that_fails_ends_no_plane(
    start: Callable[..., list[Node]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = start("a", "b")
    hears = second.heard
    fails = [True]

    def heard(each: Heard) -> None:
        hears(each)
        if fails.pop():
            raise ValueError("what nobody has foreseen")

    monkeypatch.setattr(second, "heard", heard)
    first.plane.suspect(0)
    assert second.next_heard() == LOOK
    fails.append(False)
    second.plane.looked(0)
    first.plane.looked(0)
    assert first.next_heard() == PROCEED
    second.plane.suspect(0)
    second.plane.looked(0)
    assert second.next_heard() == PROCEED
    assert "please report this" in caplog.text


def test_a_plane_whose_leader_has_gone_tells_the_silence_once(
    start: Callable[..., list[Node]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_LONGEST_WAIT_NS", SECOND // 2)
    first, second = start("a", "b")
    first.plane.close(0)
    for generation in (0, 1):
        second.plane.give_account(generation, "nobody listens")
        assert second.next_heard() == Heard(generation, Word.SILENCE)
    assert second.all_heard.empty()


@pytest.mark.usefixtures("without_hurry")
def test_a_story_that_is_too_long_for_a_message_is_lost_and_the_plane_goes_on(
    start: Callable[..., list[Node]], caplog: pytest.LogCaptureFixture
) -> None:
    nodes = first, second = start("a", "b")
    second.plane.say(Status(Doing.FAILED, 0, "it broke"))
    for node in nodes:
        node.plane.give_account(0, "seen")
    first.next_gathered()
    first.plane.decided(0, "x" * (MAX_PAYLOAD + 1))
    assert len(first.next_heard().text) > MAX_PAYLOAD  # it speaks to itself without a message
    assert "a message to b is not sent" in caplog.text
    first.plane.decided(0, "in short")
    assert [node.next_heard() for node in nodes] == [story("in short")] * 2


@pytest.mark.usefixtures("without_hurry")
def test_planes_that_nobody_listens_to_keep_nothing(start: Callable[..., list[Node]]) -> None:
    nodes = first, second = start("a", "b", listen=False)
    first.plane.suspect(0)
    poll = select.poll()
    poll.register(second.plane.descriptor, select.POLLIN)
    for node in nodes:
        node.plane.give_account(0, "seen")
    second.plane.say(Status(Doing.FAILED, 0, "it broke"))
    while (view := second.plane.take_view()) is None or view.phase != Phase.STOPPING:
        assert poll.poll(PATIENCE * 1000), view
    for node in nodes:
        node.plane.close(PATIENCE)
        assert node.plane._protocol.accounts.heard == []
        assert node.plane._protocol.take_gathered() == []
