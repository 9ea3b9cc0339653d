"""How nodes tell each other of failures through a store: real stores of torch, several nodes in one process."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore, PrefixStore, Store, TCPStore

from launcher.agent import store_exchange
from launcher.agent.store_exchange import NEWS, SUSPICIONS, StoreExchange, StoreRound
from launcher.agent.store_questions import Questions
from launcher.nodes.gathering import Gathered, Heard, Word, longest_wait_ns

PATIENCE = 60.0
SECOND = 1_000_000_000
TIMEOUT = timedelta(seconds=PATIENCE)
LOOK, PROCEED, SILENCE = Heard(0, Word.LOOK), Heard(0, Word.PROCEED), Heard(0, Word.SILENCE)


def story(text: str, generation: int = 0) -> Heard:
    return Heard(generation, Word.STORY, text)


class Node:
    """An exchange and what it tells."""

    def __init__(self, store: Store, group_rank: int, size: int) -> None:
        self.store, self.group_rank, self.size = store, group_rank, size
        self.name = f"seen by {group_rank}"
        self.exchange = StoreExchange()
        self.all_heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.all_gathered: queue.SimpleQueue[Gathered] = queue.SimpleQueue()
        self.exchange.listen(self)

    def of_failures(self, generation: int) -> PrefixStore:
        return PrefixStore(f"ft/failure/{generation}", self.store)

    def begins(self, generation: int) -> None:
        """Take part in a round, as the rendezvous does: only the first node knows who the others are."""
        hosts = tuple(f"host {rank}" for rank in range(self.size)) if self.group_rank == 0 else ()
        store = self.of_failures(generation)
        self.exchange.began(StoreRound(generation, store, self.store, self.group_rank, self.size, hosts))

    def gives(self, generation: int = 0) -> None:
        self.exchange.give_account(generation, self.name)

    def notices(self) -> None:
        """Ask as the agent does, some times a second."""
        if self.store.check([NEWS]) and self.of_failures(0).check([SUSPICIONS]):
            self.exchange.noticed()

    def has_done(self) -> None:
        """Wait until its thread has done all that it was asked to, and has asked the store after that."""
        for _ in range(2):
            done = threading.Event()
            self.exchange._call(done.set)
            assert done.wait(PATIENCE)

    def heard(self, heard: Heard) -> None:
        self.all_heard.put(heard)

    def gathered(self, gathered: Gathered) -> None:
        self.all_gathered.put(gathered)

    def next_heard(self) -> Heard:
        return self.all_heard.get(timeout=PATIENCE)

    def next_gathered(self) -> Gathered:
        return self.all_gathered.get(timeout=PATIENCE)


class Job:
    """Nodes that meet in one store to which each has a connection of its own."""

    def __init__(self) -> None:
        self.host: TCPStore | None = TCPStore("127.0.0.1", 0, None, True, TIMEOUT, wait_for_workers=False)
        self.nodes: list[Node] = []

    def start(self, size: int) -> list[Node]:
        """Return nodes whose generation 0 runs."""
        for rank in range(size):
            self.add(self.connect(), rank, size).begins(0)
        for node in self.nodes:
            node.has_done()  # else what is noticed at once is of no round yet; the agent would notice it again
        return self.nodes

    def add(self, store: Store, group_rank: int, size: int) -> Node:
        self.nodes.append(Node(store, group_rank, size))
        return self.nodes[-1]

    def connect(self) -> TCPStore:
        assert self.host is not None
        return TCPStore("127.0.0.1", self.host.port, None, False, TIMEOUT)

    def lose_the_server(self) -> None:
        self.host = None


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A job in which no exception ends a thread."""
    escaped: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: escaped.append(args.exc_value))
    made = Job()
    yield made
    assert escaped == []
    for node in made.nodes:
        if (thread := node.exchange._thread) is not None:
            assert thread.is_alive()
            # A thread that asks a store while the interpreter ends aborts it: have it wait for nothing more.
            for name, nothing in (("_watched", None), ("_former", [])):
                node.exchange._call(functools.partial(setattr, node.exchange, name, nothing))
            node.has_done()


def bounds(monkeypatch: pytest.MonkeyPatch, gathering_seconds: float, wait_seconds: float) -> None:
    monkeypatch.setattr(store_exchange, "LONGEST_GATHERING_NS", int(gathering_seconds * SECOND))
    monkeypatch.setattr(store_exchange, "longest_wait_ns", lambda size: int(wait_seconds * SECOND))
    monkeypatch.setattr(store_exchange, "_LEARNS_LATE_NS", 0)
    monkeypatch.setattr(store_exchange, "_LONGEST_WATCH_NS", int(2 * PATIENCE * SECOND))


@pytest.fixture
def without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all be waited for as long as a test waits: a busy machine makes no node a silent one."""
    bounds(monkeypatch, PATIENCE, PATIENCE)


@pytest.fixture
def decides_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the gathering end on its own, and the story be waited for as long as a test waits."""
    bounds(monkeypatch, 0.3, PATIENCE)


# ---- looks ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_hurry")
@pytest.mark.parametrize("suspecting", [0, 1])
def test_a_suspicion_makes_the_others_look_once_and_all_looks_let_who_suspects_proceed(
    job: Job, suspecting: int
) -> None:
    nodes = job.start(3)
    one, *others = sorted(nodes, key=lambda node: node.group_rank != suspecting)
    others[0].notices()
    one.exchange.suspect(0)
    one.has_done()
    for _ in range(3):
        for node in nodes:
            node.notices()
    assert [node.next_heard() for node in others] == [LOOK, LOOK]
    one.exchange.looked(0)
    one.has_done()
    others[0].exchange.looked(0)
    others[0].has_done()
    assert one.all_heard.empty()
    others[1].exchange.looked(0)
    assert one.next_heard() == PROCEED
    for node in nodes:
        node.has_done()
        assert node.all_heard.empty()


@pytest.mark.usefixtures("without_hurry")
def test_who_came_back_is_told_to_who_suspects_and_not_at_the_next_suspicion(job: Job) -> None:
    nodes = first, second, _ = job.start(3)
    for came_back in ({0: (5, 6, 7), 2: (8, 9, 10)}, {}):
        second.exchange.suspect(0)
        second.has_done()
        for node in (first, nodes[2]):
            node.notices()
            assert node.next_heard() == LOOK
        for number, node in enumerate(nodes):
            node.exchange.looked(0, came_back.get(number, ()))
            node.has_done()
        heard = second.next_heard()
        assert (heard.word, sorted(heard.came_back)) == (Word.PROCEED, sorted(sum(came_back.values(), ())))


@pytest.mark.usefixtures("without_hurry")
def test_who_only_waits_proceeds_once_all_have_said_who_came_back_since(job: Job) -> None:
    nodes = first, second = job.start(2)
    for node in nodes:
        node.exchange.suspect(0)
        node.has_done()
    assert first.next_heard() == LOOK
    first.exchange.looked(0)
    first.has_done()
    second.exchange.looked(0, (1, 2, 3), only_waits=True)
    heard = [node.next_heard() for node in (second, first, first)]
    assert heard[0] == Heard(0, Word.CONFIRM, came_back=(1, 2, 3))
    assert sorted(heard[1:]) == [Heard(0, Word.CONFIRM), Heard(0, Word.PROCEED, came_back=(1, 2, 3))]
    second.exchange.looked(0, is_brief=True)
    second.has_done()
    assert second.all_heard.empty()
    first.exchange.looked(0, (4, 5, 6), is_brief=True)
    assert second.next_heard() == Heard(0, Word.PROCEED, came_back=(1, 2, 3, 4, 5, 6))
    for node in nodes:
        node.has_done()
        assert node.all_heard.empty()


@pytest.mark.usefixtures("without_hurry")
def test_who_only_waits_and_answers_another_meanwhile_still_only_waits(job: Job) -> None:
    first, second = job.start(2)
    second.exchange.suspect(0)
    second.exchange.looked(0, only_waits=True)
    second.exchange.looked(0, is_brief=True)
    second.has_done()
    first.exchange.looked(0)
    assert second.next_heard() == Heard(0, Word.CONFIRM)


@pytest.mark.usefixtures("without_hurry")
def test_who_only_waits_and_looks_for_another_meanwhile_lets_that_one_go_first(job: Job) -> None:
    """The other one answers once it has carried out its verdict: each would wait for the other until its time is up."""
    first, second = job.start(2)
    second.exchange.suspect(0)
    second.has_done()
    first.notices()
    assert first.next_heard() == LOOK
    first.exchange.looked(0)
    second.exchange.looked(0, only_waits=True)
    assert [second.next_heard(), first.next_heard()] == [Heard(0, Word.CONFIRM)] * 2
    first.exchange.suspect(0)
    first.exchange.looked(0)
    assert second.next_heard() == LOOK
    first.has_done()
    assert first.all_heard.empty()
    second.exchange.looked(0, only_waits=True)
    assert first.next_heard() == PROCEED
    for node in (first, second):
        node.exchange.looked(0, is_brief=True)
    assert second.next_heard() == PROCEED


@pytest.mark.usefixtures("without_hurry")
def test_the_answers_for_a_verdict_that_was_withdrawn_do_not_let_the_next_one_proceed(job: Job) -> None:
    first, second = job.start(2)
    second.exchange.suspect(0)
    for node in (second, first):
        node.exchange.looked(0, only_waits=node is second)
        node.has_done()
    assert second.next_heard() == Heard(0, Word.CONFIRM)
    second.exchange.suspect(0)
    for node in (second, first):
        node.exchange.looked(0, is_brief=True)
        node.has_done()
    second.has_done()
    assert second.all_heard.empty()
    for node in (second, first):
        node.exchange.looked(0)
    assert second.next_heard() == PROCEED


@pytest.mark.usefixtures("without_hurry")
@pytest.mark.parametrize("told", [None, "no JSON", "5", '[1, 2, "3"]', "[1.0]"])
def test_of_a_node_that_was_lost_while_it_told_who_came_back_nothing_is_taken(job: Job, told: str | None) -> None:
    """And nobody waits for a key that it has reserved and never set."""
    first, second = job.start(2)
    second.exchange.suspect(0)
    second.has_done()
    store = first.of_failures(0)
    place = store.add("ft/looks/back/1", 1)
    if told is not None:
        store.set(f"ft/looks/back/1/{place}", told)
    first.exchange.looked(0)
    second.exchange.looked(0, (1, 2, 3))
    assert second.next_heard() == Heard(0, Word.PROCEED, came_back=(1, 2, 3))


def test_a_question_is_answered_once_though_the_store_fails_in_between() -> None:
    class Failing:
        """A store that fails at one of its calls; no network is needed to lose an answer."""

        def __init__(self, after: int) -> None:
            self.store, self.left = HashStore(), after

        def add(self, key: str, number: int) -> int:
            self.left -= 1
            if not self.left:
                raise RuntimeError("connection reset")
            return self.store.add(key, number)

    for after in range(1, 6):
        failing: Any = Failing(after)
        questions = Questions("asked", "answered")
        failing.store.add("asked", 3)
        for _ in range(2):
            with contextlib.suppress(RuntimeError):
                questions.tell(failing, ())
        assert [failing.store.add(f"answered/{number}", 0) for number in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.usefixtures("without_hurry")
def test_a_later_suspicion_makes_them_look_anew(job: Job) -> None:
    first, second = job.start(2)
    for _ in range(2):
        second.exchange.suspect(0)
        second.has_done()
        first.notices()
        assert first.next_heard() == LOOK
        second.exchange.looked(0)
        second.has_done()
        assert second.all_heard.empty()
        first.exchange.looked(0)
        assert second.next_heard() == PROCEED


@pytest.mark.usefixtures("without_hurry")
def test_two_that_suspect_at_once_both_proceed(job: Job) -> None:
    nodes = first, second = job.start(2)
    first.exchange.suspect(0)
    first.has_done()
    second.exchange.suspect(0)
    second.has_done()
    assert first.next_heard() == LOOK  # which it may not have done since
    for node in nodes:
        node.exchange.looked(0)
    for node in nodes:
        assert node.next_heard() == PROCEED


@pytest.mark.usefixtures("without_hurry")
def test_looks_alone_are_no_failure_and_leave_nothing_behind(job: Job) -> None:
    first, second = job.start(2)
    second.exchange.suspect(0)
    second.has_done()
    first.notices()
    assert first.next_heard() == LOOK
    for node in (first, second):
        node.exchange.looked(0)
    assert second.next_heard() == PROCEED
    for node in (first, second):
        node.gives()
    assert first.next_gathered().accounts == {"host 0 (0)": "seen by 0", "host 1 (1)": "seen by 1"}
    first.exchange.decided(0, "the story")
    for node in (first, second):
        assert node.next_heard() == story("the story")


# ---- one failure ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_hurry")
@pytest.mark.parametrize("size", [2, 3])
def test_the_first_node_gathers_all_accounts_and_every_node_hears_the_story(job: Job, size: int) -> None:
    nodes = job.start(size)
    for node in nodes:
        node.gives()
    gathered = nodes[0].next_gathered()
    assert gathered.accounts == {f"host {rank} ({rank})": f"seen by {rank}" for rank in range(size)}
    assert (gathered.generation, gathered.silent, gathered.lost, gathered.why) == (0, (), (), "")
    nodes[0].exchange.decided(0, "it was host 1")
    for node in nodes:
        assert node.next_heard() == story("it was host 1")
        node.has_done()
        assert node.all_gathered.empty()
        assert node.all_heard.empty()


@pytest.mark.usefixtures("decides_soon")
def test_a_node_that_says_nothing_is_waited_for_until_the_time_is_up(job: Job) -> None:
    first, second, third = job.start(3)
    first.gives()
    third.gives()
    gathered = first.next_gathered()
    assert "host 0 (0)" in gathered.accounts
    assert set(gathered.silent) == {"host 0", "host 1", "host 2"} - {name[:6] for name in gathered.accounts}
    assert "host 1" in gathered.silent
    assert gathered.seconds >= 0.3
    first.exchange.decided(0, "the story")
    assert [node.next_heard() for node in (first, third)] == [story("the story")] * 2

    second.gives()  # late, and answered with what is known
    assert second.next_heard() == story("the story")
    assert first.all_gathered.empty()


@pytest.mark.usefixtures("without_hurry")
def test_two_nodes_on_one_host_are_told_apart(job: Job) -> None:
    first, second = job.add(job.connect(), 0, 2), job.add(job.connect(), 1, 2)
    first.exchange.began(StoreRound(0, first.of_failures(0), first.store, 0, 2, ("host", "host")))
    second.begins(0)
    first.gives()
    second.gives()
    assert sorted(first.next_gathered().accounts.values()) == ["seen by 0", "seen by 1"]


@pytest.mark.usefixtures("without_hurry")
def test_a_story_that_is_no_ascii_arrives_as_it_was_told(job: Job) -> None:
    nodes = first, _ = job.start(2)
    for node in nodes:
        node.name = "Größe \u2192 0 \U0001f4a5"
        node.gives()
    assert set(first.next_gathered().accounts.values()) == {first.name}
    first.exchange.decided(0, first.name)
    assert [node.next_heard() for node in nodes] == [story(first.name)] * 2


# ---- when nobody answers -------------------------------------------------------------------------------------


def test_where_no_story_comes_that_is_told_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, PATIENCE, 0.3)
    _, second = job.start(2)
    second.gives()
    assert second.next_heard() == SILENCE
    second.begins(1)
    second.gives(1)
    assert second.next_heard() == Heard(1, Word.SILENCE)  # and not the first one once more


def test_a_story_that_is_not_decided_in_time_is_silence(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, 0.2, 0.6)
    nodes = job.start(2)
    for node in nodes:
        node.gives()
    nodes[0].next_gathered()
    assert [node.next_heard() for node in nodes] == [SILENCE] * 2


def test_a_story_that_is_decided_after_the_silence_is_told(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gathers learns late of a failure where its machine has much to do."""
    bounds(monkeypatch, PATIENCE, 0.2)
    first, second = job.start(2)
    second.gives()
    assert second.next_heard() == SILENCE
    second.has_done()
    assert second.all_heard.empty()
    first.gives()
    assert set(first.next_gathered().accounts) == {"host 0 (0)", "host 1 (1)"}
    first.exchange.decided(0, "the story")
    assert second.next_heard() == story("the story")


def test_a_story_is_not_awaited_for_ever(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, PATIENCE, 0.1)
    monkeypatch.setattr(store_exchange, "_LONGEST_WATCH_NS", SECOND // 10)
    node, store = troubled(job)
    node.gives()
    assert node.next_heard() == SILENCE
    (watched,) = node.exchange._all()
    until = time.monotonic() + PATIENCE
    while watched.is_awaited(time.monotonic_ns()) and time.monotonic() < until:
        node.has_done()
    store.set(store_exchange._STORY, "too late")
    node.has_done()
    assert node.all_heard.empty()


def test_who_has_given_no_account_awaits_no_story(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, 0, 0)
    first, second = job.start(2)
    second.exchange.suspect(0)
    second.has_done()
    first.notices()
    assert first.next_heard() == LOOK
    for node in (first, second):
        node.has_done()
        assert node.all_heard.empty()
        assert node.all_gathered.empty()


@pytest.mark.parametrize("is_lost_before", [True, False], ids=["before the first word", "while the story is awaited"])
def test_where_the_server_is_gone_every_node_tells_the_silence_and_no_thread_ends(
    job: Job, monkeypatch: pytest.MonkeyPatch, is_lost_before: bool
) -> None:
    bounds(monkeypatch, PATIENCE, 0.5)
    nodes = job.start(3)
    for node in nodes:
        node.has_done()
    if not is_lost_before:
        bounds(monkeypatch, PATIENCE, PATIENCE)
        for node in nodes[1:]:
            node.gives()
            node.has_done()
    job.lose_the_server()
    for node in nodes:
        node.gives()
    nodes[0].exchange.decided(0, "nobody can read it")
    assert [node.next_heard() for node in nodes] == [SILENCE] * 3
    for node in nodes:
        node.has_done()
        assert node.all_heard.empty()
        assert node.all_gathered.empty()


@pytest.mark.usefixtures("without_hurry")
def test_where_the_server_is_gone_a_suspicion_is_lost_and_no_thread_ends(job: Job) -> None:
    (node,) = job.start(1)
    node.has_done()
    job.lose_the_server()
    node.exchange.suspect(0)
    node.exchange.looked(0)
    node.exchange.noticed()
    node.gives()
    assert node.next_heard() == SILENCE


def test_a_store_whose_host_is_gone_may_raise_anything(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backend of torch's rendezvous has a store of its own."""
    bounds(monkeypatch, PATIENCE, 0.3)

    class Broken(HashStore):
        def check(self, keys: list[str]) -> bool:
            raise OSError("the folder of the store is gone")

    node = job.add(Broken(), 0, 1)
    node.exchange.began(StoreRound(0, node.store, node.store, 0, 1, ("host",)))
    node.gives()
    assert node.next_heard() == SILENCE


@pytest.mark.usefixtures("without_hurry")
def test_a_node_whose_server_was_gone_tells_of_the_next_generation_through_its_own_store(job: Job) -> None:
    nodes = first, second = job.start(2)
    for node in nodes:
        node.has_done()
    job.lose_the_server()
    second.gives()
    assert second.next_heard() == SILENCE

    job.host = TCPStore("127.0.0.1", 0, None, True, TIMEOUT, wait_for_workers=False)
    for node in nodes:
        node.store = job.connect()
        node.begins(1)
        node.gives(1)
    assert len(first.next_gathered().accounts) == 2
    first.exchange.decided(1, "it was host 1")
    assert [node.next_heard() for node in nodes] == [story("it was host 1", 1)] * 2


@pytest.mark.usefixtures("without_hurry")
def test_a_node_that_may_start_no_thread_goes_on_and_tries_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    node = job.add(job.connect(), 0, 1)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        node.begins(0)
        node.exchange.suspect(0)
        node.gives()
        node.exchange.decided(0, "nobody will hear it")
    assert node.next_heard() == SILENCE  # nobody else would tell what it has seen
    node.begins(1)
    node.gives(1)
    assert node.next_gathered().generation == 1
    assert node.all_heard.empty()


class Troubled(HashStore):
    """A store that is slow once, or does not answer any more."""

    def __init__(self) -> None:
        super().__init__()
        self.stalls_seconds = 0.0
        self.has_stalled = threading.Event()
        self.asked_in_vain = 0
        self.is_gone = False

    def check(self, keys: list[str]) -> bool:
        self._ask()
        return super().check(keys)

    def add(self, key: str, value: int) -> int:
        self._ask()
        return super().add(key, value)

    def _ask(self) -> None:
        if self.stalls_seconds:
            seconds, self.stalls_seconds = self.stalls_seconds, 0.0
            time.sleep(seconds)
            self.has_stalled.set()
        if self.is_gone:
            self.asked_in_vain += 1
            raise OSError("the store is gone")


def troubled(job: Job, size: int = 2) -> tuple[Node, Troubled]:
    """Return a node of a job that is not its first one, and its store; generation 0 runs."""
    store = Troubled()
    node = job.add(store, 1, size)
    node.exchange.began(StoreRound(0, store, store, 1, size, ()))
    node.has_done()
    return node, store


@pytest.mark.parametrize("is_followed", [False, True], ids=["the last round", "a round that another has followed"])
def test_after_a_stall_that_is_longer_than_the_watch_the_silence_is_told(
    job: Job, monkeypatch: pytest.MonkeyPatch, is_followed: bool
) -> None:
    """The process was stopped, or the store slow; the thread goes on after that."""
    bounds(monkeypatch, PATIENCE, 0.2)
    monkeypatch.setattr(store_exchange, "_LONGEST_WATCH_NS", SECOND // 5)
    node, store = troubled(job)
    store.stalls_seconds = 0.8
    node.gives()
    assert store.has_stalled.wait(PATIENCE)
    if is_followed:
        node.begins(1)
        node.has_done()
    assert node.next_heard() == SILENCE
    node.has_done()
    assert node.all_heard.empty()


@pytest.mark.usefixtures("without_hurry")
def test_where_the_store_goes_while_the_story_of_the_former_round_is_awaited_the_silence_is_told(job: Job) -> None:
    node, store = troubled(job)
    node.gives()
    node.has_done()
    node.begins(1)
    node.has_done()
    assert node.all_heard.empty()
    store.is_gone = True
    assert node.next_heard() == SILENCE


@pytest.mark.usefixtures("without_hurry")
def test_a_store_that_does_not_answer_is_not_asked_again_for_looks(job: Job) -> None:
    """Each time torch writes a stack of its own to standard error."""
    node, store = troubled(job)
    store.is_gone = True
    node.exchange.suspect(0)
    for _ in range(20):
        node.has_done()
    assert 1 <= store.asked_in_vain < 5


# ---- generations ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_hurry")
def test_before_the_first_round_and_of_another_generation_nothing_is_said(job: Job) -> None:
    node = job.add(job.connect(), 0, 1)
    node.exchange.noticed()
    for generation in (1, 2):
        for other in (0, 3):
            node.exchange.suspect(other)
            node.exchange.looked(other)
            node.exchange.give_account(other, "seen")
            node.exchange.decided(other, "the story")
        node.begins(generation)
    node.exchange.give_account(1, "seen")
    node.has_done()
    assert not node.store.check([NEWS])
    assert [node.next_heard() for _ in range(5)] == [Heard(number, Word.SILENCE) for number in (0, 3, 0, 3, 1)]
    node.gives(2)
    assert node.next_gathered().generation == 2
    node.exchange.decided(1, "of another one")
    node.exchange.decided(2, "the story")
    assert node.next_heard() == story("the story", 2)


@pytest.mark.usefixtures("without_hurry")
def test_a_suspicion_of_the_former_generation_is_none_of_the_next(job: Job) -> None:
    """Static rounds share one store, and each attempt has names of its own in it."""
    store = HashStore()
    nodes = first, second = [job.add(store, rank, 2) for rank in range(2)]
    for node in nodes:
        node.begins(0)
    second.exchange.suspect(0)
    second.has_done()
    for node in nodes:
        node.begins(1)
    first.exchange.noticed()
    for node in nodes:
        node.gives(1)
    assert first.next_gathered().generation == 1
    first.exchange.decided(1, "the story")
    assert first.next_heard() == story("the story", 1)


@pytest.mark.usefixtures("without_hurry")
def test_a_story_that_is_decided_before_the_next_round_is_heard_after_it_has_begun(job: Job) -> None:
    first, second = job.start(2)
    first.gives()
    second.gives()
    first.next_gathered()
    first.exchange.decided(0, "the first story")
    assert first.next_heard() == story("the first story")
    for node in (first, second):
        node.begins(1)
        node.gives(1)
    assert second.next_heard() == story("the first story")
    assert first.next_gathered().generation == 1
    first.exchange.decided(1, "the second story")
    assert [node.next_heard() for node in (first, second)] == [story("the second story", 1)] * 2


@pytest.mark.usefixtures("without_hurry")
def test_a_story_that_is_decided_after_the_next_round_began_is_heard(job: Job) -> None:
    nodes = first, _ = job.start(2)
    for node in nodes:
        node.gives()
    first.next_gathered()
    for node in nodes:
        node.begins(1)
        node.has_done()
    first.exchange.decided(0, "the first story")
    assert [node.next_heard() for node in nodes] == [story("the first story")] * 2
    for node in nodes:
        node.gives(1)
    assert first.next_gathered().generation == 1
    first.exchange.decided(1, "the second story")
    assert [node.next_heard() for node in nodes] == [story("the second story", 1)] * 2


@pytest.mark.usefixtures("without_hurry")
def test_the_accounts_of_the_former_round_are_gathered_after_the_next_one_began(job: Job) -> None:
    nodes = first, second = job.start(2)
    first.gives()
    first.has_done()
    second.gives()
    for node in nodes:
        node.begins(1)
        node.gives(1)
    gathered = sorted(first.next_gathered().generation for _ in range(2))
    assert gathered == [0, 1]
    for generation in (1, 0):
        first.exchange.decided(generation, f"story {generation}")
        assert [node.next_heard() for node in nodes] == [story(f"story {generation}", generation)] * 2


@pytest.mark.usefixtures("without_hurry")
def test_the_new_round_is_looked_after_while_the_former_story_is_awaited(job: Job) -> None:
    nodes = first, second = job.start(2)
    second.gives()
    for node in nodes:
        node.begins(1)
        node.has_done()
    second.exchange.suspect(1)
    second.has_done()
    first.exchange.noticed()
    assert first.next_heard() == Heard(1, Word.LOOK)
    for node in nodes:
        node.exchange.looked(1)
    assert second.next_heard() == Heard(1, Word.PROCEED)


@pytest.mark.usefixtures("without_hurry")
def test_of_the_round_before_the_former_the_silence_is_told_once(job: Job) -> None:
    _, second = job.start(2)
    for generation in (0, 1):
        second.gives(generation)
        second.begins(generation + 1)
        second.has_done()
    assert second.next_heard() == SILENCE
    second.has_done()
    assert second.all_heard.empty()


@pytest.mark.usefixtures("without_hurry")
def test_an_exchange_keeps_no_more_the_more_generations_there_were(job: Job) -> None:
    node = job.add(HashStore(), 1, 2)
    node.begins(0)
    threads = threading.active_count()
    for generation in range(10_000):
        node.begins(generation)
        node.exchange.suspect(generation)
        node.exchange.looked(generation)
        node.exchange.noticed()
    node.gives(9_999)
    node.has_done()
    assert not node.exchange._calls
    assert node.exchange._watched is not None
    assert node.exchange._watched.round.generation == 9_999
    assert threading.active_count() <= threads
    kept = [value for value in vars(node.exchange).values() if isinstance(value, (list, dict, set))]
    assert sum(map(len, kept)) == 0


def test_the_more_nodes_there_are_the_less_often_each_of_them_asks() -> None:
    """One process answers all of them."""
    store = HashStore()
    for size, wanted in ((2, 0.02), (40, 0.02), (400, 0.2), (4000, 2.0)):
        assert StoreRound(0, store, store, 0, size, ()).poll_seconds == pytest.approx(wanted)


def test_the_more_nodes_there_are_the_longer_a_story_is_waited_for() -> None:
    """Who gathers asks for each account, and every node learns late that the story is there."""
    store = HashStore()
    for size, seconds in ((2, 4.2), (40, 4.28), (400, 6.8), (4000, 32.0)):
        round_ = StoreRound(0, store, store, 0, size, ())
        assert round_.longest_wait_ns == pytest.approx(seconds * SECOND, rel=0.01)
        assert round_.longest_wait_ns > longest_wait_ns(size)
