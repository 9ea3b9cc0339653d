"""Workers that are asked to end: who is signalled, in which order, and what becomes of the rest."""

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
from launcher.processes.proc import ProcessStatus, process_status
from launcher.workers.spawn import Launch
from launcher.workers.starters import spawn_all
from launcher.workers.worker_processes import WorkerProcesses

PATIENCE = 180.0

# A training that can save only while its helper lives, as with DataLoader workers.
SAVES_WITH_A_HELPER = """
import os, signal, subprocess, sys
helper = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input(); print('here', flush=True)"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
helper.stdout.readline()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
open("up.new", "w").write(str(os.getpid()))
os.rename("up.new", "up")
signal.sigwait({signal.SIGTERM})
helper.stdin.write("\\n")
helper.stdin.flush()
os._exit(0 if helper.stdout.readline() == "here\\n" else 5)
"""

# A training that ends at once when asked, and a helper that has something to write down when it is asked.
LEAVES_A_HELPER = """
import os, signal, subprocess, sys
helper = subprocess.Popen([sys.executable, "-c", '''
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
open("flushed", "w")
os._exit(0)
'''], stdout=subprocess.PIPE)
helper.stdout.readline()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
open("up.new", "w").write(str(helper.pid))
os.rename("up.new", "up")
signal.sigwait({signal.SIGTERM})
os._exit(0)
"""

# A training that takes until there is a file ``go`` to save, once it is asked; asked twice, it gives up.
SAVES_SLOWLY = """
import os, select, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
open("up.new", "w").write(str(os.getpid()))
os.rename("up.new", "up")
signal.sigwait({signal.SIGTERM})
signal.signal(signal.SIGTERM, lambda *_: os._exit(6))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
while not os.path.exists("go"):
    select.select([], [], [], 0.02)
os._exit(0)
"""


def until(condition: Callable[[], Any]) -> Any:
    for _ in range(int(PATIENCE * 50)):
        if found := condition():
            return found
        select.select([], [], [], 0.02)
    raise AssertionError(f"not within {PATIENCE:g} s")


def has_ended(pid: int) -> bool:
    status = process_status(pid)
    return status is None or status.state in "ZX"


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[WorkerProcesses, Callable[[], int]]]]:
    """Start one worker; with it, what gives the number that it has written to ``up``."""
    monkeypatch.chdir(tmp_path)
    Path("saves.py").write_text(SAVES_WITH_A_HELPER)
    Path("leaves.py").write_text(LEAVES_A_HELPER)
    Path("slow.py").write_text(SAVES_SLOWLY)
    started: list[WorkerProcesses] = []

    def start(*command: str, owner: Callable[[int], int | None] = lambda _: None) -> Any:
        processes = WorkerProcesses(
            {0: Launch(command=command, environment={})},
            lambda launches: spawn_all(launches, {}),
            frozenset,
            owner,
            name="worker",
            entrypoint=command[0],
            args={0: command[1:]},
            envs={0: {}},
            logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path / "logs")),
            log_line_prefixes=None,
        )
        processes.start()
        started.append(processes)
        up = tmp_path / "up"
        return processes, int(until(lambda: up.exists() and up.read_text()))

    yield start
    for processes in started:
        processes.stop(signal.SIGKILL, 0, kill_seconds=PATIENCE)


def code_of(processes: WorkerProcesses) -> int | None:
    return processes.workers[0].exit_code


@pytest.mark.parametrize("has_reported", [True, False], ids=["reporting", "silent"])
def test_the_training_is_asked_and_its_helpers_are_not(start: Callable[..., Any], has_reported: bool) -> None:
    """torchrun signals all at once, and a save that needs a DataLoader's workers fails."""
    owned: list[int] = []
    processes, pid = start(*(sys.executable, "saves.py"), owner=lambda _: owned[0] if owned and has_reported else None)
    owned.append(pid)

    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE)

    assert code_of(processes) == 0


def test_the_training_in_a_wrapper_is_asked_and_the_wrapper_is_not(start: Callable[..., Any]) -> None:
    """A shell passes no signal on, and would be dead before the training has saved."""
    owned: list[int] = []
    shell = f"trap 'exit 9' TERM; {sys.executable} saves.py; code=$?; touch after; exit $code"
    processes, pid = start("/bin/sh", "-c", shell, owner=lambda _: owned[0] if owned else None)
    owned.append(pid)
    assert pid != processes.workers[0].pid

    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE)

    assert code_of(processes) == 0
    assert Path("after").exists()


def test_a_wrapper_that_goes_on_without_its_training_is_asked_later(start: Callable[..., Any]) -> None:
    owned: list[int] = []
    shell = f"{sys.executable} saves.py; trap 'exit 7' TERM; while :; do sleep 0.05; done"
    processes, pid = start("/bin/sh", "-c", shell, owner=lambda _: owned[0] if owned else None)
    owned.append(pid)

    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE)

    assert code_of(processes) == 7


def test_a_wrapper_is_left_alone_while_its_training_saves_and_a_moment_longer(start: Callable[..., Any]) -> None:
    """However often is looked meanwhile: the wrapper may have something to do when the training has ended."""
    owned: list[int] = []
    rest = "while [ ! -e rest ]; do sleep 0.02; done; touch after"
    shell = f"trap 'exit 9' TERM; {sys.executable} slow.py; code=$?; {rest}; exit $code"
    processes, pid = start("/bin/sh", "-c", shell, owner=lambda _: owned[0] if owned else None)
    owned.append(pid)
    looks: list[float] = []

    def wait(pidfds: Any, seconds: float) -> set[int]:
        looks.append(seconds)
        if len(looks) <= 3:
            return set()
        if len(looks) == 4:
            Path("go").touch()
            until(lambda: has_ended(pid))
            return set()
        Path("rest").touch()
        return wait_for_exit(pidfds, PATIENCE)

    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE, wait=wait)

    assert code_of(processes) == 0
    assert Path("after").exists()


def test_around_a_training_that_nobody_knows_of_all_are_asked(start: Callable[..., Any]) -> None:
    """As torchrun does: there is no telling which of them trains."""
    asked = "while [ ! -e flushed ]; do sleep 0.02; done; wait; exit 4"  # what is left then is killed
    processes, _ = start("/bin/sh", "-c", f"trap '{asked}' TERM; {sys.executable} leaves.py & wait")

    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE)

    assert code_of(processes) == 4
    assert Path("flushed").exists()


def test_what_a_training_leaves_is_asked_to_end_when_nobody_waits_for_a_successor(start: Callable[..., Any]) -> None:
    processes, helper = start(sys.executable, "leaves.py")

    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE, rest_seconds=PATIENCE)

    assert code_of(processes) == 0
    assert Path("flushed").exists()
    assert has_ended(helper)


def test_what_a_training_leaves_is_killed_before_a_restart(start: Callable[..., Any]) -> None:
    processes, helper = start(sys.executable, "leaves.py")

    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE)

    assert code_of(processes) == 0
    assert not Path("flushed").exists()
    assert has_ended(helper)


def test_a_stopped_training_is_not_asked_even_in_a_wrapper(start: Callable[..., Any]) -> None:
    owned: list[int] = []
    shell = f"{sys.executable} saves.py; exit 3"
    processes, pid = start("/bin/sh", "-c", shell, owner=lambda _: owned[0] if owned else None)
    owned.append(pid)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: process_status(pid).is_stopped)  # type: ignore[union-attr]

    processes.request_stop(signal.SIGTERM)
    assert wait_for_exit([processes.workers[0].pidfd], 20), "it would be waited for"
    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE)

    assert code_of(processes) == -signal.SIGKILL


def test_a_training_that_a_tracer_holds_for_a_moment_is_asked(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profiler such as py-spy stops what it samples for milliseconds; what is killed then cannot save."""
    processes, _ = start(sys.executable, "saves.py")
    traced = ProcessStatus("t", 0, 0, 0)
    monkeypatch.setattr("launcher.workers.end_requests.process_status", lambda pid: traced)

    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE)

    assert code_of(processes) == 0


def test_an_owner_that_has_gone_meanwhile_is_not_signalled(
    start: Callable[..., Any], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """Its number may be somebody else's by now: the second look finds another, or nobody."""
    bystander = spawn("print('ready', flush=True); input()")
    answers = iter([bystander.pid, None])
    processes, _ = start(sys.executable, "saves.py", owner=lambda _: next(answers, None))

    processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=PATIENCE)

    assert code_of(processes) == 0
    assert bystander.poll() is None


def test_what_was_killed_is_waited_for_but_not_for_ever(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Recorded; tests/e2e/test_unkillable.py has a real one. One that is not gone has its number and state told."""
    asked: dict[str, Any] = {}

    def recorded_end(sessions: list[int], seconds: float, **options: Any) -> set[int]:
        asked.update(options, sessions=sessions, seconds=seconds)
        return {os.getpid()}

    processes, _ = start(sys.executable, "saves.py")
    with monkeypatch.context() as patch:
        patch.setattr("launcher.workers.worker_processes.end_sessions", recorded_end)
        processes.stop(signal.SIGTERM, PATIENCE, kill_seconds=41, is_forced=lambda: False)

    assert asked["sessions"] == [processes.workers[0].pid]
    assert asked["seconds"] == 41
    assert f"killed, but not gone after 41 s: pid {os.getpid()} (state " in caplog.text
    assert processes.left == {os.getpid()}
