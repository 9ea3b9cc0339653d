"""How long the monitor may sleep, never past a deadline that a rank may set meanwhile; and whom it kills late."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.monitor import hang_incident
from launcher.monitor.deadline_rules import LONGEST_SLEEP_NS, Findings
from launcher.monitor.lost_time import LostTime
from launcher.monitor.messages import (
    ORDERS,
    REPORTS,
    Forget,
    Look,
    Looked,
    MonitorConfig,
    MonitorSettings,
    Note,
    RunFolders,
    WatchOrder,
)
from launcher.monitor.monitor import Monitor
from launcher.monitor.rank_monitor import RankMonitor
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import (
    HEARTBEAT,
    LAST_HEARTBEAT,
    PID,
    SHUT_DOWN,
    SMALLEST_LIMIT,
    START_TIME,
    STATE,
    WATCHED,
)
from resilience_core.system.proc import process_start_time as start_time

S = 1_000_000_000


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell.create(str(tmp_path / "cell"))
    yield cell
    cell.close()


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The launcher's end and the monitor's."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield pair
    for each in pair:
        each.close()


@pytest.fixture
def monitor(
    tmp_path: Path, cell: Cell, channel: tuple[socket.socket, socket.socket]
) -> Iterator[Callable[..., Monitor]]:
    """A monitor in this process that watches one cell, and is never run."""
    theirs = channel[1]
    lost_time = LostTime.create()
    made: list[Monitor] = []

    def make(**settings: Any) -> Monitor:
        config = json.loads(FaultToleranceConfig(**settings).to_json())
        made.append(
            Monitor(
                MonitorSettings(
                    channel=theirs.detach(),
                    parent_pidfd=os.pidfd_open(os.getpid()),
                    lost_time=lost_time,
                    log_folder=str(tmp_path),
                    config=MonitorConfig.from_document(config),
                )
            )
        )
        same = Cell.from_descriptor(os.dup(cell.descriptor))
        made[-1]._ranks[0, 0] = RankMonitor(WatchOrder(0, 0, 0, cell.path), same, None, time.monotonic_ns())
        return made[-1]

    yield make
    for each in made:
        each._channel.close()
        each._poll.close()
        os.close(each._parent)
    os.close(lost_time)


def sleep(monitor: Monitor, now_ns: int) -> int:
    return monitor._rules.time_until_next_look(list(monitor._ranks.values()), now_ns)


def own(cell: Cell, smallest_limit_ns: int = 0) -> None:
    cell.words[PID], cell.words[START_TIME] = os.getpid(), start_time(os.getpid()) or 0
    cell.words[STATE], cell.words[SMALLEST_LIMIT] = WATCHED, smallest_limit_ns


def test_a_brief_look_tells_who_came_back_since_the_last_verdict(
    monitor: Callable[..., Monitor], cell: Cell, channel: tuple[socket.socket, socket.socket], monkeypatch: Any
) -> None:
    """And not since a look of long ago, when another rank was late: every rank has given signs since."""
    own(cell)
    watching, now_ns = monitor(), time.monotonic_ns()
    (rank,) = watching._ranks.values()
    watching._comebacks.look([rank], read=True)
    views = []
    for ago_s in (100, 1):
        cell.words[LAST_HEARTBEAT] = now_ns - ago_s * S
        views.append(rank.view())
    watching._looked = Findings([], {rank: views[0]}, now_ns - 40 * S)  # type: ignore[dict-item]
    monkeypatch.setattr("launcher.monitor.monitor.terminate", lambda *_: [])
    case: Any = SimpleNamespace(rank=rank)
    watching._condemn(Findings([case], {rank: views[1]}, now_ns))  # type: ignore[dict-item]

    cell.words[LAST_HEARTBEAT] = now_ns
    watching._look_for_others(Look(0, False, is_brief=True))
    looked = REPORTS.decode(channel[0].recv(1 << 16))
    assert isinstance(looked, Looked)
    assert (looked.is_brief, looked.came_back[0], looked.came_back[2]) == (True, 0, S)


@pytest.mark.parametrize("is_brief", [True, False])
@pytest.mark.parametrize("turns", [0, 1])
def test_who_came_back_and_was_never_found_to_be_late_is_told_to_other_nodes(
    monitor: Callable[..., Monitor],
    cell: Cell,
    channel: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    is_brief: bool,
    turns: int,
) -> None:
    """It was late for less time than a look takes, or this monitor has just taken over."""
    own(cell)
    watching, now_ns = monitor(stack_capture_timeout=60), time.monotonic_ns()
    (rank,) = watching._ranks.values()
    watching._comebacks.look([rank], read=True)
    cell.words[LAST_HEARTBEAT], cell.words[HEARTBEAT] = now_ns - 3 * S, now_ns - S
    watching._comebacks.look([rank], read=True)
    cell.words[LAST_HEARTBEAT], cell.words[HEARTBEAT] = now_ns, now_ns + 2 * S
    if turns:

        def look(ranks: Any) -> None:
            watching._told_to_stop = True

        monkeypatch.setattr(watching._rules, "look", look)
        monkeypatch.setattr(watching, "_listen", lambda ns: False)
        watching.run()
        assert [each.rank for each in watching._comebacks.of(0)] == [0]
    watching._look_for_others(Look(0, False, is_brief=is_brief))
    looked = REPORTS.decode(channel[0].recv(1 << 16))
    assert isinstance(looked, Looked)
    assert (looked.is_brief, looked.came_back[0], looked.came_back[2]) == (is_brief, 0, 2 * S)
    assert looked.came_back[1] >= S


def test_before_a_rank_has_spoken_the_configured_limits_say_how_often_to_look(monitor: Callable[..., Monitor]) -> None:
    """It may initialise, open a section and hang in it between two looks: the verdict would come late."""
    watching = monitor(rank_section_timeouts={"setup": 60, "step": 0.25})
    assert sleep(watching, 1000 * S) == S // 8


def test_afterwards_what_the_rank_says_is_in_force(monitor: Callable[..., Monitor], cell: Cell) -> None:
    watching = monitor(rank_section_timeouts={"setup": 60, "step": 0.25})
    own(cell, smallest_limit_ns=S // 5)
    assert sleep(watching, 1000 * S) == S // 10
    own(cell, smallest_limit_ns=600 * S)
    assert sleep(watching, 1000 * S) == LONGEST_SLEEP_NS


def test_the_nearest_deadline_ends_its_sleep(monitor: Callable[..., Monitor], cell: Cell) -> None:
    watching = monitor()
    own(cell)
    now = time.monotonic_ns()
    cell.words[HEARTBEAT] = now + S // 100
    assert sleep(watching, now) == S // 100


def test_ranks_that_owe_nothing_let_it_sleep(monitor: Callable[..., Monitor], cell: Cell) -> None:
    """Shut down, condemned, or gone with a deadline that passed long ago: no reason to spin."""
    watching = monitor(rank_section_timeouts={"step": 0.01})
    own(cell, smallest_limit_ns=S // 100)
    cell.words[STATE], cell.words[HEARTBEAT] = SHUT_DOWN, 1
    assert sleep(watching, 1000 * S) == LONGEST_SLEEP_NS
    own(cell)
    cell.words[START_TIME] -= 1
    assert sleep(watching, 1000 * S) == LONGEST_SLEEP_NS
    own(cell)
    rank = watching._ranks[0, 0]
    view = rank.view()
    assert view is not None
    rank.condemn(view)
    assert sleep(watching, 1000 * S) == LONGEST_SLEEP_NS


def condemned(monitor: Monitor, cell: Cell, process: subprocess.Popen[str]) -> RankMonitor:
    """A rank that has been condemned and signalled, and lives on."""
    cell.words[PID], cell.words[START_TIME] = process.pid, start_time(process.pid) or 0
    cell.words[STATE] = WATCHED
    (rank,) = monitor._ranks.values()
    view = rank.view()
    assert view is not None
    rank.condemn(view)
    rank.kill_at_ns = time.monotonic_ns() + S
    return rank


WAITS = "print('ready', flush=True); input()"


def test_a_condemned_rank_that_lives_on_is_killed_when_its_time_is_over_and_not_before(
    monitor: Callable[..., Monitor], cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    process, watcher = spawn(WAITS), monitor()
    rank = condemned(watcher, cell, process)
    due_ns = rank.kill_at_ns
    assert due_ns is not None
    watcher._kill_survivors(due_ns - 1)
    assert process.poll() is None
    watcher._kill_survivors(due_ns)
    assert process.wait(180) == -signal.SIGKILL
    assert rank.kill_at_ns is None


def test_a_successor_that_has_taken_over_the_cell_is_not_killed_in_its_place(
    monitor: Callable[..., Monitor], cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    process, watcher = spawn(WAITS), monitor()
    rank = condemned(watcher, cell, process)
    successor = spawn(WAITS)
    cell.words[PID], cell.words[START_TIME] = successor.pid, start_time(successor.pid) or 0
    watcher._kill_survivors(time.monotonic_ns() + 60 * S)
    assert rank.kill_at_ns is None
    successor.communicate("\n", timeout=180)
    assert successor.returncode == 0


def tell(monitor: Monitor, order: WatchOrder, *descriptors: int) -> list[int]:
    """Give an order with copies of these descriptors, and say which of the copies were closed."""
    copies = [os.dup(descriptor) for descriptor in descriptors]
    monitor._watch(order, list(copies), is_session_leader=False)
    return [descriptor for descriptor, copy in zip(descriptors, copies, strict=True) if is_closed(copy)]


def is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def test_an_order_that_is_told_again_does_not_undo_what_was_done_since(
    monitor: Callable[..., Monitor], cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """A successor may find its orders twice; a rank that it has condemned in between must be killed all the same."""
    process, watcher = spawn(WAITS), monitor()
    order, pidfd = WatchOrder(0, 0, 0, cell.path, process.pid), os.pidfd_open(process.pid)
    assert tell(watcher, order, cell.descriptor, pidfd) == []
    rank = condemned(watcher, cell, process)

    assert tell(watcher, order, cell.descriptor, pidfd) == [cell.descriptor, pidfd]
    assert watcher._ranks == {(0, 0): rank}
    assert rank.kill_at_ns is not None
    watcher._kill_survivors(rank.kill_at_ns)
    assert process.wait(180) == -signal.SIGKILL
    os.close(pidfd)


def test_an_order_that_says_something_new_is_obeyed(
    monitor: Callable[..., Monitor], cell: Cell, tmp_path: Path, channel: tuple[socket.socket, socket.socket]
) -> None:
    """Another worker, a cell that was made anew at the same path, or a worker that was not known before."""
    watcher, order = monitor(), WatchOrder(0, 0, 0, cell.path, os.getpid())
    pidfd = os.pidfd_open(os.getpid())
    other = Cell.create(str(tmp_path / "other"))
    seen = [watcher._ranks[0, 0]]
    later = order._replace(started_ns=1)
    news = [(order, cell, []), (order, cell, [pidfd]), (order, other, [pidfd]), (later, other, [pidfd])]
    for new_order, new_cell, worker in news:
        assert tell(watcher, new_order, new_cell.descriptor, *worker) == []
        seen.append(watcher._ranks[0, 0])
        assert seen[-1].order == new_order
        assert os.path.sameopenfile(seen[-1]._cell.descriptor, new_cell.descriptor)
    assert len(set(map(id, seen))) == len(seen)
    # One that came without its cell is not taken for the same: it may have been another cell.
    tell(watcher, later)
    assert (watcher._ranks, "not watched" in channel[0].recv(1 << 20).decode()) == ({}, True)
    other.close()
    os.close(pidfd)


def test_while_it_takes_stacks_it_has_announced_not_to_beat(
    monitor: Callable[..., Monitor], cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be replaced as stuck in the middle of a verdict, and its successor in the middle of the next."""
    watching = monitor(stack_capture_timeout=7)
    own(cell)
    cell.words[HEARTBEAT] = time.monotonic_ns() - 10 * S
    watching._ranks[0, 0]._since_ns = 0
    announced: list[int] = []

    def fake_condemn(findings: Any, *_: Any) -> list[Any]:
        announced.append(watching._lost.busy_until_ns - findings.seen_ns)
        return []

    monkeypatch.setattr("launcher.monitor.monitor.terminate", fake_condemn)
    findings = watching._rules.look(list(watching._ranks.values()))
    assert findings is not None
    watching._condemn(findings)
    assert announced[0] >= 7 * S
    assert watching._lost.busy_until_ns == 0


class Hung:
    """Two ranks of generation 0; the first is overdue, the second soon after."""

    def __init__(
        self,
        watcher: Monitor,
        cell: Cell,
        spawn: Callable[..., subprocess.Popen[str]],
        channel: tuple[socket.socket, socket.socket],
        folder: Path,
    ) -> None:
        self.watcher, self.launcher = watcher, channel[0]
        self.launcher.setblocking(False)
        self.second_cell = Cell.create(str(folder / "second"))
        self.cells = [cell, self.second_cell]
        same = Cell.from_descriptor(os.dup(self.second_cell.descriptor))
        order = WatchOrder(0, 1, 1, self.second_cell.path)
        watcher._ranks[0, 1] = RankMonitor(order, same, None, time.monotonic_ns())
        self.processes = [spawn(WAITS), spawn(WAITS)]
        for each, process in zip(self.cells, self.processes, strict=True):
            each.words[PID], each.words[START_TIME] = process.pid, start_time(process.pid) or 0
            each.words[STATE] = WATCHED
        for rank in watcher._ranks.values():
            rank._since_ns = 0

    def be_late(self, local_rank: int) -> None:
        self.cells[local_rank].words[HEARTBEAT] = time.monotonic_ns() - 10 * S

    def judge(self) -> None:
        """What the monitor's loop does when it has slept."""
        findings = self.watcher._rules.look(self.watcher._judged())
        if findings is not None:
            self.watcher._condemn(findings)
        self.watcher._writer.finish(60)

    def told(self) -> list[str]:
        """What the launcher has been told since the last time."""
        told = []
        while True:
            try:
                told.append(type(REPORTS.decode(self.launcher.recv(1 << 20))).__name__)
            except BlockingIOError:
                return told


@pytest.fixture
def hung(
    monitor: Callable[..., Monitor],
    cell: Cell,
    spawn: Callable[..., subprocess.Popen[str]],
    channel: tuple[socket.socket, socket.socket],
    tmp_path: Path,
) -> Iterator[Hung]:
    made = Hung(monitor(capture_stacks=False), cell, spawn, channel, tmp_path)
    yield made
    made.second_cell.close()


@pytest.mark.parametrize("owns_ranks", [True, False])
def test_where_the_launcher_ends_all_a_second_rank_that_is_late_is_no_second_incident(
    hung: Hung, owns_ranks: bool, tmp_path: Path
) -> None:
    """Its own deadline passes while the group is being killed. Where each rank stands alone it is one of its own."""
    hung.watcher._settings = hung.watcher._settings._replace(owns_ranks=owns_ranks)
    hung.be_late(0)
    hung.judge()
    assert hung.processes[0].wait(180) == -signal.SIGKILL
    assert hung.told() == ["HangReport", "Signalled"]

    hung.be_late(1)
    hung.judge()

    assert hung.told() == ([] if owns_ranks else ["HangReport", "Signalled"])
    assert len(list((tmp_path / "incidents").iterdir())) == (1 if owns_ranks else 2)
    if owns_ranks:
        assert sleep(hung.watcher, time.monotonic_ns()) == 0  # it would look all the time
        ranks = hung.watcher._judged()
        assert hung.watcher._rules.time_until_next_look(ranks, time.monotonic_ns()) == LONGEST_SLEEP_NS
        assert hung.processes[1].poll() is None  # the launcher's business


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_who_hangs_in_a_generation_that_the_launcher_is_ending_is_not_judged(
    hung: Hung, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so before it signals anybody; what is found then may be what it has done itself."""
    orders = [RunFolders(("/last/order",), ()), Forget(0, False)]

    def order() -> None:
        for each in orders:
            hung.launcher.send(ORDERS.encode(each))

    if when == "before":
        order()
    else:
        evidence = hang_incident._incident
        monkeypatch.setattr(hang_incident, "_incident", lambda *facts, **how: (order(), evidence(*facts, **how))[1])
    hung.be_late(0)
    hung.judge()

    assert hung.told() == []
    assert not (tmp_path / "incidents").exists()
    assert [process.poll() for process in hung.processes] == [None, None]
    assert (hung.watcher._ranks, hung.watcher._settings.run_folders) == ({}, ("/last/order",))


def test_a_run_folder_that_hangs_holds_up_nothing_else(
    monitor: Callable[..., Monitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = monitor()
    watching._settings = watching._settings._replace(parts=("part",))
    answers, asked = threading.Event(), threading.Semaphore(0)
    main = threading.get_ident()

    def exists(path: str) -> bool:
        assert threading.get_ident() != main
        if path != "part":
            return True
        asked.release()
        return not answers.wait(60)

    monkeypatch.setattr("launcher.monitor.monitor.os.path.exists", exists)
    for turn in range(1, 10):
        watching._look_for_parts(turn * 10 * S)
    assert asked.acquire(timeout=180)
    answers.set()
    assert watching._parts_looker.flush(60)
    assert list(watching._missing) == [["part"]]
    assert not asked.acquire(blocking=False)  # while it hangs, nobody asks again


@pytest.mark.parametrize("meets_it_first", ["reading", "sending"])
def test_a_launcher_that_is_killed_with_reports_unread_is_lost_like_any_other(
    monitor: Callable[..., Monitor],
    channel: tuple[socket.socket, socket.socket],
    meets_it_first: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One that was stopped has not read them: its end of the channel is reset (ECONNRESET), not only closed."""
    made, (launcher, _) = monitor(), channel
    made._channel.tell(Note(0, "never read"))
    launcher.send(ORDERS.encode(RunFolders(("/last/order",), ())))
    launcher.close()

    if meets_it_first == "sending":
        made._channel.tell(Note(0, "not sent"))
    while made._listen(0):
        pass
    made._channel.tell(Note(0, "not sent either"))

    assert made._settings.run_folders == ("/last/order",)
    assert not made._channel.unsent
    assert "could not report" not in capfd.readouterr().err


def test_less_than_a_millisecond_is_slept_too(monitor: Callable[..., Monitor]) -> None:
    """epoll knows no less than one: a look would be late by up to that, or the loop would spin."""
    made = monitor()
    began_ns = time.monotonic_ns()
    assert not made._listen(400_000)
    assert time.monotonic_ns() - began_ns >= 400_000
