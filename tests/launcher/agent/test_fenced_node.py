"""A node with a lease: real monitors, a real rank, and launchers that are stopped or killed."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent.monitor_handle import MonitorHandle
from launcher.agent.monitor_reports import take_reports
from launcher.monitor.messages import Fenced, WatchOrder
from launcher.nodes import fence
from launcher.nodes.fence import LeaseWord
from launcher.nodes.transport import Transport
from launcher.processes.handles import has_exited, wait_for_exit
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.cell import Cell

S = 1_000_000_000
HOUR = 3600 * S
PATIENCE = 180.0
SECRET = b"0123456789abcdef"
WAITS = "print('ready', flush=True); input()"
LAUNCHER = """
import os, subprocess, sys, time
from launcher.agent.monitor_handle import MonitorHandle
from launcher.monitor.messages import WatchOrder
from launcher.nodes.farewell import Farewell
from launcher.nodes.fence import LeaseWord
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.cell import Cell

folder, log_folder, port = sys.argv[1:]
lease = LeaseWord(folder + "/lease")
lease.grant(time.monotonic_ns() + 3600 * 10**9)
if port != "0":
    Farewell(lambda: folder).write([("127.0.0.1", int(port))], "run", b"0123456789abcdef", "node-1", b"gone")
monitor = MonitorHandle(
    FaultToleranceConfig(capture_stacks=False), run_folder=folder, log_folder=log_folder, owns_ranks=True, lease=lease
)
rank = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
cell = Cell.create(folder + "/0")
monitor.watch(WatchOrder(0, 0, 0, cell.path, rank.pid), cell, is_session_leader=True)
print(rank.pid, monitor.pid, flush=True)
input()
"""


class Node:
    """A monitor that this process has started, and a rank of generation 0."""

    def __init__(self, folder: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
        run_folder = folder / "run"
        run_folder.mkdir()
        self.changes: queue.Queue[str] = queue.Queue()
        self.word = LeaseWord(str(run_folder / "lease"))
        self.monitor = MonitorHandle(
            FaultToleranceConfig(capture_stacks=False),
            run_folder=str(run_folder),
            log_folder=str(folder),
            owns_ranks=True,
            on_change=lambda change, _: self.changes.put(change),
            lease=self.word,
        )
        self.cell = Cell.create(str(run_folder / "0"))
        self.rank = spawn(WAITS, session=True)
        self.monitor.watch(WatchOrder(0, 0, 0, self.cell.path, self.rank.pid), self.cell, is_session_leader=True)

    def wait_for_fenced(self) -> Fenced:
        """Wait for the report on the rank; a monitor that has not read its orders yet tells of generation -1 first."""
        end = time.monotonic() + PATIENCE
        while (left := end - time.monotonic()) > 0:
            select.select([self.monitor.channel], [], [], left)
            for report in self.monitor.read_reports():
                if isinstance(report, Fenced) and report.generation == 0:
                    return report
        raise AssertionError("no report")

    def close(self) -> None:
        self.monitor.close()
        self.word.close()
        self.cell.close()


@pytest.fixture
def node(tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]) -> Iterator[Node]:
    with contextlib.closing(Node(tmp_path, spawn)) as made:
        yield made


def test_when_the_lease_passes_the_rank_is_killed_and_the_launcher_knows_why_already(node: Node) -> None:
    node.word.grant(time.monotonic_ns() + S)
    assert node.rank.wait(PATIENCE) == -signal.SIGKILL
    reports = [report for report in node.monitor.read_reports() if isinstance(report, Fenced)]
    assert [report.generation for report in reports] == [0]
    assert reports[0].late_ns >= 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_monitor_that_was_replaced_goes_on_with_the_fence(node: Node, number: signal.Signals) -> None:
    node.word.grant(time.monotonic_ns() + HOUR)
    os.kill(node.monitor.pid, number)
    assert node.changes.get(timeout=PATIENCE) == "monitor_replaced"
    assert node.rank.poll() is None
    node.word.grant(time.monotonic_ns())
    assert node.rank.wait(PATIENCE) == -signal.SIGKILL
    node.wait_for_fenced()


def test_a_monitor_that_overslept_kills_when_it_wakes(node: Node) -> None:
    """The whole node stood still, say. Its lease did not: the lost time is not given back."""
    node.word.grant(time.monotonic_ns() + HOUR)
    os.kill(node.monitor.pid, signal.SIGSTOP)
    node.word.grant(1)
    os.kill(node.monitor.pid, signal.SIGCONT)
    assert node.rank.wait(PATIENCE) == -signal.SIGKILL
    assert node.wait_for_fenced().late_ns > S


def test_a_lease_that_is_renewed_or_lifted_leaves_the_rank_alone(node: Node, tmp_path: Path) -> None:
    """A second node is the clock: its monitor has acted at the deadline that the first one had, too."""
    (tmp_path / "other").mkdir()
    with contextlib.ExitStack() as stack:
        other = Node(tmp_path / "other", spawn_in(stack))
        stack.callback(other.close)
        for change in (node.word.lift, partial(node.word.grant, time.monotonic_ns() + HOUR)):
            until_ns = time.monotonic_ns() + S
            node.word.grant(until_ns)
            other.word.grant(until_ns + S // 2)
            change()
            other.wait_for_fenced()
            other.word.lift()
    assert node.rank.poll() is None
    assert [report for report in node.monitor.read_reports() if isinstance(report, Fenced)] == []


def spawn_in(stack: contextlib.ExitStack) -> Callable[..., subprocess.Popen[str]]:
    def spawn(program: str, *, session: bool) -> subprocess.Popen[str]:
        pipe: Any = subprocess.PIPE
        rank = subprocess.Popen(
            [sys.executable, "-c", program], stdin=pipe, stdout=subprocess.DEVNULL, text=True, start_new_session=session
        )
        stack.enter_context(rank)
        stack.callback(rank.kill)
        return rank

    return spawn


@pytest.mark.parametrize(("generation", "is_fenced"), [(3, True), (-1, True), (2, False)])
def test_the_generation_that_runs_is_known_as_fenced(generation: int, is_fenced: bool) -> None:
    """A report on an earlier one comes too late to say anything about this one."""
    written: list[tuple[str, dict[str, Any]]] = []
    resources: Any = SimpleNamespace(
        monitor=SimpleNamespace(read_reports=lambda: [Fenced(generation, 7)]),
        events=SimpleNamespace(write=lambda name, **facts: written.append((name, facts))),
    )
    current: Any = SimpleNamespace(number=3, is_fenced=False)
    incidents: Any = None
    take_reports(resources, current, incidents, incidents, restarts_are_left=True)
    assert current.is_fenced == is_fenced
    assert written == [("fenced", {"generation": generation, "late_ns": 7})]


# ---- launchers that are not there -----------------------------------------------------------------------


class Launched:
    """A launcher of its own, with a lease of an hour, and its rank."""

    def __init__(self, folder: Path, spawn: Callable[..., subprocess.Popen[str]], port: int) -> None:
        self.run_folder = folder / "run"
        self.run_folder.mkdir()
        self.process = spawn(LAUNCHER, str(self.run_folder), str(folder), str(port))
        rank, monitor = map(int, self.process.ready.split())  # type: ignore[attr-defined]
        self.rank, self.monitor = os.pidfd_open(rank), os.pidfd_open(monitor)

    def end(self) -> None:
        self.process.kill()
        assert wait_for_exit([self.monitor], PATIENCE)
        os.close(self.rank)
        os.close(self.monitor)


@pytest.fixture
def launched(tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]) -> Iterator[Callable[[int], Launched]]:
    made: list[Launched] = []

    def launch(port: int) -> Launched:
        made.append(Launched(tmp_path, spawn, port))
        return made[-1]

    yield launch
    for each in made:
        each.end()


def test_while_the_launcher_is_stopped_the_rank_is_killed_when_the_lease_passes(
    launched: Callable[[int], Launched],
) -> None:
    job = launched(0)
    job.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, job.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert not has_exited(job.rank)
    # In the place of what the launcher would have written a moment ago.
    descriptor = os.open(job.run_folder / "lease", os.O_RDWR)
    passed = time.monotonic_ns()
    os.pwrite(descriptor, fence._LAYOUT.pack(fence._MAGIC, passed, ~passed), 0)
    os.close(descriptor)
    assert wait_for_exit([job.rank], PATIENCE)


def test_when_the_launcher_was_killed_another_node_is_told_after_its_rank_is_gone(
    launched: Callable[[int], Launched],
) -> None:
    with contextlib.closing(Transport("run", SECRET, "node-2", ("127.0.0.1", 0), print)) as other:
        job = launched(other.address[1])
        assert other.poll(0) == []
        job.process.kill()
        end = time.monotonic() + PATIENCE
        while not (received := other.poll(1.0)):
            assert time.monotonic() < end
        assert has_exited(job.rank)
        assert [(each.node_id, each.payload) for each in received] == [("node-1", b"gone")]
        other.poll(0)  # confirm
