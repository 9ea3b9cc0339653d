"""The monitor as its parent sees it: replaced when it is lost, and when that does not help, said so."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import monitor_handle as monitor_process
from launcher.agent.monitor_handle import MonitorHandle
from launcher.monitor import replacement_rules
from launcher.monitor.messages import ORDERS, MissingParts, WatchOrder
from launcher.processes.handles import wait_for_exit
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import PID, START_TIME, STATE, WATCHED
from resilience_core.system.proc import process_start_time

PATIENCE = 180.0
DIES_AT_ONCE = "raise SystemExit(3)"


@pytest.fixture
def changes() -> queue.Queue[tuple[str, str]]:
    return queue.Queue()


@pytest.fixture
def process(tmp_path: Path, changes: queue.Queue[tuple[str, str]]) -> Iterator[MonitorHandle]:
    (tmp_path / "run").mkdir()
    process = MonitorHandle(
        FaultToleranceConfig(),
        run_folder=str(tmp_path / "run"),
        log_folder=str(tmp_path),
        owns_ranks=False,
        on_change=lambda change, reason: changes.put((change, reason)),
    )
    yield process
    process.close()


def kind_of(raw: bytes) -> str:
    return type(ORDERS.decode(raw)).__name__


def first_missing(process: MonitorHandle) -> list[str]:
    """Wait for a report of what is missing."""
    end = time.monotonic() + PATIENCE
    while (left := end - time.monotonic()) > 0:
        select.select([process.channel], [], [], left)
        for report in process.read_reports():
            if isinstance(report, MissingParts):
                return list(report.paths)
    raise AssertionError("nothing was reported as missing")


def test_one_that_dies_again_and_again_leaves_the_node_unprotected_and_that_is_said(
    process: MonitorHandle, changes: queue.Queue[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement_rules, "FIRST_PAUSE_NS", 100_000_000)
    good = monitor_process._PROGRAM
    monkeypatch.setattr(monitor_process, "_PROGRAM", DIES_AT_ONCE)
    monkeypatch.setattr(replacement_rules, "MOST_SHORT_LIVES", 2)

    os.kill(process.pid, signal.SIGKILL)

    assert changes.get(timeout=PATIENCE)[0] == "monitor_replaced"
    change, reason = changes.get(timeout=PATIENCE)
    assert (change, reason) == ("monitor_lost", "ended (exit code 3)")
    # It is said once, and they go on being tried: as soon as one can live, it does.
    monkeypatch.setattr(monitor_process, "_PROGRAM", good)
    monkeypatch.setattr(replacement_rules, "SHORT_LIFE_NS", 1_000_000_000)
    assert changes.get(timeout=PATIENCE)[0] == "monitor_back"
    assert changes.empty()


def test_one_that_cannot_be_killed_stays_known_until_it_is_gone(
    process: MonitorHandle, uninterruptible: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for something that a rank has left, it would be waited for in the next restart."""
    monkeypatch.setattr(monitor_process, "_LONGEST_END_SECONDS", 0.05)
    stuck = process.pid
    uninterruptible.put_in(stuck)

    process._replace("recorded", time.monotonic_ns())

    assert process.pids == {process.pid, stuck}
    pidfd = os.pidfd_open(stuck)
    uninterruptible.let_go()
    assert wait_for_exit([pidfd], PATIENCE)
    os.close(pidfd)
    assert process.pids == {process.pid}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_monitors_hit_in_quick_succession_come_back_say_so_and_find_who_hung_meanwhile(
    tmp_path: Path,
    changes: queue.Queue[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    spawn: Callable[..., subprocess.Popen[str]],
    number: signal.Signals,
) -> None:
    monkeypatch.setattr(replacement_rules, "FIRST_PAUSE_NS", 100_000_000)
    process = MonitorHandle(
        FaultToleranceConfig(capture_stacks=False),
        run_folder=str(tmp_path),
        log_folder=str(tmp_path),
        owns_ranks=False,
        on_change=lambda change, reason: changes.put((change, reason)),
    )
    with contextlib.closing(process), contextlib.closing(Cell.create(str(tmp_path / "0"))) as cell:
        rank = spawn("print('ready', flush=True); input()")
        process.watch(WatchOrder(0, 0, 0, cell.path, rank.pid), cell)
        told = []
        while "monitor_lost" not in told:
            os.kill(process.pid, number)
            told.append(changes.get(timeout=PATIENCE)[0])
        assert process.unprotected_since_ns is not None
        assert len(told) >= replacement_rules.MOST_SHORT_LIVES
        hang(cell, rank.pid)

        monkeypatch.setattr(replacement_rules, "SHORT_LIFE_NS", 1_000_000_000)
        change, reason = changes.get(timeout=PATIENCE)
        assert change == "monitor_back"
        assert re.fullmatch(r"since \d\d:\d\d:\d\d, after it was off for \d+\.\d s", reason), reason
        assert process.unprotected_since_ns is None
        assert rank.wait(PATIENCE) == -signal.SIGKILL
        assert changes.empty()


def hang(cell: Cell, pid: int) -> None:
    """Make the process the owner of the cell, and long overdue in a section."""
    now_ns = time.monotonic_ns()
    word = cell.add_section("step")
    cell.words[PID], cell.words[START_TIME] = pid, process_start_time(pid) or 0
    cell.words[word + 1], cell.words[word] = now_ns - 3_000_000_000, now_ns - 1_000_000_000
    cell.words[STATE] = WATCHED


def test_where_none_can_be_started_protection_is_off_and_the_keeper_goes_on_trying(
    process: MonitorHandle, changes: queue.Queue[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement_rules, "FIRST_PAUSE_NS", 100_000_000)
    monkeypatch.setattr(replacement_rules, "SHORT_LIFE_NS", 1_000_000_000)
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/no/python")
        os.kill(process.pid, signal.SIGKILL)
        change, reason = changes.get(timeout=PATIENCE)
        assert (change, "cannot start the monitor process with /no/python" in reason) == ("monitor_lost", True)
    assert changes.get(timeout=PATIENCE)[0] in ("monitor_back", "monitor_replaced")
    os.kill(process.pid, 0)


def test_a_successor_finds_its_orders_although_its_parent_dies_the_moment_it_starts_it(
    process: MonitorHandle, changes: queue.Queue[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would have nobody to end. The parent's other end of the channel stands for the successor's look."""
    waiting: list[bytes] = []
    start = process._start

    def look_and_start() -> subprocess.Popen[bytes]:
        waiting.append(process._their_end.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return start()

    monkeypatch.setattr(process, "_start", look_and_start)
    os.kill(process.pid, signal.SIGKILL)

    assert changes.get(timeout=PATIENCE)[0] == "monitor_replaced"
    assert [kind_of(message) for message in waiting] == ["RunFolders"]


def test_while_none_can_be_started_orders_do_not_pile_up(
    process: MonitorHandle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full channel loses what is said next, as that a generation is over: its cells were watched for good."""

    def start() -> subprocess.Popen[bytes]:
        raise monitor_process.MonitorStartError("none today")

    process._closing.set()
    process._keeper.join()
    monkeypatch.setattr(process, "_start", start)
    with contextlib.closing(Cell.create(str(tmp_path / "run" / "0"))) as cell:
        process.watch(WatchOrder(7, 0, 0, cell.path), cell)
        for _ in range(3):
            process._replace("recorded", time.monotonic_ns())
        process.forget(7)
    waiting = []
    with contextlib.suppress(BlockingIOError):
        while True:
            waiting.append(kind_of(process._their_end.recv(1 << 16, socket.MSG_DONTWAIT)))
    assert waiting == ["RunFolders", "Watch", "Forget"]


def test_a_successor_knows_whom_to_watch_although_its_orders_were_read_by_the_former_one(
    process: MonitorHandle,
    changes: queue.Queue[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    spawn: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    """They wait in the channel that the former one reads, too: one that is slow, and wakes just then."""
    start, taken = process._start, queue.Queue[bytes]()

    def take_all_and_start() -> subprocess.Popen[bytes]:
        with contextlib.suppress(BlockingIOError):
            while True:
                taken.put(process._their_end.recv(1 << 16, socket.MSG_DONTWAIT))
        return start()

    with contextlib.closing(Cell.create(str(tmp_path / "run" / "0"))) as cell:
        rank = spawn("print('ready', flush=True); input()")
        process.watch(WatchOrder(0, 0, 0, cell.path, rank.pid), cell)
        monkeypatch.setattr(process, "_start", take_all_and_start)
        os.kill(process.pid, signal.SIGSTOP)
        assert changes.get(timeout=PATIENCE)[0] == "monitor_replaced"
        assert "Watch" in [kind_of(taken.get()) for _ in range(taken.qsize())]
        hang(cell, rank.pid)
        assert rank.wait(PATIENCE) == -signal.SIGKILL


def test_a_successor_knows_whom_to_watch_although_the_former_one_read_its_orders_while_it_was_dying(
    process: MonitorHandle,
    monkeypatch: pytest.MonkeyPatch,
    spawn: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    """It may be inside of a call that takes one when it is killed."""
    has_ended = monitor_process._has_ended

    def waiting() -> list[str]:
        kinds = []
        with contextlib.suppress(BlockingIOError):
            while True:
                kinds.append(kind_of(process._their_end.recv(1 << 16, socket.MSG_DONTWAIT)))
        return kinds

    def take_all(former: subprocess.Popen[bytes]) -> bool:
        waiting()  # unless it was quicker
        return has_ended(former)

    process._closing.set()
    process._keeper.join()
    monkeypatch.setattr(process, "_start", lambda: spawn("print('ready', flush=True); input()"))  # and reads nothing
    monkeypatch.setattr(monitor_process, "_has_ended", take_all)
    with contextlib.closing(Cell.create(str(tmp_path / "run" / "0"))) as cell:
        process.watch(WatchOrder(7, 0, 0, cell.path), cell)
        process._replace("recorded", time.monotonic_ns())
    assert waiting() == ["RunFolders", "Watch"]


DIES_WHILE_IT_REPLACES_A_STOPPED_MONITOR = """
import os, select, signal, subprocess, sys, threading
from launcher.agent import monitor_handle as monitor_process
from launcher.monitor.messages import WatchOrder
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.cell import Cell

moment, run_folder, log_folder = sys.argv[1:]
rank = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
process = monitor_process.MonitorHandle(
    FaultToleranceConfig(), run_folder=run_folder, log_folder=log_folder, owns_ranks=True
)
cell = Cell.create(os.path.join(run_folder, "0"))
process.watch(WatchOrder(0, 0, 0, cell.path, rank.pid), cell, is_session_leader=True)
process.show_run_folders([run_folder], [os.path.join(run_folder, "missing")])
select.select([process.channel], [], [])  # until it says so: from then on the kernel continues it when its parent dies
first = process._process

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Former:
    def __getattr__(self, name):
        return getattr(first, name)

    def send_signal(self, number):
        if moment == "before the former one is killed":
            die()
        first.send_signal(number)
        if moment == "after the former one was killed":
            die()

start = process._start

def start_and_die():
    if moment == "before the start":
        die()
    started = start()
    if moment == "after the start":
        die()
    return started

with process._lock:
    process._process, process._start = Former(), start_and_die
print(rank.pid, flush=True)
input()  # until the test holds the rank
os.kill(first.pid, signal.SIGSTOP)
threading.Event().wait()
"""


@pytest.mark.parametrize(
    "moment",
    ["before the start", "after the start", "before the former one is killed", "after the former one was killed"],
)
def test_whoever_dies_while_it_replaces_a_stopped_monitor_leaves_nothing(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], moment: str
) -> None:
    """There is always one to end the ranks: the stopped one, which the kernel continues then, or its successor."""
    run = tmp_path / "run"
    run.mkdir()
    parent: Any = spawn(DIES_WHILE_IT_REPLACES_A_STOPPED_MONITOR, moment, str(run), str(tmp_path))
    rank = os.pidfd_open(int(parent.ready))
    parent.stdin.write("\n")
    parent.stdin.flush()

    assert parent.wait(PATIENCE) == -signal.SIGKILL
    try:
        assert wait_for_exit([rank], PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank, signal.SIGKILL)
        os.close(rank)
    end = time.monotonic() + PATIENCE
    while run.exists() and time.monotonic() < end:
        select.select([], [], [], 0.01)
    assert not run.exists()


def test_a_monitor_that_is_stopped_where_there_is_room_for_one_only_is_replaced(
    process: MonitorHandle, changes: queue.Queue[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, former = process._start, process._process
    refused: list[str] = []

    def has_room() -> subprocess.Popen[bytes]:
        if former.poll() is None:
            refused.append("no room")
            raise monitor_process.MonitorStartError("no room")
        return start()

    monkeypatch.setattr(process, "_start", has_room)
    os.kill(process.pid, signal.SIGSTOP)

    assert changes.get(timeout=PATIENCE) == ("monitor_replaced", "was stopped")
    assert refused == ["no room"]
    os.kill(process.pid, 0)


def test_what_is_missing_from_the_run_folder_is_reported_also_by_a_successor(
    process: MonitorHandle, changes: queue.Queue[tuple[str, str]], tmp_path: Path
) -> None:
    part = tmp_path / "run" / "config.json"
    part.touch()
    process.show_run_folders([str(tmp_path / "run")], [str(part)])
    part.unlink()
    assert first_missing(process) == [str(part)]

    os.kill(process.pid, signal.SIGKILL)
    assert changes.get(timeout=PATIENCE)[0] == "monitor_replaced"
    process.read_reports()
    assert first_missing(process) == [str(part)]


def test_a_cell_that_was_removed_before_its_rank_has_opened_it_is_missing_too(
    process: MonitorHandle, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process.show_run_folders([str(run)], [str(run)])
    cells = [Cell.create(str(run / str(number))) for number in range(2)]
    for number, cell in enumerate(cells):
        process.watch(WatchOrder(0, number, number, cell.path), cell)
    cells[1].claim(os.getpid(), 1)
    shutil.rmtree(run)
    run.mkdir()
    assert cells[0].path in first_missing(process)
    while str(run) in (missing := first_missing(process)):  # looked at while the folder was away
        pass
    assert missing == [cells[0].path]
    for cell in cells:
        cell.close()
