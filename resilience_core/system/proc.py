"""What proc(5) says of a process."""

from __future__ import annotations

import contextlib
import os

__all__ = [
    "is_listed",
    "ENDED_STATES",
    "PF_EXITING",
    "STOPPED_STATES",
    "is_running",
    "set_session_priority",
    "own_pid_namespace",
    "process_start_time",
    "read_proc",
    "restricts_ptrace",
    "stat_fields",
]

ENDED_STATES = frozenset({"Z", "X"})
"""The states of proc(5) in which a process or thread runs no more: zombie, and dead."""
STOPPED_STATES = frozenset({"T", "t"})
"""The states of proc(5) in which one runs nothing until it is continued: stopped by a signal, and by a tracer."""

PF_EXITING = 0x4
"""Of the kernel's flags of a process: it is ending (``include/linux/sched.h``)."""


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


def process_start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc(5), field 22), None when there is none."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[19])


def is_running(pid: int, start_time: int) -> bool:
    """Return whether this very process is there and has not ended; one whose parent has not waited for it yet has."""
    fields = stat_fields(pid)
    return fields is not None and int(fields[19]) == start_time and fields[0].decode() not in ENDED_STATES


def stat_fields(pid: int) -> list[bytes] | None:
    """Return the fields of proc(5) from the third, the state, on; None when there is no such process."""
    # 'self' for this process: /proc may be that of another PID namespace, where our number is another process's.
    name = "self" if pid == os.getpid() else str(pid)
    try:
        return read_proc(f"/proc/{name}/stat").rpartition(b")")[2].split()
    except OSError:  # none, or one that we may not look at (hidepid)
        return None


def is_listed(pid: int) -> bool:
    """Return whether a process has this number, also one that has ended and whose parent has not waited for it."""
    return os.path.exists(f"/proc/{pid}")


def restricts_ptrace() -> bool:
    """Return whether Yama lets only its ancestors trace a process (``ptrace_scope`` 1); False where that is unknown."""
    try:
        return read_proc("/proc/sys/kernel/yama/ptrace_scope").strip() == b"1"
    except OSError:
        return False


def own_pid_namespace() -> int:
    """Return the inode of this process's PID namespace; 0 when it cannot be told."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def set_session_priority(niceness: int, pid: int | None = None) -> None:
    """Let a session come after others, as nice(2) lets a process; does nothing where sessions have no priority.

    Where the kernel divides processors among sessions (``sched_autogroup``), the priority of a process counts within
    its session only.

    Args:
        niceness: 0 to 19.
        pid: A process of the session; this one when None.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(f"/proc/{'self' if pid is None else pid}/autogroup", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, str(niceness).encode())
        finally:
            os.close(descriptor)
