"""Where the Python of a stuck process stands, taken from outside, in parallel and within a bound.

``py-spy`` reads another process's memory: it works while the GIL is held in C, and with ``--nonblocking`` on a
process that is stopped. Where it is not installed, or may not look, the rank's own ``faulthandler`` is asked;
its signal can wake a blocking call, so that is done only to ranks that are condemned anyway.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from launcher.processes import open_pidfd, process_status, send_signal, wait_for_exit

__all__ = ["Frame", "Thread", "main_thread", "take_stacks"]


class Frame(NamedTuple):
    """One line of a stack."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class Thread(NamedTuple):
    """One thread of a process; the innermost frame comes first."""

    name: str
    is_active: bool
    holds_gil: bool
    frames: tuple[Frame, ...]


def take_stacks(
    pids: Mapping[int, int],
    *,
    py_spy: str | None,
    scratch: str,
    timeout_seconds: float,
    fallback_files: Mapping[int, str] | None = None,
    fallback_signal: int = 0,
) -> dict[int, tuple[Thread, ...]]:
    """Take the stacks of several processes at once.

    Args:
        pids: Key (say, a local rank) to process.
        py_spy: The program's path, None where it is not installed.
        scratch: A folder in memory for its output.
        timeout_seconds: The bound on all of it together.
        fallback_files: Key to the file that the process's own faulthandler writes to, for those that may be asked.
        fallback_signal: The signal that makes it write.

    Returns:
        Key to threads; a key is missing where nothing could be had.
    """
    end = time.monotonic() + timeout_seconds
    found = _from_outside(pids, py_spy, scratch, end) if py_spy else {}
    for key, file in (fallback_files or {}).items():
        if key in pids and key not in found:
            threads = _from_inside(pids[key], file, fallback_signal, max(end, time.monotonic() + 0.05))
            if threads:
                found[key] = threads
    return found


def main_thread(threads: tuple[Thread, ...]) -> Thread | None:
    """The thread that runs the training loop: the one called MainThread, else the last one listed."""
    for thread in threads:
        if thread.name == "MainThread":
            return thread
    return threads[-1] if threads else None


def _from_outside(pids: Mapping[int, int], py_spy: str, scratch: str, end: float) -> dict[int, tuple[Thread, ...]]:
    running = {}
    for key, pid in pids.items():
        output = os.path.join(scratch, f"stack-{pid}.json")
        try:
            child = _start_py_spy(py_spy, pid, output)
        except OSError as error:  # no memory for a process, or the program was removed: the kill goes on without
            print(f"ft_launcher: cannot run {py_spy}: {error.strerror}; no stacks from outside", file=sys.stderr)
            break
        running[key] = (child, os.pidfd_open(child), output)
    found = {}
    try:
        pending = {pidfd for _, pidfd, _ in running.values()}
        while pending and (left := end - time.monotonic()) > 0:
            pending -= wait_for_exit(pending, left)
    finally:
        for key, (child, pidfd, output) in running.items():
            send_signal(pidfd, signal.SIGKILL)
            _, status_word = os.waitpid(child, 0)
            os.close(pidfd)
            if os.waitstatus_to_exitcode(status_word) == 0:
                threads = _parse_json(output)
                if threads:
                    found[key] = threads
            with contextlib.suppress(FileNotFoundError):
                os.unlink(output)
    return found


def _start_py_spy(py_spy: str, pid: int, output: str) -> int:
    status = process_status(pid)
    mode = ["--nonblocking"] if status is not None and status.is_stopped else []
    return os.posix_spawn(
        py_spy,
        [py_spy, "dump", "--json", "--pid", str(pid), *mode],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
    )


def _parse_json(path: str) -> tuple[Thread, ...]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            threads = json.load(file)
    except (OSError, ValueError):
        return ()
    return tuple(
        Thread(
            name=_name(thread),
            is_active=bool(thread.get("active")),
            holds_gil=bool(thread.get("owns_gil")),
            frames=_of_the_worker(
                Frame(
                    str(frame.get("name")),
                    str(frame.get("short_filename") or frame.get("filename")),
                    frame["line"],
                )
                for frame in thread.get("frames", ())
            ),
        )
        for thread in threads
    )


def _name(thread: dict[str, Any]) -> str:
    """The main thread has the process's number; its name is missing where threading was never imported."""
    if thread.get("os_thread_id") == thread.get("pid"):
        return "MainThread"
    return str(thread.get("thread_name") or f"thread {thread.get('os_thread_id')}")


def _of_the_worker(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Without the frames in which a warm worker was made: they are the launcher's, outermost, and tell nothing."""
    return tuple(itertools.takewhile(lambda frame: not frame.file.endswith("launcher/become.py"), frames))


_FAULTHANDLER_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


def _from_inside(pid: int, path: str, number: int, end: float) -> tuple[Thread, ...]:
    pidfd = open_pidfd(pid)
    status = process_status(pid)
    if pidfd is None or status is None or status.is_stopped or not number or not os.path.exists(path):
        return ()
    try:
        if not send_signal(pidfd, number):
            return ()
        while time.monotonic() < end:
            if wait_for_exit([pidfd], 0.005):
                return ()
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            # faulthandler writes the current (signalled) thread last; its stack ends the text.
            if "Current thread" in text and text.endswith("\n"):
                return _parse_faulthandler(text)
        return ()
    finally:
        os.close(pidfd)


def _parse_faulthandler(text: str) -> tuple[Thread, ...]:
    threads = []
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines()
        frames = _of_the_worker(
            Frame(match["function"], match["file"], int(match["line"]))
            for line in lines
            if (match := _FAULTHANDLER_FRAME.match(line))
        )
        is_current = head.startswith("Current thread")
        name = "MainThread" if is_current else head.partition(" (")[0]
        threads.append(Thread(name, is_active=is_current, holds_gil=False, frames=frames))
    return tuple(threads)
