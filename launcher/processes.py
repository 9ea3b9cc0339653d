"""Processes held by pidfd, sessions ended to the last member. No torch, no subprocess: the monitor uses it too."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

__all__ = [
    "ProcessStatus",
    "adopt_orphans",
    "end_sessions",
    "handles_signal",
    "has_exited",
    "open_pidfd",
    "process_status",
    "reap_adopted",
    "send_signal",
    "wait_for_exit",
]


class ProcessStatus(NamedTuple):
    """What proc(5) says of a process."""

    state: str
    """One letter: R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie."""
    session: int

    @property
    def is_stopped(self) -> bool:
        """Stopped by a signal; it will not answer until it is continued."""
        return self.state == "T"


def process_status(pid: int) -> ProcessStatus | None:
    """State and session of a process; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # none, or one that we may not look at (hidepid)
        return None
    return ProcessStatus(fields[0].decode(), int(fields[3]))


def handles_signal(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal (SigCgt in proc(5))."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def open_pidfd(pid: int) -> int | None:
    """A descriptor that stands for this very process, whatever becomes of its number; None when it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # the number of a thread, or no pid at all
            return None
        raise


def send_signal(pidfd: int, number: int) -> bool:
    """Signal a process.

    Returns:
        Whether it was still there to take it.
    """
    try:
        signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def has_exited(pidfd: int) -> bool:
    """Whether the process has ended (it may still be a zombie)."""
    return bool(wait_for_exit([pidfd], 0))


def wait_for_exit(pidfds: Iterable[int], timeout_seconds: float) -> set[int]:
    """Wait until one of the processes has ended, or the time is up.

    Returns:
        The pidfds of those that have ended.
    """
    poller = select.poll()
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    return {pidfd for pidfd, _ in poller.poll(max(0, round(timeout_seconds * 1000 + 0.5)))}


def end_sessions(sessions: Collection[int], timeout_seconds: float) -> set[int]:
    """Kill every process of these sessions and wait until none is left.

    A worker is the leader of a session of its own, so this reaches what it started (DataLoader workers, forked
    children, shells), also what outlived it. Repeated until a look finds nobody, since a process may fork while
    we read the list.

    Args:
        sessions: Session numbers; that of the caller is left alone.
        timeout_seconds: Give up after so long; a process in uninterruptible sleep cannot be ended by anybody.

    Returns:
        The pids that were still there when time was up.
    """
    targets = {session for session in sessions if session > 1} - {os.getsid(0)}
    end = time.monotonic() + timeout_seconds
    for session in targets:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)  # the leader's own process group: most of them, in one call
    while True:
        members = _members(targets)
        if not members or time.monotonic() >= end:
            return set(members)
        pidfds = [pidfd for pid in members if (pidfd := open_pidfd(pid)) is not None]
        try:
            for pidfd in pidfds:
                send_signal(pidfd, signal.SIGKILL)
            pending = set(pidfds)
            while pending and (left := end - time.monotonic()) > 0:
                pending -= wait_for_exit(pending, left)
        finally:
            for pidfd in pidfds:
                os.close(pidfd)


def adopt_orphans() -> None:
    """Become the parent of whatever our descendants leave behind (child subreaper, prctl(2))."""
    import ctypes

    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def reap_adopted(own: Collection[int]) -> None:
    """Collect children that ended and that nobody else here waits for.

    Args:
        own: Children that somebody does wait for.
    """
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                children = [int(pid) for pid in file.read().split()]
        except FileNotFoundError:  # the thread has ended, or the kernel does not keep this list
            continue
        for pid in children:
            if pid not in own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _members(sessions: Collection[int]) -> list[int]:
    """Live processes of the sessions; a zombie has ended, and is its parent's to collect."""
    if not sessions:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            status = process_status(int(entry))
            if status is not None and status.session in sessions and status.state not in "ZX":
                found.append(int(entry))
    return found
