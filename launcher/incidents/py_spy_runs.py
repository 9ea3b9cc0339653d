"""Run py-spy on several processes at once, within bounds of time and memory.

What is installed under that name may ignore signals, start children or write without end. Each run therefore leads a
process group that is killed as a whole, and writes into a file that cannot grow. A child that leaves the group lives
on, as it would with any program.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

from launcher.processes.handles import wait_for_exit
from launcher.processes.proc import process_status
from launcher.records.console import announce

__all__ = ["Dump", "dumps"]

_LONGEST_END_SECONDS = 0.05
"""How long to wait for those that are killed."""
_LARGEST_OUTPUT = 1 << 23
"""Bytes of one run; a thread that has descended 1,000 calls takes some 200 KB."""
_LARGEST_COMPLAINT = 1 << 16


class Dump(NamedTuple):
    """What py-spy has written about one process."""

    exit_code: int | None
    """Negative for a signal; None where it had not ended in time."""
    output: bytes
    """Empty where it did not end by itself."""
    complaint: str
    """The first line of its standard error."""


class _Run(NamedTuple):
    pid: int
    pidfd: int
    output: BinaryIO
    errors: BinaryIO


def dumps(pids: Mapping[int, int], py_spy: str, options: Sequence[str], end: float) -> dict[int, Dump]:
    """Dump the stacks of several processes.

    Args:
        pids: Key (say, a local rank) to process.
        py_spy: The program's path.
        options: Beside those that say which process, and that JSON is wanted.
        end: When to return, on ``time.monotonic()``. Those that have not ended are killed shortly before. One that
            reads a process which is stuck in the kernel may be stuck as well; it is left behind.

    Returns:
        By key; one is missing whose py-spy could not be started.
    """
    running: dict[int, _Run] = {}
    kill_at = end - min(_LONGEST_END_SECONDS, max(0.0, end - time.monotonic()) / 2)
    for key, pid in pids.items():
        with contextlib.ExitStack() as opened:
            try:
                # Without a name, so that no folder can be full or gone.
                sizes = (_LARGEST_OUTPUT, _LARGEST_COMPLAINT)
                output, errors = (opened.enter_context(_memory_file(size)) for size in sizes)
            except OSError as error:
                announce(
                    f"no memory for what {py_spy} writes: {error.strerror}; no stacks from outside", event="stacks"
                )
                break
            try:
                child = _start(py_spy, pid, options, output.fileno(), errors.fileno())
            except OSError as error:  # no memory for a process, or the program was removed: the kill goes on without
                announce(f"cannot run {py_spy}: {error.strerror}; no stacks from outside", event="stacks")
                break
            running[key] = _Run(child, os.pidfd_open(child), output, errors)
            opened.pop_all()
    found: dict[int, Dump] = {}
    try:
        pending = {run.pidfd for run in running.values()}
        while pending and (left := kill_at - time.monotonic()) > 0:
            pending -= wait_for_exit(pending, left)
    finally:
        in_time = wait_for_exit({run.pidfd for run in running.values()}, 0) if running else set()
        for run in running.values():
            # Also where it has ended: it may have left children. Nobody has its number before it is waited for.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(run.pid, signal.SIGKILL)
        give_up = max(end, time.monotonic())
        for key, run in running.items():
            with run.output, run.errors:
                found[key] = _ended(run, give_up, in_time=run.pidfd in in_time)
    return found


def _ended(run: _Run, give_up: float, *, in_time: bool) -> Dump:
    has_ended = in_time or bool(wait_for_exit([run.pidfd], max(0.0, give_up - time.monotonic())))
    os.close(run.pidfd)
    if not has_ended:
        return Dump(None, b"", "")
    exit_code = os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1])
    if not in_time:
        return Dump(None, b"", "")
    complaint = _written(run.errors)[:1000].partition(b"\n")[0].decode("utf-8", errors="replace").strip()
    return Dump(exit_code, _written(run.output), complaint)


def _memory_file(size: int) -> BinaryIO:
    """Return a file that takes so many bytes, and memory only for those that are written."""
    descriptor = os.memfd_create("ft_stack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def _written(file: BinaryIO) -> bytes:
    """Return what was written: the offset is shared with whoever has written it."""
    return os.pread(file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_CUR), 0)


def _start(py_spy: str, pid: int, options: Sequence[str], output: int, errors: int) -> int:
    status = process_status(pid)
    mode = ["--nonblocking"] if status is not None and status.state in "Tt" else []
    return os.posix_spawn(
        py_spy,
        [py_spy, "dump", "--json", *options, "--pid", str(pid), *mode],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, errors, 2),
        ],
        setpgroup=0,
    )
