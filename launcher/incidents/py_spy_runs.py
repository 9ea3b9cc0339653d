"""Run py-spy on several processes at once, within a bound."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

from launcher.processes.handles import send_signal, wait_for_exit
from launcher.processes.proc import process_status
from launcher.records.console import announce

__all__ = ["Dump", "dumps"]


class Dump(NamedTuple):
    """What py-spy has written about one process."""

    exit_code: int | None
    """Negative for a signal; None where it had not ended in time."""
    output: bytes
    complaint: str
    """The first line of its standard error."""


class _Run(NamedTuple):
    pid: int
    pidfd: int
    output: BinaryIO
    errors: BinaryIO


def dumps(
    pids: Mapping[int, int], py_spy: str, options: Sequence[str], end: float, longest_end_seconds: float
) -> dict[int, Dump]:
    """Dump the stacks of several processes.

    Args:
        pids: Key (say, a local rank) to process.
        py_spy: The program's path.
        options: Beside those that say which process, and that JSON is wanted.
        end: When to stop waiting, on ``time.monotonic()``.
        longest_end_seconds: How long to wait after that for those that are killed. One that reads a process which is
            stuck in the kernel may be stuck as well; it is left behind.

    Returns:
        By key; one is missing whose py-spy could not be started.
    """
    running: dict[int, _Run] = {}
    for key, pid in pids.items():
        with contextlib.ExitStack() as opened:
            try:
                # Without a name, so that no folder can be full or gone.
                output, errors = (opened.enter_context(_memory_file()) for _ in range(2))
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
        while pending and (left := end - time.monotonic()) > 0:
            pending -= wait_for_exit(pending, left)
    finally:
        in_time = wait_for_exit({run.pidfd for run in running.values()}, 0) if running else set()
        for run in running.values():
            send_signal(run.pidfd, signal.SIGKILL)
        give_up = time.monotonic() + longest_end_seconds
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
    run.output.seek(0)
    run.errors.seek(0)
    complaint = run.errors.readline(1000).decode("utf-8", errors="replace").strip()
    return Dump(exit_code if in_time else None, run.output.read(), complaint)


def _memory_file() -> BinaryIO:
    return open(os.memfd_create("ft_stack"), "rb")


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
    )
