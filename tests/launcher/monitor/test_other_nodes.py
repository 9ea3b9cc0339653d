"""What a monitor tells of a verdict where other nodes have ranks, and how long the signal waits for them."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.incidents.incident import ELSEWHERE, Incident
from launcher.incidents.rank_report import RankReport
from launcher.monitor import hang_incident, other_nodes, rank_evidence
from launcher.monitor.comebacks import Comeback, Comebacks
from launcher.monitor.deadline_rules import Findings
from launcher.monitor.messages import (
    ORDERS,
    REPORTS,
    Forget,
    Look,
    Looked,
    MonitorConfig,
    MonitorSettings,
    Proceed,
    WatchOrder,
)
from launcher.monitor.other_nodes import answer_briefly, look_for_others, reporter_to
from launcher.monitor.parent_channel import ParentChannel
from resilience_core.config.schema import FaultToleranceConfig

S = 1_000_000_000
LONG = 600 * S
CONFIG = MonitorConfig.from_document(json.loads(FaultToleranceConfig(stack_capture_timeout=600).to_json()))
SETTINGS = MonitorSettings(-1, -1, -1, "", CONFIG)
NAMED: list[tuple[dict[int, str], int]] = []
STARTED_NS = 7


def facts(_: float, ranks: dict[int, str], began_ns: int) -> tuple[str, ...]:
    NAMED.append((ranks, began_ns))
    return ("kernel, 1.0 s ago: Link down",)


MACHINE: Any = SimpleNamespace(facts=facts)


class Rank(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def rank_of(order: WatchOrder, pid: int = 4711) -> Any:
    view = SimpleNamespace(pid=pid, start_time=1, last_sign_ns=0)
    return Rank(order=order, view=lambda: view, pid=lambda view: pid)


def seen(ago_s: int = 0) -> Findings[Any]:
    return Findings([], {}, time.monotonic_ns() - ago_s * S)


INCIDENT = Incident("hang", 3, "?", "?", ())


class Channel:
    """A monitor's channel, and the launcher's end of it."""

    def __init__(self) -> None:
        self.launcher, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.launcher.setblocking(False)
        self.monitor = ParentChannel(theirs.detach())

    def order(self, order: Any) -> None:
        self.launcher.send(ORDERS.encode(order))

    def told(self) -> list[Any]:
        told = []
        while True:
            try:
                told.append(REPORTS.decode(self.launcher.recv(1 << 20)))
            except BlockingIOError:
                return told


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel()
    yield made
    made.monitor.close()
    made.launcher.close()


# ---- the wait for the other nodes -------------------------------------------------------------------------


def test_the_word_that_all_have_looked_ends_the_wait(channel: Channel) -> None:
    timer = threading.Timer(0.05, lambda: channel.order(Proceed(3)))
    timer.start()
    assert channel.monitor.await_word(3, time.monotonic_ns() + LONG) == ()
    timer.join()
    assert [arrived.order for arrived in channel.monitor.take()] == [Proceed(3)]


def test_the_word_that_all_have_looked_tells_who_came_back(channel: Channel) -> None:
    channel.order(Proceed(2, (1, 2, 3)))
    channel.order(Proceed(3, (4, 5, 6)))
    order = WatchOrder(3, 0, 0, "cell", has_others=True)
    reporter = reporter_to(channel.monitor, MACHINE, [rank_of(order)], seen(), CONFIG, Comebacks())
    assert reporter.await_others() == (4, 5, 6)


@pytest.mark.parametrize("other", [Look(3, False), Proceed(2)])
def test_another_order_does_not_and_the_wait_has_an_end(channel: Channel, other: Any) -> None:
    """A look, say, for the same generation: another node suspects a rank as well."""
    channel.order(other)
    end_ns = time.monotonic_ns() + S // 20
    channel.monitor.await_word(3, end_ns)
    assert time.monotonic_ns() >= end_ns
    assert [arrived.order for arrived in channel.monitor.take()] == [other]


def test_who_is_known_to_have_come_back_counts_where_no_word_comes(channel: Channel) -> None:
    for look in (Look(3, False, True, (1, 2, 3)), Look(2, False, True, (4, 5, 6)), Look(3, False)):
        channel.order(look)
    assert channel.monitor.await_word(3, time.monotonic_ns() + S // 20) == (1, 2, 3)


def test_a_brief_look_comes_before_all_else(channel: Channel) -> None:
    """Another node waits for the answer, and a full look may take as long as it waits."""
    brief = Look(3, False, is_brief=True)
    for order in (Look(3, False), Forget(2, True), brief):
        channel.order(order)
    channel.monitor.read()
    assert [arrived.order for arrived in channel.monitor.take()] == [brief, Look(3, False), Forget(2, True)]


def test_a_launcher_that_ends_the_generation_ends_the_wait(channel: Channel) -> None:
    channel.order(Forget(3, False))
    channel.monitor.await_word(3, time.monotonic_ns() + LONG)


def test_a_launcher_that_is_gone_ends_the_wait(channel: Channel) -> None:
    channel.launcher.close()
    channel.monitor.await_word(3, time.monotonic_ns() + LONG)


def test_a_word_of_an_earlier_verdict_is_not_taken_for_this_one(channel: Channel) -> None:
    """It was withdrawn, and what had come by then was dealt with since."""
    channel.order(Proceed(3))
    channel.monitor.read()
    list(channel.monitor.take())
    end_ns = time.monotonic_ns() + S // 20
    channel.monitor.await_word(3, end_ns)
    assert time.monotonic_ns() >= end_ns


def test_a_word_that_nobody_has_come_to_is_dropped_when_the_next_verdict_is_told(channel: Channel) -> None:
    """The verdict before was withdrawn while the word for it was under way: it says nothing about this one."""
    for order in (Proceed(3, (1, 2, 3)), Proceed(2), Look(3, False)):
        channel.order(order)
    order = WatchOrder(3, 0, 0, "cell", has_others=True)
    reporter_to(channel.monitor, MACHINE, [rank_of(order)], seen(), CONFIG, Comebacks()).suspicion()
    assert [arrived.order for arrived in channel.monitor.take()] == [Proceed(2), Look(3, False)]


def test_descriptors_that_come_with_an_order_that_cannot_be_read_are_closed(
    channel: Channel, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    socket.send_fds(channel.launcher, [b"no order"], [writing, writing])
    os.close(writing)
    channel.monitor.read()
    assert os.read(reading, 1) == b""  # nobody has the other end
    os.close(reading)
    assert list(channel.monitor.take()) == []
    assert "could not read an order" in capsys.readouterr().err


# ---- what is told -----------------------------------------------------------------------------------------


def test_on_one_node_nobody_is_told_of_a_suspicion_or_waited_for(channel: Channel) -> None:
    order = WatchOrder(3, 0, 0, "cell", has_others=False)
    reporter = reporter_to(channel.monitor, MACHINE, [rank_of(order)], seen(), CONFIG, Comebacks())
    reporter.suspicion()
    reporter.await_others()
    reporter.incident(INCIDENT, [0], None)
    assert [type(report).__name__ for report in channel.told()] == ["HangReport"]
    assert reporter.machine() == ("kernel, 1.0 s ago: Link down",)


def test_with_other_nodes_the_suspicion_is_told_before_the_verdict(channel: Channel) -> None:
    order = WatchOrder(3, 0, 0, "cell", has_others=True)
    reporter = reporter_to(channel.monitor, MACHINE, [rank_of(order)], seen(), CONFIG, Comebacks())
    reporter.suspicion()
    reporter.incident(INCIDENT, [0], None)
    channel.order(Proceed(3))
    reporter.await_others()
    assert [type(report).__name__ for report in channel.told()] == ["Suspected", "HangReport"]


def test_the_wait_ends_as_long_after_the_verdict_as_stacks_may_take(channel: Channel) -> None:
    """However long evidence has taken since."""
    order = WatchOrder(3, 0, 0, "cell", has_others=True)
    reporter = reporter_to(channel.monitor, MACHINE, [rank_of(order)], seen(601), CONFIG, Comebacks())
    reporter.await_others()


# ---- looks for others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("may_signal", [True, False])
def test_a_look_tells_what_is_seen_of_ranks_and_machine(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, may_signal: bool
) -> None:
    asked: list[dict[str, Any]] = []

    def incident(*facts: Any, **how: Any) -> Incident:
        asked.append(how)
        assert facts[0].cases == []
        assert facts[2].config.stack_capture_timeout == 360  # the node that has asked waits for 600 s
        return INCIDENT._replace(kind=ELSEWHERE)

    monkeypatch.setattr(other_nodes, "incident_whatever_happens", incident)
    NAMED.clear()
    ranks: Any = [
        rank_of(WatchOrder(3, 0, 5, "cell", started_ns=STARTED_NS)),
        rank_of(WatchOrder(3, 1, 6, "cell"), pid=0),
    ]
    reader: Any = None
    look_for_others(Look(3, may_signal), ranks, SETTINGS, reader, channel.monitor, MACHINE, Comebacks())
    (looked,) = channel.told()
    assert asked == [{"may_signal": may_signal}]
    assert NAMED == [({4711: "rank 5"}, STARTED_NS)]
    assert looked == Looked(3, INCIDENT._replace(kind=ELSEWHERE, machine=("kernel, 1.0 s ago: Link down",)))


def test_a_look_tells_who_came_back_before_and_meanwhile(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not who has given no sign, or whose cell another process has taken over."""
    now_ns = time.monotonic_ns()
    ranks: Any = [rank_of(WatchOrder(3, number, number, "cell")) for number in range(4)]
    for rank in ranks:
        rank.view().last_sign_ns = now_ns - 5 * S

    def incident(*_: Any, **__: Any) -> Incident:
        said = {0: (4711, now_ns), 2: (4712, now_ns), 3: (4711, 0)}
        for number, (pid, sign_ns) in said.items():
            view = SimpleNamespace(pid=pid, start_time=1, last_sign_ns=sign_ns)
            ranks[number].view = lambda view=view: view
        return INCIDENT

    monkeypatch.setattr(other_nodes, "incident_whatever_happens", incident)
    known, reader = Comebacks(), None
    known.note(3, [Comeback(9, now_ns - 2 * S, 7 * S)])
    look_for_others(Look(3, False), ranks, SETTINGS, reader, channel.monitor, MACHINE, known)  # type: ignore[arg-type]
    (looked,) = channel.told()
    assert looked.came_back[0::3] == (9, 0)
    assert looked.came_back[1] >= 2 * S
    assert looked.came_back[2::3] == (7 * S, pytest.approx(5 * S, abs=60 * S))
    assert [each.rank for each in known.of(3)] == [9]


def test_a_brief_look_tells_who_came_back_since(channel: Channel) -> None:
    now_ns, known = time.monotonic_ns(), Comebacks()
    rank, other = rank_of(WatchOrder(3, 0, 4, "cell")), rank_of(WatchOrder(3, 1, 5, "cell"))
    before: Any = SimpleNamespace(pid=4711, start_time=1, last_sign_ns=now_ns - 5 * S)
    rank.view().last_sign_ns = now_ns
    other.view().last_sign_ns = now_ns - 5 * S
    known.note(3, [Comeback(9, now_ns, 60 * S)])
    answer_briefly(3, [rank, other], Findings([], {rank: before, other: before}, now_ns), channel.monitor, known)
    (looked,) = channel.told()
    assert (looked.incident, looked.is_brief, looked.came_back[0::3]) == (None, True, (9, 4))


@pytest.mark.parametrize(
    ("waits", "culprit", "answers"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_who_only_waits_answers_others_while_it_is_kept_waiting(
    channel: Channel, waits: bool, culprit: bool, answers: bool
) -> None:
    """Who has one to blame answers when it has looked at that one once more, and two who wait for each other must."""
    order = WatchOrder(3, 0, 0, "cell", has_others=True)
    rank = rank_of(order)
    reporter = reporter_to(channel.monitor, MACHINE, [rank], seen(), CONFIG, Comebacks())
    reports = (
        RankReport(0, 0, 7, waits_in="all_reduce" if waits else None),
        RankReport(1, 1, 8, is_culprit=culprit),
    )
    reporter.incident(INCIDENT._replace(ranks=reports), [0], None)
    brief = Look(3, False, is_brief=True)
    for each in (Look(2, False, is_brief=True), brief, Proceed(3, (1, 2, 3))):
        channel.order(each)
    assert reporter.await_others() == (1, 2, 3)
    report, *looked = channel.told()
    assert report.only_waits is answers
    assert [(each.generation, each.is_brief) for each in looked] == ([(3, True)] if answers else [])
    assert (brief in [arrived.order for arrived in channel.monitor.take()]) is not answers


@pytest.mark.parametrize("waits", [True, False])
def test_who_is_kept_waiting_says_once_that_it_has_looked_and_looks_again_afterwards(
    channel: Channel, waits: bool
) -> None:
    """Two nodes, each kept waiting by the look of the other, would both signal once their time is up."""
    known, order = Comebacks(), WatchOrder(3, 0, 0, "cell", has_others=True)
    known.note(3, [Comeback(5, time.monotonic_ns(), 60 * S)])
    reporter = reporter_to(channel.monitor, MACHINE, [rank_of(order)], seen(), CONFIG, known)
    reporter.incident(
        INCIDENT._replace(ranks=(RankReport(0, 0, 7, waits_in="all_reduce" if waits else None),)), [0], None
    )
    look = Look(3, False)
    for each in (look, Look(2, False)):
        channel.order(each)
    timer = threading.Timer(0.1, lambda: channel.order(Proceed(3)))
    timer.start()
    reporter.await_others()
    timer.join()
    _, *looked = channel.told()
    assert [(each.generation, each.is_brief, each.incident, each.came_back[0::3]) for each in looked] == [
        (3, False, None, (5,))
    ]
    assert [arrived.order for arrived in channel.monitor.take()] == [look, Look(2, False), Proceed(3)]


def test_a_verdict_that_is_withdrawn_tells_who_came_back(channel: Channel) -> None:
    known, order = Comebacks(), WatchOrder(3, 0, 0, "cell", has_others=True)
    known.note(3, [Comeback(0, time.monotonic_ns(), 7)])
    reporter = reporter_to(channel.monitor, MACHINE, [rank_of(order)], seen(), CONFIG, known)
    reporter.near_misses(())
    (spared,) = channel.told()
    assert (spared.near_misses, spared.came_back[0], spared.came_back[2]) == ((), 0, 7)


def test_a_node_that_watches_no_rank_any_more_says_so(channel: Channel) -> None:
    """Its ranks have ended with 0: the others must not wait for it."""
    reader: Any = None
    look_for_others(Look(3, False), [], SETTINGS, reader, channel.monitor, MACHINE, Comebacks())
    assert channel.told() == [Looked(3, None)]


@pytest.mark.parametrize("may_signal", [True, False])
def test_ranks_are_asked_by_a_signal_only_where_that_may_be(monkeypatch: pytest.MonkeyPatch, may_signal: bool) -> None:
    asked: list[int] = []

    def stacks(may_be_asked: Any, *_: Any) -> dict[int, Any]:
        asked.append(len(may_be_asked))
        return {}

    order = WatchOrder(3, 0, 0, "cell")

    rank: Any = Rank(order=order, view=lambda: "view", is_condemned=lambda view: False, pid=lambda view: 0)
    monkeypatch.setattr(hang_incident, "stacks_of_ranks", stacks)
    monkeypatch.setattr(hang_incident, "families_of", lambda *_: {})
    monkeypatch.setattr(hang_incident, "look_at", lambda pid: None)
    monkeypatch.setattr(hang_incident, "kernel_wait", lambda pid: None)
    monkeypatch.setattr(hang_incident, "started_at", lambda view: 0.0)
    monkeypatch.setattr(rank_evidence, "look_at", lambda pid: None)
    seen: Findings[Any] = Findings([], {rank: SimpleNamespace(start_time=0)}, time.monotonic_ns())  # type: ignore[dict-item]
    hang_incident.incident_whatever_happens(seen, [rank], SETTINGS, None, may_signal=may_signal)  # type: ignore[arg-type]
    assert asked == [1 if may_signal else 0]
