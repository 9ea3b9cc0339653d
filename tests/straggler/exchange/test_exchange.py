"""The bounded exchange, through real TCPStores; dead and hung ranks, a dead and a hung server."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta

import pytest

from straggler.exchange.exchange import LocalExchange
from straggler.exchange.sequences import asked
from straggler.exchange.store import StoreExchange
from straggler.exchange.wire import LEFT
from straggler.reporter import Reporter
from straggler.settings import DetectorSettings

dist = pytest.importorskip("torch.distributed")

GENEROUS = 60.0
"""Where every answer comes: a busy machine fails no test."""
BOUND = 0.4
"""Where an answer is missing on purpose: what the test then waits."""


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=60))


def exchanges(store, world_size, ranks=None, bound_seconds=GENEROUS):
    return [
        StoreExchange(store, rank, world_size, bound_seconds=bound_seconds, prefix="t")
        for rank in (range(world_size) if ranks is None else ranks)
    ]


def as_soon_as_it_is_there(ask):
    """What another connection has set: torch's store answers no set, so a question may arrive before it."""
    end = time.monotonic() + GENEROUS
    while (answer := ask()) is None and time.monotonic() < end:
        time.sleep(0.001)  # a store has no event for this
    return answer


def test_all_windows_arrive(store):
    ranks = exchanges(store, 3)
    for sequence in range(3):
        for rank in ranks:
            rank.post(sequence, b"%d of %d" % (rank.rank, sequence))
        assert ranks[0].collect(sequence) == [b"%d of %d" % (rank, sequence) for rank in range(3)]
    for rank in ranks:
        rank.close()


def test_a_rank_that_never_comes_is_missing_after_the_bound(store):
    ranks = exchanges(store, 8, ranks=[0, 1, 2, 4, 5, 6, 7], bound_seconds=BOUND)
    for rank in ranks:
        rank.post(0, b"%d" % rank.rank)
    began = time.monotonic()
    found = ranks[0].collect(0)
    assert BOUND <= time.monotonic() - began < GENEROUS
    assert found == [b"0", b"1", b"2", None, b"4", b"5", b"6", b"7"]


def test_a_rank_known_to_be_missing_costs_a_short_grace_only(store):
    """The whole bound at every report for one dead rank would be a tax on training."""
    rank = StoreExchange(store, 0, 2, bound_seconds=GENEROUS, prefix="t")
    rank.note_late([1])
    rank.post(0, b"0")
    began = time.monotonic()
    assert rank.collect(0) == [b"0", None]
    assert time.monotonic() - began < GENEROUS / 2


def test_a_late_rank_is_taken_when_it_comes(store):
    first, second = exchanges(store, 2)
    first.post(0, b"0")
    late = threading.Timer(BOUND / 4, lambda: second.post(0, b"1"))
    late.start()
    assert first.collect(0) == [b"0", b"1"]
    late.join()


def test_outcomes_reach_their_ranks(store):
    first, second = exchanges(store, 2)
    first.publish(0, {1: b"old"})
    first.publish(1, {1: b"message of two parts"})
    assert second.outcome(1) == b"message of two parts"


def test_nobody_waits_for_the_outcome_of_a_report_that_is_past(store):
    first, second = exchanges(store, 2)
    first.publish(7, {1: b"of a later one"})
    began = time.monotonic()
    assert second.outcome(5) is None
    assert time.monotonic() - began < GENEROUS / 2
    first.publish(asked(0), {1: b"asked for"})
    late = threading.Timer(BOUND / 4, lambda: first.publish(8, {1: b"on schedule"}))
    late.start()
    assert second.outcome(8) == b"on schedule"
    late.join()


def test_waiting_for_an_outcome_is_bounded(store):
    _, second = exchanges(store, 2, bound_seconds=BOUND)
    began = time.monotonic()
    assert second.outcome(0) is None
    assert time.monotonic() - began < GENEROUS


def test_names_are_told_when_they_are_wanted(store):
    first, second = exchanges(store, 2)
    assert second.wanted_names() == []
    first.want_names([5, 2**64 - 1])
    assert second.wanted_names() == [5, 2**64 - 1]
    assert second.wanted_names() == []
    assert first.names_of([5]) == {}
    second.tell_names({5: "forward \N{SNOWMAN}"})
    assert as_soon_as_it_is_there(lambda: first.names_of([4, 5]) or None) == {5: "forward \N{SNOWMAN}"}


def test_what_rank_0_shows_is_seen_once(store):
    first, second = exchanges(store, 2)
    assert second.look() is None
    first.show(b"one")
    assert as_soon_as_it_is_there(second.look) == b"one"
    assert second.look() is None
    first.show(b"two")
    assert as_soon_as_it_is_there(second.look) == b"two"


def test_answers_to_a_proposal_add_up_and_each_proposal_has_its_own(store):
    ranks = exchanges(store, 4)
    assert ranks[0].answers(0) == 0
    for rank in ranks[1:]:
        rank.answer(0, 1)
    ranks[1].answer(1, 1 << 32)
    assert ranks[0].answers(0) == 3
    assert ranks[0].answers(1) == 1 << 32


def test_a_report_that_nobody_waits_for_ends_when_it_is_told_to_and_gives_no_short_grace(store):
    """Nobody waits, so a rank that was missing last time has the whole bound: it would else be missing for ever."""
    first, second = exchanges(store, 2)
    first.note_late([1])
    first.post(0, b"0")
    late = threading.Timer(BOUND, lambda: second.post(0, b"1"))
    late.start()
    assert first.collect(0, lambda: False) == [b"0", b"1"]
    late.join()
    first.post(1, b"1")
    assert first.collect(1, lambda: True) == [b"1", b"1"]


def test_the_next_window_of_a_rank_does_not_overwrite_one_that_is_not_yet_read(store):
    first, second = exchanges(store, 2)
    first.post(0, b"0")
    second.post(0, b"one of 0")
    second.post(1, b"one of 1")
    assert first.collect(0) == [b"0", b"one of 0"]


def test_windows_asked_for_do_not_overwrite_those_on_schedule(store):
    first, second = exchanges(store, 2)
    second.post(8, b"scheduled")
    second.post(asked(0), b"asked for")
    first.post(8, b"0")
    assert first.collect(8) == [b"0", b"scheduled"]
    first.post(asked(0), b"0")
    assert first.collect(asked(0)) == [b"0", b"asked for"]


SERVER = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=60))
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_server_that_hangs_or_dies_blocks_nobody_beyond_the_bound(how, caplog):
    """The store lives in some rank or agent, and that can be the one that hangs."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline())
        client = dist.TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=60))
        rank = StoreExchange(client, 1, 2, bound_seconds=BOUND, prefix="t")
        rank.post(0, b"before")
        os.kill(server.pid, how)
        if how is signal.SIGKILL:
            server.wait()
        began = time.monotonic()
        for sequence in range(1, 4):
            rank.post(sequence, b"after")
            assert rank.outcome(sequence) is None
        assert time.monotonic() - began < GENEROUS
        assert "said once" in caplog.text
    finally:
        server.kill()
        server.communicate()


def test_one_process_needs_no_store():
    alone = LocalExchange()
    alone.post(0, b"own")
    assert alone.collect(0) == [b"own"]


class LostStore:
    """A store whose server has gone; torch's connection does not come back, and logs a page at each try."""

    def __init__(self):
        self.calls = 0

    def add(self, *_):
        self.calls += 1
        raise RuntimeError("Broken pipe")


def test_a_connection_that_has_failed_three_times_is_given_up(caplog):
    lost = LostStore()
    exchange = StoreExchange(lost, 1, 2, bound_seconds=GENEROUS, prefix="t")
    for _ in range(5):
        assert exchange.look() is None
    assert lost.calls == 3
    assert caplog.text.count("asking for the next report failed (RuntimeError: Broken pipe)") == 1
    exchange.close()


class SlowStore:
    """A store each of whose calls takes a while, but comes back."""

    def __init__(self):
        self.calls = 0

    def _slowly(self, *_):
        self.calls += 1
        time.sleep(BOUND / 10)
        return b"a name"

    check = get = set = _slowly


@pytest.mark.parametrize("direction", ["names_of", "tell_names"])
def test_the_bound_is_for_all_names_together(direction):
    slow = SlowStore()
    exchange = StoreExchange(slow, 0, 2, bound_seconds=BOUND, prefix="t")
    given = range(100) if direction == "names_of" else dict.fromkeys(range(100), "a name")
    began = time.monotonic()
    found = getattr(exchange, direction)(given)
    assert slow.calls < 20, "it went on beyond its bound"
    assert time.monotonic() - began < GENEROUS
    if direction == "names_of":  # what came in time is not lost
        assert set(found.values()) == {"a name"}
    exchange.close()


class HeldStore:
    """A store to which a further connection is made once it is let go."""

    def __init__(self, store):
        self.store, self.go, self.in_time = store, threading.Event(), None

    def clone(self):
        self.in_time = self.go.wait(GENEROUS / 4)
        return self.store.clone()


class WatchedWrites:
    """A store that notes how many bytes each request has to write."""

    def __init__(self, store):
        self.store, self.bytes = store, []

    def multi_set(self, keys, values):
        self.bytes.append(sum(map(len, values)))
        self.store.multi_set(keys, values)

    def __getattr__(self, name):
        if name == "clone":
            raise AttributeError(name)
        return getattr(self.store, name)


def test_the_messages_to_thousands_of_ranks_go_out_in_small_requests(store):
    """torch's store reads a request from its begin whenever more of it has come: megabytes at once take seconds."""
    watched = WatchedWrites(store)
    first = StoreExchange(watched, 0, 1001, bound_seconds=GENEROUS, prefix="t")
    (last,) = exchanges(store, 1001, ranks=[1000])
    first.publish(0, {rank: b"%d" % rank * 1000 for rank in range(1, 1001)})
    assert last.outcome(0) == b"1000" * 1000
    assert sum(watched.bytes) > 2_800_000
    assert max(watched.bytes) <= 33_000
    first.close()
    last.close()


def test_nobody_waits_for_the_connection_to_the_store(store):
    """Where the process group is made late, it is made within an iteration."""
    held = HeldStore(store)
    rank = StoreExchange(held, 0, 1, bound_seconds=GENEROUS, prefix="t")
    held.go.set()
    rank.post(0, b"0")
    assert rank.collect(0) == [b"0"]
    assert held.in_time
    rank.close()


def test_the_store_of_a_process_group_is_held_no_longer_than_it_takes_to_connect(store):
    """The server of the group's store ends with the group."""
    held = HeldStore(store)
    held.go.set()
    rank, known = StoreExchange(held, 0, 1, bound_seconds=GENEROUS, prefix="t"), weakref.ref(held)
    del held
    end = time.monotonic() + GENEROUS
    while known() is not None and time.monotonic() < end:
        time.sleep(0.001)
    assert known() is None
    rank.close()


def test_a_rank_that_has_left_says_so_and_loses_no_window(store):
    first, second, third = exchanges(store, 3)
    for rank in (first, second):
        rank.post(0, b"of %d" % rank.rank)
        rank.post(1, b"late of %d" % rank.rank)
    second.close()
    third.close()  # it has sent nothing
    assert first.collect(0, lambda: True) == [b"of 0", b"of 1", LEFT]
    first.post(2, b"of 0")
    assert first.collect(2, lambda: True) == [b"of 0", b"late of 1", LEFT]
    for sequence in (3, 4, asked(0), asked(1)):
        first.post(sequence, b"of 0")
        assert first.collect(sequence, lambda: True) == [b"of 0", LEFT, LEFT]
    first.close()


def test_a_report_of_a_rank_that_has_left_names_that_as_the_reason(store):
    settings = DetectorSettings(report_bound_seconds=BOUND, node_name="n")
    first, second = (Reporter(exchange, [], settings) for exchange in exchanges(store, 2, bound_seconds=BOUND))
    second.close()
    report, _ = first.make(0, first.cut(), lambda: True)
    assert report.missing_ranks == [1]
    assert report.verdict(1).because == "it has left: its detector was shut down, or its script has ended"
    first.close()


def test_the_counter_that_a_late_rank_makes_anew_does_not_stay(store):
    before = store.num_keys()
    first, second = exchanges(store, 2)
    for sequence in range(20):
        first.post(sequence, b"of 0")
        first.collect(sequence, lambda: True)
    second.post(2, b"very late")
    second.close()
    first.close()
    assert store.num_keys() == before


def test_nobody_waits_for_a_rank_0_that_has_left(store):
    first, second = exchanges(store, 2)
    first.publish(4, {1: b"an old one"})
    first.close()
    began = time.monotonic()
    assert second.outcome(5) is None
    assert time.monotonic() - began < GENEROUS / 2
    second.close()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 2, 3)])
def test_no_key_is_left_once_all_ranks_have_left(store, order):
    before = store.num_keys()
    ranks = exchanges(store, 4, ranks=range(3))
    for sequence in (0, 1, 2, asked(0)):
        for rank in ranks:
            rank.post(sequence, b"window")
        ranks[0].collect(sequence, lambda: True)
    ranks[0].show(b"plan")
    assert as_soon_as_it_is_there(ranks[1].look) == b"plan"
    ranks[1].answer(0, 1)
    ranks[0].answers(0)
    ranks[0].publish(0, {1: b"1", 2: b"2"})
    ranks[0].names_of([5])
    ranks[0].want_names([5])
    ranks[1].wanted_names()
    ranks[1].tell_names({5: "five"})
    ranks[1].post(3, b"never collected")
    ranks += exchanges(store, 4, ranks=[3], bound_seconds=GENEROUS)  # it is there, and sends nothing
    for number in order:
        ranks[number].close()
        for other in ranks:  # those that are there yet go on
            if not other._is_closed:
                assert other.look() in (None, b"plan")
                other.wanted_names()
                other.post(3, b"after that")
    assert store.num_keys() == before


def test_counters_of_reports_do_not_add_up_where_a_rank_is_always_late(store):
    first, second = exchanges(store, 2, bound_seconds=BOUND / 4)
    found = []
    for sequence in range(12):
        first.post(sequence, b"0")
        first.collect(sequence, lambda: True)
        if sequence:
            second.post(sequence - 1, b"late")
        found.append(store.num_keys())
    assert found[-1] == found[4]


def test_proposals_before_the_last_leave_no_key(store):
    first, second = exchanges(store, 2)
    second.answer(0, 1)
    assert first.answers(0) == 1
    keys = store.num_keys()
    for proposal in range(1, 4):
        second.answer(proposal, 1)
        assert first.answers(proposal) == 1
    assert store.num_keys() == keys


class CountingStore(LostStore):
    """A store whose server listens at a port, or no longer; every call is counted and fails."""

    host = "127.0.0.1"

    def __init__(self, port):
        super().__init__()
        self.port = port

    set = delete_key = check = get = LostStore.add


@pytest.fixture
def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def test_closing_makes_no_call_to_a_store_whose_server_has_gone(free_port, caplog):
    """torch prints a page of C++ frames for each."""
    gone = CountingStore(free_port)
    for rank in range(2):
        StoreExchange(gone, rank, 2, bound_seconds=GENEROUS, prefix="t").close()
    assert gone.calls == 0
    assert not caplog.records


def test_after_one_failure_no_call_is_made_to_a_store_whose_server_has_gone(free_port):
    gone = CountingStore(free_port)
    exchange = StoreExchange(gone, 1, 2, bound_seconds=GENEROUS, prefix="t")
    for _ in range(5):
        assert exchange.look() is None
    exchange.close()
    assert gone.calls == 1


def test_no_call_is_made_after_the_process_group_of_the_store_has_gone(store):
    is_there = [True]
    exchange = StoreExchange(store, 0, 2, bound_seconds=GENEROUS, prefix="t", is_expected=lambda: is_there[0])
    exchange.post(0, b"0")
    keys = store.num_keys()
    waits = threading.Timer(BOUND / 4, lambda: is_there.__setitem__(0, False))
    waits.start()
    assert exchange.collect(0) == [None, None], "it went on to wait for the other rank"
    exchange.show(b"plan")
    assert store.num_keys() == keys
    exchange.close()
    waits.join()


def test_closing_takes_a_bounded_time_where_the_server_hangs():
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline())
        client = dist.TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=60))
        exchange = StoreExchange(client, 0, 2, bound_seconds=BOUND, prefix="t")
        exchange.post(0, b"0")
        os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        exchange.close()
        exchange.close()
        assert time.monotonic() - began < GENEROUS / 4
    finally:
        server.kill()
        server.communicate()
