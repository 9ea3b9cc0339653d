"""Processes held by pidfd, and sessions ended to the last member."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from launcher.processes.handles import end_processes, end_sessions, has_exited, open_pidfd, send_signal, wait_for_exit
from launcher.processes.proc import handles_signal, is_resource_tracker, process_status

WAITS = "print('ready', flush=True); input()"
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
def start(group):
    own_group = os.setpgrp if group else None
    child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE, preexec_fn=own_group)
    child.stdout.readline()
    return child.pid
pids = [start(False), start(True)]
if os.fork() == 0:            # a child that starts a grandchild in another group and dies
    os.write(1, f"{start(True)} ".encode())
    os._exit(0)
os.wait()
print(*pids, flush=True)
time.sleep(600)
"""


def ended(pid: int) -> bool:
    status = process_status(pid)
    return status is None or status.state in "ZX"


@pytest.mark.parametrize("seconds", [3e6, 1e9, 1e300])
def test_a_wait_may_be_longer_than_poll_takes(spawn: Callable[..., subprocess.Popen[str]], seconds: float) -> None:
    """It was an ``OverflowError``, and the stacks and the culprit were lost with it."""
    process = spawn(WAITS)
    pidfd = os.pidfd_open(process.pid)
    process.kill()
    assert wait_for_exit([pidfd], seconds) == {pidfd}
    os.close(pidfd)


def test_a_session_is_ended_to_the_last_member(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """Also the grandchild in a process group of its own whose parent is gone, and those that ignore SIGTERM."""
    leader, other = spawn(FAMILY, session=True), spawn(WAITS, session=True)
    members = [leader.pid, *map(int, leader.ready.split())]  # type: ignore[attr-defined]
    assert len(members) == 4
    assert len({os.getpgid(pid) for pid in members}) == 3

    left = end_sessions([leader.pid], 10)

    assert left == set()
    assert all(ended(pid) for pid in members)
    assert other.poll() is None


def test_what_outlived_the_leader_is_ended_too(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    leader = spawn(FAMILY, session=True)
    members = list(map(int, leader.ready.split()))  # type: ignore[attr-defined]
    leader.kill()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)  # still a zombie, so that its number is its own

    assert end_sessions([leader.pid], 10) == set()
    assert all(ended(pid) for pid in members)


SHARES_MEMORY = """
import sys, time
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(create=True, size=8)
print(memory.name, resource_tracker._resource_tracker._pid, flush=True)
time.sleep(600)
"""

POSES_AS_A_TRACKER = "print('multiprocessing.resource_tracker', flush=True); input()"


@pytest.mark.parametrize("is_dead", [False, True])
def test_named_shared_memory_is_unlinked(
    spawn: Callable[..., subprocess.Popen[str]], is_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the tracker that multiprocessing has started for it; killed with the others, it leaves it for ever."""
    # This one may not even have begun to read what it is told: it was started a moment ago.
    monkeypatch.setattr("launcher.processes.handles._LONGEST_UNLINK_SECONDS", 180)
    leader = spawn(SHARES_MEMORY, session=True)
    name, tracker = leader.ready.split()  # type: ignore[attr-defined]
    assert Path("/dev/shm", name).exists()
    if is_dead:
        leader.kill()
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)

    assert end_sessions([leader.pid], 180) == set()

    assert ended(int(tracker))
    assert not Path("/dev/shm", name).exists()


def test_what_cannot_be_told_from_a_tracker_at_first_is_looked_at_again(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded: a tracker whose program is still being read from a busy disk sleeps uninterruptibly."""
    monkeypatch.setattr("launcher.processes.handles._LONGEST_UNLINK_SECONDS", 180)
    leader = spawn(SHARES_MEMORY, session=True)
    name, tracker = leader.ready.split()  # type: ignore[attr-defined]
    looks = []

    def told(pid: int) -> bool | None:
        if pid != int(tracker):
            return is_resource_tracker(pid)
        looks.append(ended(leader.pid))
        return None if len(looks) < 4 else True

    monkeypatch.setattr("launcher.processes.handles.is_resource_tracker", told)
    assert end_sessions([leader.pid], 180) == set()

    assert ended(int(tracker))
    assert looks[-1]  # the others do not wait for it
    assert not Path("/dev/shm", name).exists()


def test_what_can_never_be_told_from_a_tracker_is_killed(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.processes.handles._LONGEST_UNLINK_SECONDS", 0.2)
    monkeypatch.setattr("launcher.processes.handles.is_resource_tracker", lambda pid: None)
    leader = spawn(WAITS, session=True)

    assert end_sessions([leader.pid], 180) == set()

    assert leader.wait(180) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("state", "threads", "command", "answer"),
    [
        ("S (sleeping)", 1, b"python\0-c\0from multiprocessing.resource_tracker import main;main(5)\0", True),
        ("S (sleeping)", 1, b"python\0train.py\0", False),
        ("R (running)", 1, b"", None),  # between exec and the new program's first instruction
        ("D (disk sleep)", 1, b"python\0-c\0from multiprocessing.resource_tracker import main;main(5)\0", None),
        ("D (disk sleep)", 2, b"python\0train.py\0", False),
        ("T (stopped)", 1, b"python\0-c\0from multiprocessing.resource_tracker import main;main(5)\0", False),
    ],
)
def test_when_it_can_be_told_that_a_process_is_a_tracker(
    state: str, threads: int, command: bytes, answer: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded: what proc(5) tells of a process that is starting."""
    files = {"status": f"State:\t{state}\nThreads:\t{threads}\n".encode(), "cmdline": command}
    monkeypatch.setattr("launcher.processes.proc.read_proc", lambda path: files[path.rpartition("/")[2]])
    assert is_resource_tracker(4711) is answer


def test_no_memory_is_read_of_what_may_be_stuck(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """A thread in the kernel that the first thread does not show: the command line may never be told."""
    two_threads = spawn("import threading; threading.Thread(target=input).start(); " + POSES_AS_A_TRACKER)
    stopped = spawn(POSES_AS_A_TRACKER)
    stopped.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    assert is_resource_tracker(two_threads.pid) is False
    assert is_resource_tracker(stopped.pid) is False


def test_a_resource_tracker_that_stays_is_killed(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    poser = spawn(POSES_AS_A_TRACKER, session=True)
    assert is_resource_tracker(poser.pid)
    assert end_sessions([poser.pid], 180) == set()
    assert poser.wait(180) == -signal.SIGKILL


def test_who_is_in_a_hurry_kills_as_well_and_waits_no_longer_than_a_second(
    spawn: Callable[..., subprocess.Popen[str]],
) -> None:
    """Recorded: what is killed here is not told to be gone, as in uninterruptible sleep."""
    process, waited = spawn(WAITS, session=True), []

    def recorded_wait(pidfds: Collection[int], seconds: float) -> set[int]:
        waited.append(seconds)
        time.sleep(seconds)
        return set()

    left = end_processes(lambda: [process.pid], 10, wait=recorded_wait, is_hurried=lambda: True)

    assert left == {process.pid}
    assert process.wait() == -signal.SIGKILL
    assert sum(waited) <= 1.0


@pytest.mark.skipif(os.getuid() != 0, reason="only root may start a process of another user")
def test_who_may_not_be_signalled_is_told_and_not_waited_for() -> None:
    """As where a rank has started a program with the set-user-ID bit."""
    program = """
import os, subprocess, sys
from launcher.processes.handles import end_processes
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
os.setresuid(12345, 12345, 12345)
print(end_processes(lambda: [child.pid], 600) == {child.pid}, child.poll())
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=180, check=True)
    assert done.stdout.strip() == "True None"


def test_our_own_session_and_that_of_init_are_left_alone() -> None:
    assert end_sessions([os.getsid(0), 0, 1], 0.1) == set()


def test_an_empty_session_is_no_error(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    gone = spawn(WAITS, session=True)
    gone.kill()
    gone.wait()
    assert end_sessions([gone.pid], 1) == set()
    assert end_sessions([], 1) == set()


def test_a_process_is_held_beyond_its_end(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn(WAITS)
    pidfd = open_pidfd(process.pid)
    assert pidfd is not None
    assert not has_exited(pidfd)
    assert wait_for_exit([pidfd], 0.01) == set()

    assert send_signal(pidfd, signal.SIGKILL)
    assert wait_for_exit([pidfd], 10) == {pidfd}
    process.wait()

    assert has_exited(pidfd)
    assert not send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def test_a_handler_of_its_own_is_told_from_the_default(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    deaf, ready = spawn(WAITS), spawn("import signal; signal.signal(signal.SIGUSR1, print); " + WAITS)
    assert not handles_signal(deaf.pid, signal.SIGUSR1)
    assert handles_signal(ready.pid, signal.SIGUSR1)
    assert not handles_signal(ready.pid, signal.SIGUSR2)
    assert not handles_signal(2**22 + 1, signal.SIGUSR1)


def test_a_process_that_may_not_be_looked_at_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a /proc that is mounted with hidepid=1."""

    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("os.open", refuse)
    assert process_status(1) is None
    assert not handles_signal(1, signal.SIGUSR1)


def test_nobody_has_no_pidfd_and_no_status() -> None:
    assert open_pidfd(2**22 + 1) is None
    assert process_status(2**22 + 1) is None


@pytest.mark.parametrize("name", ["a) R (b", "x y"])
def test_a_name_with_brackets_does_not_confuse(name: str) -> None:
    program = f"open('/proc/self/comm', 'w').write({name!r}); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        status = process_status(process.pid)
        assert status is not None
        assert status.session == process.pid
        assert status.state in "RS"
        assert not status.is_stopped
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        stopped = process_status(process.pid)
        assert stopped is not None
        assert stopped.is_stopped
        process.kill()
