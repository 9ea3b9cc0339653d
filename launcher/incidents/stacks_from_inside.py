"""Stacks that a rank writes itself, by faulthandler, when it is asked to by a signal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping

from launcher.incidents.frames import CRASHED, MAIN, Thread, answers_questions, frame_of, of_the_worker
from launcher.processes.handles import open_pidfd, send_signal, wait_for_exit
from launcher.processes.proc import descriptor_path, handles_signal, open_files, process_status
from resilience_core.system.plain_files import only_plain, plain_size

__all__ = ["fatal_stack", "from_inside"]

_FATAL = "Fatal Python error: "
_FATAL_TEXTS: dict[int, str] = {
    signal.SIGSEGV: "Segmentation fault",
    signal.SIGABRT: "Aborted",
    signal.SIGFPE: "Floating point exception",
    signal.SIGBUS: "Bus error",
    signal.SIGILL: "Illegal instruction",
}
"""As faulthandler calls them, with or without a hyphen."""
_MOST_FATAL_BYTES = 1 << 20
_GONE = "the process had ended before anybody could look at it"
_FAULTHANDLER_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


def from_inside(
    asked: Mapping[int, tuple[int, str]], number: int, end: float, why: dict[int, str]
) -> dict[int, tuple[Thread, ...]]:
    """Ask all processes for their stacks at the same moment, then read the answers as they come.

    The signal may wake a C call that returns on EINTR, and a process that waits for that one then goes on, too. Each
    process handles its signal before it goes on, so all signals are sent in one go, after everything else is looked up.

    Args:
        asked: Key (say, a local rank) to pid and the file in which that process answers.
        number: The signal.
        end: When to stop waiting, on ``time.monotonic()``.
        why: Filled in: why there is no stack of a key.
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
            waiting[key] = (pidfd, path, before := plain_size(path))
            status = process_status(pid)
            state = "X" if status is None else status.state
            why[key] = _why_not_ask(state, before >= 0, handles_signal(pid, number))
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


def fatal_stack(path: str, number: int) -> tuple[Thread, ...]:
    """Return the stacks that a process has written as it died of a signal; none where it has written none.

    Args:
        path: Its file, which must answer at once.
        number: The signal. A child that it has forked may have written there, too, as it died of another one.
    """
    if number in _FATAL_TEXTS and plain_size(path) > 0:
        with contextlib.suppress(OSError), open(path, "rb", opener=only_plain) as file:
            file.seek(max(0, plain_size(path) - _MOST_FATAL_BYTES))
            text = file.read(_MOST_FATAL_BYTES).decode("utf-8", errors="replace")
            head, _, stacks = text.rpartition(_FATAL)[2].partition("\n\n")
            if _FATAL in text and head.strip().replace("-", " ") == _FATAL_TEXTS[number]:
                return _parse_faulthandler(stacks, CRASHED)
    return ()


def _why_not_ask(state: str, has_file: bool, handles: bool) -> str:
    """Return why a process cannot be asked for its stack; empty where it can."""
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
        for descriptor, name in open_files(pid):
            if os.path.basename(name) == removed:
                return descriptor_path(descriptor, pid)
    except OSError:  # gone, or not ours to look at
        pass
    return path


def _answer(path: str, before: int) -> tuple[Thread, ...]:
    """Return what was written since it was asked, once that is complete."""
    try:
        with open(path, "rb", opener=only_plain) as file:
            file.seek(before)
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ()
    # faulthandler writes the current (signalled) thread last; its stack ends the text.
    return _parse_faulthandler(text) if "Current thread" in text and text.endswith("\n") else ()


def _parse_faulthandler(text: str, current: str = MAIN) -> tuple[Thread, ...]:
    threads = []
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines() or [""]
        if not head.startswith(("Current thread", "Thread")):  # it lists extension modules after a fatal signal
            continue
        frames = of_the_worker(
            frame_of(match["function"], match["file"], int(match["line"]))
            for line in lines
            if (match := _FAULTHANDLER_FRAME.match(line))
        )
        if answers_questions(frames):
            continue
        is_current = head.startswith("Current thread")
        name = current if is_current else head.partition(" (")[0]
        threads.append(Thread(name, is_active=is_current, holds_gil=False, frames=frames, was_asked=current == MAIN))
    return tuple(threads)
