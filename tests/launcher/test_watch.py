"""One rank as its monitor sees it: time that is given back, a fresh monitor's doubt, and who is to be signalled."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.processes import wait_for_exit
from launcher.watch import FRESH_MONITOR_DOUBT_NS, RankMonitor, WatchOrder
from resilience_core.cell import (
    FIRST_SECTION,
    HEARTBEAT,
    NO_LIMIT,
    PID,
    SHUT_DOWN,
    START_TIME,
    STATE,
    UNUSED,
    WATCHED,
    Cell,
    process_start_time,
)

S = 1_000_000_000
T = 1_000 * S

WAITS = "print('ready', flush=True); input()"


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell.create(str(tmp_path / "cell"))
    own(cell, os.getpid())
    yield cell
    cell.close()


def own(cell: Cell, pid: int) -> None:
    cell.words[PID], cell.words[START_TIME] = pid, process_start_time(pid) or 0
    cell.words[STATE] = WATCHED


def monitor(cell: Cell, now_ns: int = T, **order: Any) -> RankMonitor:
    return RankMonitor(WatchOrder(0, 0, 0, cell.path, **order), None, now_ns)


def is_late(rank: RankMonitor, now_ns: int) -> bool:
    return rank.verdict(rank.view(), now_ns) is not None


def test_a_deadline_that_passed_before_anybody_watched_is_doubted_for_a_second(cell: Cell) -> None:
    """The rank may be about to move it: nobody knows why the monitor before has died."""
    cell.words[HEARTBEAT] = T - 60 * S
    rank = monitor(cell)

    assert not is_late(rank, T + FRESH_MONITOR_DOUBT_NS - 1)
    assert is_late(rank, T + FRESH_MONITOR_DOUBT_NS)
    assert rank.next_deadline_ns(rank.view()) == T + FRESH_MONITOR_DOUBT_NS


def test_a_deadline_that_passes_under_its_eyes_is_not_doubted(cell: Cell) -> None:
    cell.words[HEARTBEAT] = T
    rank = monitor(cell)

    assert is_late(rank, T)


def test_lost_time_is_given_back_to_every_running_deadline(cell: Cell) -> None:
    cell.words[HEARTBEAT] = T + 5 * S
    step = cell.add_section("step")
    cell.words[step], cell.words[step + 1] = T + 2 * S, T
    rank = monitor(cell)

    rank.give_back(10 * S)

    assert not is_late(rank, T + 12 * S - 1)
    assert is_late(rank, T + 12 * S)
    cell.words[step] = 0
    assert not is_late(rank, T + 15 * S - 1)
    assert is_late(rank, T + 15 * S)


def test_time_lost_twice_is_given_back_twice_but_never_to_a_later_deadline(cell: Cell) -> None:
    cell.words[HEARTBEAT] = T + 1 * S
    rank = monitor(cell)
    rank.give_back(10 * S)
    rank.give_back(5 * S)
    assert rank.next_deadline_ns(rank.view()) == T + 16 * S

    cell.words[HEARTBEAT] = T + 20 * S
    assert rank.next_deadline_ns(rank.view()) == T + 20 * S
    assert is_late(rank, T + 20 * S)
    rank.give_back(1 * S)
    cell.words[HEARTBEAT] = T + 1 * S  # a deadline of old: what it was given has been forgotten
    assert is_late(rank, T + 1 * S)


def test_the_startup_limit_gets_lost_time_back_too(cell: Cell) -> None:
    cell.words[PID], cell.words[STATE] = 0, UNUSED
    rank = monitor(cell, startup_at_ns=T + 3 * S, started_ns=T)
    rank.give_back(2 * S)

    assert not is_late(rank, T + 5 * S - 1)
    assert is_late(rank, T + 5 * S)


def test_an_open_end_needs_no_look(cell: Cell) -> None:
    cell.words[HEARTBEAT] = NO_LIMIT
    rank = monitor(cell)
    assert rank.next_deadline_ns(rank.view()) == NO_LIMIT
    cell.words[STATE] = SHUT_DOWN
    assert rank.next_deadline_ns(rank.view()) == NO_LIMIT


def test_a_condemned_process_is_not_watched_but_its_successor_is(
    cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    rank = monitor(cell)
    rank.condemn(rank.view())
    assert rank.is_condemned(rank.view())

    own(cell, spawn(WAITS).pid)
    assert not rank.is_condemned(rank.view())


def test_the_process_that_claimed_the_cell_is_the_one_to_signal(
    cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """Not the wrapper (a shell, numactl) around it that was started."""
    training = spawn(WAITS)
    own(cell, training.pid)
    rank = RankMonitor(WatchOrder(0, 0, 0, cell.path, pid=os.getpid()), os.pidfd_open(os.getpid()), T)

    pidfd = rank.pidfd(rank.view())
    assert pidfd is not None
    assert rank.pidfd(rank.view()) == pidfd
    assert not rank.is_gone(rank.view())
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert training.wait(timeout=10) == -signal.SIGKILL
    assert rank.is_gone(rank.view())
    rank.close()


def test_a_pid_that_belongs_to_somebody_else_by_now_is_never_hit(
    cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    own(cell, spawn(WAITS).pid)
    cell.words[START_TIME] -= 1
    rank = monitor(cell)

    assert rank.pidfd(rank.view()) is None
    assert rank.is_gone(rank.view())


def test_before_a_claim_the_worker_itself_is_the_one_to_signal(
    cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    worker = spawn(WAITS)
    cell.words[PID], cell.words[STATE] = 0, UNUSED
    pidfd = os.pidfd_open(worker.pid)
    rank = RankMonitor(WatchOrder(0, 0, 0, cell.path, pid=worker.pid), pidfd, T)

    assert rank.pidfd(rank.view()) == pidfd
    assert rank.pid(rank.view()) == worker.pid
    worker.kill()
    assert wait_for_exit([pidfd], 10) == {pidfd}
    assert rank.is_gone(rank.view())
    rank.close()


def test_without_a_worker_and_a_claim_there_is_nobody_and_nobody_is_gone(cell: Cell) -> None:
    cell.words[PID], cell.words[STATE] = 0, UNUSED
    rank = monitor(cell)

    assert rank.pidfd(rank.view()) is None
    assert not rank.is_gone(rank.view())
    assert not rank.is_stopped(rank.view())


def test_a_stopped_process_is_seen(cell: Cell, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    training = spawn(WAITS)
    own(cell, training.pid)
    rank = monitor(cell)
    assert not rank.is_stopped(rank.view())

    training.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, training.pid, os.WSTOPPED | os.WNOWAIT)
    assert rank.is_stopped(rank.view())


def test_an_order_survives_json_and_names_its_startup_limit() -> None:
    order = WatchOrder(1, 2, 3, "cell", 4, startup_at_ns=9, started_ns=5)
    assert WatchOrder(**order._asdict()) == order
    assert order.startup is not None
    assert (order.startup.at_ns, order.startup.since_ns) == (9, 5)
    assert WatchOrder(1, 2, 3, "cell").startup is None


def test_slots_of_the_cell_and_of_the_deadline_agree(cell: Cell) -> None:
    """Two sections whose limits pass at the same instant are told apart by their slots."""
    for name in ("a", "b"):
        word = cell.add_section(name)
        cell.words[word], cell.words[word + 1] = T, T - S
    rank = monitor(cell)
    rank.give_back(3 * S)

    cell.words[FIRST_SECTION] = 0
    assert rank.next_deadline_ns(rank.view()) == T + 3 * S
