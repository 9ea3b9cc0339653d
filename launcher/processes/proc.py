"""What proc(5) says of a process and its threads; nothing here waits."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

__all__ = [
    "ProcessStatus",
    "handles_signal",
    "is_resource_tracker",
    "process_status",
    "read_proc",
    "session_members",
    "state_of_thread",
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


def read_proc(path: str) -> bytes:
    """Read a file of proc(5) that the kernel writes as a whole, such as ``stat``, by one read.

    A verdict reads a dozen of them before its signal, and Python's buffers cost more than the kernel's work.

    Raises:
        OSError: There is none, or it may not be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def process_status(pid: int) -> ProcessStatus | None:
    """State and session of a process; None when there is none."""
    try:
        fields = read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:  # none, or one that we may not look at (hidepid)
        return None
    return ProcessStatus(fields[0].decode(), int(fields[3]))


def state_of_thread(thread: int) -> str | None:
    """State, as in :class:`ProcessStatus`, of a thread of this process; None when it has ended."""
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return None


def handles_signal(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal (SigCgt in proc(5))."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def is_resource_tracker(pid: int) -> bool | None:
    """Whether this is multiprocessing's helper that unlinks shared memory and semaphores when their last user is gone.

    Its command line tells. To read that may wait for the process's memory, and for ever where a thread of it is stuck
    in the kernel: it is read of nothing that sleeps uninterruptibly or has a second thread, as a tracker has not.

    Returns:
        None: it cannot be told now. Its only thread sleeps uninterruptibly, as while its program is read from a disk,
        or it has no command line yet.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            told = {name: value.split() for name, _, value in (line.partition(b":") for line in file)}
        if told[b"State"][0] not in (b"S", b"R") or told[b"Threads"] != [b"1"]:
            return None if told[b"State"][0] == b"D" and told[b"Threads"] == [b"1"] else False
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(4096)
        return b"multiprocessing.resource_tracker" in command if command else None
    except (OSError, LookupError):
        return False


def session_members(sessions: Collection[int]) -> list[int]:
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
