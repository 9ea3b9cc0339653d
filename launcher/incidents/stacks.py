"""Where the Python of a stuck process stands, taken from outside, in parallel and within a bound.

``py-spy`` reads another process's memory: it works while the GIL is held in C, and with ``--nonblocking`` on a
process that is stopped. Where it is not installed, or may not look, the rank's own ``faulthandler`` is asked.

Its signal restarts most system calls (SA_RESTART) and Python repeats the rest, but a C library may take the
interruption for an error. The launcher therefore has every rank asked, since it ends all of them in any case once
one is condemned; a monitor whose ranks are not its own asks the condemned alone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.processes.handles import open_pidfd, process_status, send_signal, wait_for_exit
from launcher.processes.working_folder import working_folder
from launcher.records.console import say
from resilience_core.system.installation import HOME
from resilience_core.system.plain_files import only_plain

__all__ = [
    "OURS",
    "Frame",
    "Thread",
    "innermost_frame",
    "is_a_wait_for_the_gpu",
    "main_thread",
    "own_frame",
    "take_stacks",
]

_LONGEST_END_SECONDS = 0.5
_WAITS_FOR_A_GPU = re.compile(
    r"\.(item|cpu|tolist|numpy|to|wait|query|nonzero)\(|synchronize|\b(float|int|bool|print)\("
)


class Frame(NamedTuple):
    """One line of a stack."""

    function: str
    file: str
    """For people: relative to the working folder, or to where packages are installed."""
    line: int
    package: str = ""
    """What it belongs to: empty for the user's own code, ``python`` for the standard library, or a package."""
    path: str = ""
    """The file as the interpreter knows it."""

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class Thread(NamedTuple):
    """One thread of a process; the innermost frame comes first."""

    name: str
    is_active: bool
    holds_gil: bool
    frames: tuple[Frame, ...]
    was_asked: bool = False
    """The process has written it itself, upon a signal, which may have woken it."""


def take_stacks(
    pids: Mapping[int, int],
    *,
    py_spy: str | None,
    timeout_seconds: float,
    fallback_files: Mapping[int, str] | None = None,
    fallback_signal: int = 0,
    reasons: dict[int, str] | None = None,
) -> dict[int, tuple[Thread, ...]]:
    """Take the stacks of several processes at once.

    Args:
        pids: Key (say, a local rank) to process.
        py_spy: The program's path, None where it is not installed.
        timeout_seconds: The bound on all of it together.
        fallback_files: Key to the file that the process's own faulthandler writes to, for those that may be asked.
        fallback_signal: The signal that makes it write.
        reasons: Gets, for each key without a stack, why there is none.

    Returns:
        Key to threads; a key is missing where nothing could be had.
    """
    end = time.monotonic() + timeout_seconds
    why = dict.fromkeys(pids, "it was not asked" if py_spy else "there is no py-spy, and it was not asked")
    found = _from_outside(pids, py_spy, end) if py_spy else {}
    silent = {
        key: (pids[key], file) for key, file in (fallback_files or {}).items() if key in pids and key not in found
    }
    if silent and fallback_signal:
        found.update(_from_inside(silent, fallback_signal, max(end, time.monotonic() + 0.05), why))
    if reasons is not None:
        outside = "py-spy told nothing, and " if py_spy else ""
        reasons.update((key, outside + reason) for key, reason in why.items() if key not in found)
    return found


def main_thread(threads: tuple[Thread, ...]) -> Thread | None:
    """The thread that runs the training loop: the one called MainThread, else the last one listed."""
    for thread in threads:
        if thread.name == "MainThread":
            return thread
    return threads[-1] if threads else None


def own_frame(threads: tuple[Thread, ...]) -> Frame | None:
    """The innermost line of the user's own code in the main thread."""
    thread = main_thread(threads)
    return next((f for f in thread.frames if f.package == ""), None) if thread is not None else None


def innermost_frame(threads: Sequence[Thread]) -> Frame | None:
    """The innermost frame of the main thread."""
    thread = main_thread(tuple(threads))
    return thread.frames[0] if thread is not None and thread.frames else None


def is_a_wait_for_the_gpu(threads: Sequence[Thread], sources: Mapping[Frame, str]) -> bool:
    """Whether the innermost line may wait for a kernel: no Python frame shows that, so its source has to tell."""
    frame = innermost_frame(threads)
    if frame is None:
        return False
    source = sources.get(frame)
    return not source or bool(_WAITS_FOR_A_GPU.search(source))


def _from_outside(pids: Mapping[int, int], py_spy: str, end: float) -> dict[int, tuple[Thread, ...]]:
    running = {}
    for key, pid in pids.items():
        try:
            # Closed by whoever reads it; without a name, so that no folder can be full or gone.
            output = open(os.memfd_create("ft_stack"), "rb")  # noqa: SIM115
        except OSError as error:
            say(f"no memory for what {py_spy} writes: {error.strerror}; no stacks from outside")
            break
        try:
            child = _start_py_spy(py_spy, pid, output.fileno())
        except OSError as error:  # no memory for a process, or the program was removed: the kill goes on without
            output.close()
            say(f"cannot run {py_spy}: {error.strerror}; no stacks from outside")
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
            # One that reads a process which is stuck in the kernel may be stuck as well; it is left behind.
            has_ended = bool(wait_for_exit([pidfd], _LONGEST_END_SECONDS))
            os.close(pidfd)
            with output:
                if has_ended and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
                    output.seek(0)
                    threads = _parse_json(output.read())
                    if threads:
                        found[key] = threads
    return found


def _start_py_spy(py_spy: str, pid: int, output: int) -> int:
    status = process_status(pid)
    mode = ["--nonblocking"] if status is not None and status.state in "Tt" else []
    return os.posix_spawn(
        py_spy,
        [py_spy, "dump", "--json", "--pid", str(pid), *mode],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
    )


def _parse_json(raw: bytes) -> tuple[Thread, ...]:
    try:
        threads = json.loads(raw.decode("utf-8", errors="replace"))
    except ValueError:
        return ()
    return tuple(
        Thread(
            name=_name(thread),
            is_active=bool(thread.get("active")),
            holds_gil=bool(thread.get("owns_gil")),
            frames=_of_the_worker(
                frame_of(str(frame.get("name")), str(frame.get("filename")), int(frame["line"]))
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
    return tuple(
        itertools.takewhile(lambda frame: not frame.path.endswith("launcher/zygote/worker_bootstrap.py"), frames)
    )


_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?P<file>(?P<package>[^/]+).*)")
_STANDARD_LIBRARY = re.compile(r".*/lib\d*/python3\.\d+/(?P<file>.*)")
OURS = ("adapters", "launcher", "resilience_core", "straggler")


def frame_of(function: str, path: str, line: int) -> Frame:
    """A frame with its path shortened, and told what it belongs to."""
    if (match := _INSTALLED.match(path)) is not None:
        return Frame(function, match["file"], line, match["package"].removesuffix(".py"), path)
    if (match := _STANDARD_LIBRARY.match(path)) is not None:
        return Frame(function, match["file"], line, "python", path)
    if path.startswith("<frozen"):
        return Frame(function, path, line, "python", path)
    if path.startswith(HOME + os.sep) and (short := os.path.relpath(path, HOME)).split(os.sep)[0] in OURS:
        return Frame(function, short, line, short.split(os.sep)[0], path)
    here = working_folder()
    is_below = here is not None and path.startswith(here + os.sep)
    return Frame(function, os.path.relpath(path, here) if is_below else path, line, "", path)


_GONE = "the process had ended before anybody could look at it"
_FAULTHANDLER_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


def _from_inside(
    asked: Mapping[int, tuple[int, str]], number: int, end: float, why: dict[int, str]
) -> dict[int, tuple[Thread, ...]]:
    """Ask all of them at one moment, then read the answers as they come.

    The signal may wake a C call that returns on EINTR; whoever waits for that process then goes on. Each handles its
    signal before it goes on, so all signals are sent in one go: what has to be found out first is found out before.
    """
    found: dict[int, tuple[Thread, ...]] = {}
    waiting: dict[int, tuple[int, str, int]] = {}
    try:
        for key, (pid, path) in asked.items():
            pidfd = open_pidfd(pid)
            if pidfd is None:
                why[key] = _GONE
                continue
            path = _where_it_writes(pid, path)
            waiting[key] = (pidfd, path, before := _size(path))
            status = process_status(pid)
            why[key] = _why_not_ask(status.state if status is not None else "X", before >= 0, _handles(pid, number))
            if why[key]:
                os.close(waiting.pop(key)[0])
            else:
                why[key] = "it did not answer the signal in time (--ft-stack-capture-timeout)"
        deaf = [key for key, (pidfd, _, _) in waiting.items() if not send_signal(pidfd, number)]
        for key in deaf:
            why[key] = _GONE
            os.close(waiting.pop(key)[0])
        while waiting and time.monotonic() < end:
            ended = wait_for_exit([pidfd for pidfd, _, _ in waiting.values()], 0.005)
            for key, (pidfd, path, before) in list(waiting.items()):
                threads = _answer(path, before)
                if threads:
                    found[key] = threads
                if pidfd in ended:
                    why[key] = _GONE
                if threads or pidfd in ended:
                    os.close(waiting.pop(key)[0])
        return found
    finally:
        for pidfd, _, _ in waiting.values():
            os.close(pidfd)


def _why_not_ask(state: str, has_file: bool, handles: bool) -> str:
    """Why a process cannot be asked for its stack; empty where it can."""
    if state in "ZX":
        return _GONE
    if state in "Tt":
        return "it is stopped, and a stopped process answers no signal"
    if not has_file:
        return "it is not monitored yet, or the file that it would answer in is gone"
    if not handles:
        return "its handler for the question is gone: faulthandler or the signal was taken over by the script"
    return ""


def _where_it_writes(pid: int, path: str) -> str:
    """Find the file by the process's own descriptor where somebody has removed it."""
    if os.path.isfile(path):
        return path
    removed = os.path.basename(path) + " (deleted)"  # as proc(5) shows it
    try:
        for descriptor in os.listdir(folder := f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.basename(os.readlink(f"{folder}/{descriptor}")) == removed:
                    return f"{folder}/{descriptor}"
    except OSError:  # gone, or not ours to look at
        pass
    return path


def _handles(pid: int, number: int) -> bool:
    """Whether a signal has a handler there; it would end a process that has stopped answering, or never began."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            (mask,) = (line.split()[1] for line in file if line.startswith("SigCgt:"))
    except (OSError, ValueError):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)


def _size(path: str) -> int:
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _answer(path: str, before: int) -> tuple[Thread, ...]:
    """What was written since it was asked, once that is complete."""
    try:
        with open(path, "rb", opener=only_plain) as file:
            file.seek(before)
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ()
    # faulthandler writes the current (signalled) thread last; its stack ends the text.
    return _parse_faulthandler(text) if "Current thread" in text and text.endswith("\n") else ()


def _parse_faulthandler(text: str) -> tuple[Thread, ...]:
    threads = []
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines()
        frames = _of_the_worker(
            frame_of(match["function"], match["file"], int(match["line"]))
            for line in lines
            if (match := _FAULTHANDLER_FRAME.match(line))
        )
        is_current = head.startswith("Current thread")
        name = "MainThread" if is_current else head.partition(" (")[0]
        threads.append(Thread(name, is_active=is_current, holds_gil=False, frames=frames, was_asked=True))
    return tuple(threads)
