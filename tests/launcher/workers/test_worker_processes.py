"""The workers of a generation: real processes, asked, killed, and ended to what they started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from launcher.processes.handles import wait_for_exit
from launcher.processes.proc import process_status
from launcher.workers.spawn import Launch
from launcher.workers.starters import SpawnStarter
from launcher.workers.worker_processes import WorkerProcesses

FOREVER = 600.0
READY = "open(f'{os.environ[\"READY\"]}', 'w').close()"
WAITS = f"import os, signal; {READY}; signal.pause()"
DEAF = f"import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}\nwhile True: signal.pause()"
ENDS_WITH_0 = (
    "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
    f"{READY}; signal.sigwait({{signal.SIGTERM}})"
)
LEAVES_A_CHILD = f"import os, subprocess, sys; subprocess.Popen(['sleep', '600']); {READY}"

Start = Callable[..., WorkerProcesses]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start one worker for each program; all are ready, and what is left of them is killed at the end."""
    made: list[WorkerProcesses] = []

    def start(*programs: str) -> WorkerProcesses:
        commands = {number: (sys.executable, "-c", program) for number, program in enumerate(programs)}
        ready = {number: tmp_path / f"ready{number}" for number in commands}
        arguments: dict[str, Any] = {
            "name": "test",
            "entrypoint": sys.executable,
            "args": {number: command[1:] for number, command in commands.items()},
            "envs": {number: {"READY": str(ready[number])} for number in commands},
            "logs_specs": DefaultLogsSpecs(log_dir=str(tmp_path)),
        }
        launches = {n: Launch(command=command, environment={}, local_rank=n) for n, command in commands.items()}
        made.append(WorkerProcesses(launches, SpawnStarter().start_all, frozenset, lambda _: None, **arguments))
        made[-1].start()
        for path in ready.values():
            while not path.exists():
                assert made[-1].running, "a worker has ended before it was ready"
                select.select([], [], [], 0.005)
        return made[-1]

    yield start
    for processes in made:
        processes.stop(signal.SIGKILL, 0.0, kill_seconds=60)
        processes.close()


def end_of(processes: WorkerProcesses, local_rank: int = 0) -> None:
    worker = processes.workers[local_rank]
    assert wait_for_exit([worker.pidfd], 60)
    processes.collect_exits()


def test_who_was_condemned_has_failed_even_with_0(start: Start) -> None:
    processes = start(ENDS_WITH_0, ENDS_WITH_0)
    processes.condemned.add(1)
    for worker in processes.workers.values():
        os.kill(worker.pid, signal.SIGTERM)
        end_of(processes, worker.local_rank)
    assert [(worker.local_rank, worker.exit_code) for worker in processes.failed] == [(1, 0)]


def test_who_hears_is_waited_for_and_ends_as_it_likes(start: Start) -> None:
    processes = start(ENDS_WITH_0)
    processes.stop(signal.SIGTERM, FOREVER, kill_seconds=60)
    assert processes.workers[0].exit_code == 0


def test_who_is_stopped_or_condemned_is_not_waited_for(start: Start) -> None:
    processes = start(DEAF, WAITS, ENDS_WITH_0)
    os.kill(processes.workers[1].pid, signal.SIGSTOP)
    while process_status(processes.workers[1].pid).state != "T":  # type: ignore[union-attr]
        select.select([], [], [], 0.005)
    processes.request_stop(signal.SIGTERM, at_once={0})
    for worker in processes.workers.values():
        assert wait_for_exit([worker.pidfd], 20), f"local rank {worker.local_rank} would be waited for"
    processes.stop(signal.SIGTERM, FOREVER, at_once={0}, kill_seconds=60)
    assert [worker.exit_code for worker in processes.workers.values()] == [-signal.SIGKILL, -signal.SIGKILL, 0]


def test_who_is_deaf_is_killed_when_its_time_is_over(start: Start) -> None:
    processes = start(DEAF)
    processes.stop(signal.SIGTERM, 0.05, kill_seconds=60)
    assert processes.workers[0].exit_code == -signal.SIGKILL


def test_who_insists_does_not_wait(start: Start) -> None:
    processes = start(DEAF)
    looks = iter([False, True])
    waits: list[float] = []

    def wait(pidfds: Any, seconds: float) -> set[int]:
        waits.append(seconds)
        if len(waits) == 1:
            return set()
        assert seconds <= 60  # for what was killed to be gone
        return wait_for_exit(pidfds, seconds)

    processes.stop(signal.SIGTERM, FOREVER, wait=wait, is_forced=lambda: next(looks), kill_seconds=60)
    assert waits[0] > 60
    assert processes.workers[0].exit_code == -signal.SIGKILL


@pytest.mark.parametrize("spares", [False, True])
def test_what_a_worker_has_started_ends_with_it_unless_all_is_done(start: Start, spares: bool) -> None:
    processes = start(LEAVES_A_CHILD)
    session = processes.workers[0].pid
    end_of(processes)
    processes.stop(signal.SIGTERM, FOREVER, spares_leftovers=spares, kill_seconds=60)
    left = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and session_of(int(entry)) == session]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) == (1 if spares else 0)


def session_of(pid: int) -> int:
    status = process_status(pid)
    return status.session if status is not None and status.state not in "ZX" else 0


STARTS_ONE_AND_IS_KILLED = """
import os, signal, sys
from launcher.workers.spawn import (Launch, spawn_worker)
print(spawn_worker(Launch(command=("sleep", "600"), environment={})), flush=True)
sys.stdin.read(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_kernel_kills_a_worker_whose_launcher_was_killed() -> None:
    """The second belt, for when no monitor lives to do it."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE_AND_IS_KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        worker = os.pidfd_open(int(launcher.stdout.readline()))
        assert launcher.stdin is not None
        launcher.stdin.write("x")
        launcher.stdin.flush()
        assert launcher.wait(60) == -signal.SIGKILL
    try:
        assert wait_for_exit([worker], 30)
    finally:
        signal.pidfd_send_signal(worker, signal.SIGKILL) if not wait_for_exit([worker], 0) else None
        os.close(worker)
