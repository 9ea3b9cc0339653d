"""The fence: ranks are killed when the lease has run out, and at no other time, whatever everybody else does."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.monitor import fencing
from launcher.monitor.fencing import Fence
from launcher.monitor.lost_time import LostTime
from launcher.monitor.messages import ORDERS, REPORTS, Fenced, Forget, MonitorConfig, MonitorSettings, Watch, WatchOrder
from launcher.monitor.monitor import Monitor
from launcher.nodes.fence import LeaseWord
from launcher.processes.handles import end_sessions, wait_for_exit
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.cell import Cell

S = 1_000_000_000
PATIENCE = 180.0
WAITS = "print('ready', flush=True); input()"
WITH_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.fixture
def word(tmp_path: Path) -> Iterator[LeaseWord]:
    made = LeaseWord(str(tmp_path / "lease"))
    yield made
    made.close()


class Guarded:
    """A fence, what it has told, and the rank that it guards, number 0 of generation 4."""

    def __init__(self, word: LeaseWord, rank: subprocess.Popen[str], folder: Path) -> None:
        self.told, self.was_alive = list[Fenced](), list[bool]()
        self.word, self.rank = word, rank
        self.fence = Fence(word.descriptor, self.tell, lambda: [str(folder)])
        pidfd = os.pidfd_open(rank.pid)
        self.fence.add(4, 0, 0, pidfd)
        os.close(pidfd)

    def tell(self, report: Fenced) -> None:
        self.told.append(report)
        self.was_alive.append(self.rank.poll() is None)


@pytest.fixture
def guarded(word: LeaseWord, spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(word, spawn(WAITS), tmp_path / "run")
    yield made
    made.fence.close()


def test_when_the_lease_has_run_out_it_is_told_and_then_the_rank_is_killed(
    guarded: Guarded, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this order: the launcher must not take the ranks for failed."""
    guarded.word.grant(time.monotonic_ns() - S)
    guarded.fence._look()
    assert guarded.rank.wait(PATIENCE) == -signal.SIGKILL
    (report,) = guarded.told
    assert report.generation == 4
    assert report.late_ns >= S
    assert guarded.was_alive == [True]
    assert "this node is cut off: its lease has run out" in capfd.readouterr().err


def test_until_then_it_sleeps_no_longer_than_the_lease_and_touches_nobody(guarded: Guarded) -> None:
    assert guarded.fence._look() == fencing._LONGEST_SLEEP_NS
    guarded.word.grant(time.monotonic_ns() + 3600 * S)
    assert guarded.fence._look() == fencing._LONGEST_SLEEP_NS
    guarded.word.grant(until_ns := time.monotonic_ns() + S // 4)
    before_ns = time.monotonic_ns()
    assert guarded.fence._look() <= until_ns - before_ns
    assert (guarded.told, guarded.rank.poll()) == ([], None)


@pytest.mark.parametrize("change", [lambda word: word.grant(time.monotonic_ns() + 3600 * S), lambda word: word.lift()])
def test_a_lease_that_was_renewed_or_lifted_kills_nobody(
    guarded: Guarded, change: Callable[[LeaseWord], object]
) -> None:
    guarded.word.grant(1)
    change(guarded.word)
    guarded.fence._look()
    assert (guarded.told, guarded.rank.poll()) == ([], None)


def test_one_that_is_renewed_between_the_two_looks_kills_nobody(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [1, time.monotonic_ns() + 3600 * S]
    monkeypatch.setattr(fencing, "read_lease", lambda _: words.pop(0))
    guarded.fence._look()
    assert (words, guarded.told, guarded.rank.poll()) == ([], [], None)


def test_it_is_told_once_for_each_deadline_and_generation(guarded: Guarded) -> None:
    guarded.word.grant(1)
    guarded.fence._look()
    guarded.fence._look()
    assert [report.generation for report in guarded.told] == [4]
    guarded.fence.add(5, 0, 0, None)
    guarded.fence._look()
    assert [report.generation for report in guarded.told] == [4, 5]
    guarded.word.grant(2)
    guarded.fence._look()
    guarded.fence.forget(5)
    guarded.fence.forget(4)
    guarded.fence._look()
    assert [report.generation for report in guarded.told] == [4, 5, 5, -1]


def test_a_rank_of_a_generation_that_is_over_is_not_touched(guarded: Guarded) -> None:
    """Its numbers may be somebody else's by now."""
    guarded.fence.forget(4)
    guarded.word.grant(1)
    guarded.fence._look()
    assert guarded.rank.poll() is None


def test_all_of_a_rank_s_session_is_killed(guarded: Guarded, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    worker = spawn(WITH_A_CHILD, session=True)
    child = os.pidfd_open(int(worker.ready))  # type: ignore[attr-defined]
    guarded.fence.add(4, 1, worker.pid, None)
    guarded.word.grant(1)
    guarded.fence._look()
    assert worker.wait(PATIENCE) == -signal.SIGKILL
    assert wait_for_exit([child], PATIENCE)
    os.close(child)


def test_a_marked_rank_of_which_the_monitor_was_never_told_is_killed(
    guarded: Guarded, spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Its launcher was stopped in the moment between its start and the order to watch it."""
    mark = "from launcher.processes.process_marks import leave_mark; import sys; leave_mark(sys.argv[1] + '/cells/0');"
    unknown = spawn(mark + WAITS, str(tmp_path / "run"))
    guarded.word.grant(1)
    guarded.fence._look()
    assert unknown.wait(PATIENCE) == -signal.SIGKILL


def test_damage_leaves_the_known_deadline_in_force_and_is_said_once(
    guarded: Guarded, word: LeaseWord, capfd: pytest.CaptureFixture[str]
) -> None:
    word.grant(until_ns := time.monotonic_ns() + S // 5)
    guarded.fence._look()
    os.ftruncate(word.descriptor, 3)
    while time.monotonic_ns() < until_ns:
        time.sleep(guarded.fence._look() / S)
    guarded.fence._look()
    said = capfd.readouterr().err
    assert said.count("the file with the lease of this node is damaged: the deadline that it had") == 1
    assert len(guarded.told) == 1
    assert guarded.rank.wait(PATIENCE) == -signal.SIGKILL


def test_damage_that_is_mended_is_over(guarded: Guarded, word: LeaseWord) -> None:
    word.grant(time.monotonic_ns() + 3600 * S)
    guarded.fence._look()
    os.ftruncate(word.descriptor, 0)
    guarded.fence._look()
    word.lift()
    assert guarded.fence._left_ns() is None
    assert guarded.rank.poll() is None


# ---- the thread -----------------------------------------------------------------------------------------


def test_the_thread_wakes_for_the_deadline_and_goes_on_after_a_failure(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    failures = [OSError(24, "no descriptor is left")]

    def fail_once(*arguments: Any, **more: Any) -> set[int]:
        if failures:
            raise failures.pop()
        return end_sessions(*arguments, **more)

    monkeypatch.setattr("launcher.monitor.fencing.end_sessions", fail_once)
    worker = spawn(WAITS, session=True)
    guarded.fence.add(4, 1, worker.pid, None)
    guarded.word.grant(time.monotonic_ns() + S // 10)
    guarded.fence.start()
    assert guarded.rank.wait(PATIENCE) == -signal.SIGKILL
    assert worker.wait(PATIENCE) == -signal.SIGKILL
    assert failures == []
    assert len(guarded.told) == 1


def test_who_comes_when_the_lease_has_run_out_is_killed_at_once(
    guarded: Guarded, spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that has slept through it and goes on where it was starts a rank."""
    monkeypatch.setattr(fencing, "_LONGEST_SLEEP_NS", 3600 * S)
    guarded.word.grant(1)
    guarded.fence.start()
    assert guarded.rank.wait(PATIENCE) == -signal.SIGKILL
    late = spawn(WAITS)
    pidfd = os.pidfd_open(late.pid)
    guarded.fence.add(5, 0, 0, pidfd)
    os.close(pidfd)
    assert late.wait(PATIENCE) == -signal.SIGKILL
    assert [report.generation for report in guarded.told] == [4, 5]


# ---- in the monitor -------------------------------------------------------------------------------------


class Stuck:
    """A monitor in this process whose loop does nothing but read its orders, as one that takes stacks."""

    def __init__(self, folder: Path, word: LeaseWord) -> None:
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lost_time = LostTime.create()
        config = json.loads(FaultToleranceConfig(capture_stacks=False).to_json())
        self.monitor = Monitor(
            MonitorSettings(
                channel=theirs.detach(),
                parent_pidfd=os.pidfd_open(os.getpid()),
                lost_time=self.lost_time,
                log_folder=str(folder),
                config=MonitorConfig.from_document(config),
                lease=word.descriptor,
            )
        )
        self.cell = Cell.create(str(folder / "cell"))

    def order(self, order: Watch | Forget, *descriptors: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
        self.ours.sendmsg([ORDERS.encode(order)], rights if descriptors else [])
        assert self.monitor._listen(0)

    def watch(self, generation: int, rank: subprocess.Popen[str]) -> None:
        pidfd = os.pidfd_open(rank.pid)
        order = WatchOrder(generation, 0, 0, self.cell.path, rank.pid)
        self.order(Watch(order, True), self.cell.descriptor, pidfd)
        os.close(pidfd)

    def close(self) -> None:
        fence = self.monitor._fence
        assert fence is not None
        fence.close()
        for rank in self.monitor._ranks.values():
            rank.close()
        self.monitor._channel.close()
        self.monitor._poll.close()
        self.ours.close()
        self.cell.close()
        os.close(self.monitor._parent)
        os.close(self.lost_time)


@pytest.fixture
def stuck(tmp_path: Path, word: LeaseWord) -> Iterator[Stuck]:
    made = Stuck(tmp_path, word)
    yield made
    made.close()


def test_a_loop_that_is_stuck_keeps_nobody_alive(
    stuck: Stuck, word: LeaseWord, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    rank = spawn(WAITS, session=True)
    stuck.watch(4, rank)
    word.grant(time.monotonic_ns())
    assert rank.wait(PATIENCE) == -signal.SIGKILL
    report = REPORTS.decode(stuck.ours.recv(1 << 16))
    assert isinstance(report, Fenced)
    assert report.generation == 4


def test_a_generation_is_guarded_until_nothing_of_it_runs_any_more(
    stuck: Stuck, word: LeaseWord, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """Ranks that were asked to end may be writing a checkpoint for minutes."""
    over, ending = spawn(WAITS, session=True), spawn(WAITS, session=True)
    stuck.watch(3, over)
    stuck.order(Forget(3, True))
    stuck.watch(4, ending)
    stuck.order(Forget(4, False))
    word.grant(time.monotonic_ns())
    assert ending.wait(PATIENCE) == -signal.SIGKILL
    assert over.poll() is None
