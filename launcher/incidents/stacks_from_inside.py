"""Stacks that a rank writes itself, by faulthandler: a thread of its own when it is asked, or a signal's handler.

The thread is asked first (:mod:`resilience_core.protocol.stack_question`): it tells of all threads, and interrupts
none. Only a rank of which it tells nothing, as where the GIL is kept in C, gets the signal, which tells of one thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from launcher.incidents.frames import CRASHED, MAIN, Thread, answers_questions, frame_of, of_the_worker
from launcher.incidents.group_numbers import put_question
from launcher.processes.handles import open_pidfd, send_to_main_thread, wait_for_exit
from launcher.processes.proc import descriptor_path, handles_signal, open_files, process_status
from resilience_core.protocol.group_numbers import QUESTIONS
from resilience_core.protocol.stack_question import END_OF_STACKS, STACK, STACKS_QUESTION, THREADS
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
_LONGEST_WAIT_FOR_A_THREAD_SECONDS = 1.0
"""And no more than half of the time that there is; one that is to answer has to get the GIL and a core."""
_LOOK_SECONDS = 0.005
_GONE = "the process had ended before anybody could look at it"
_SILENT = "it did not answer the signal in time (--ft-stack-capture-timeout)"
_NO_HANDLER = "its handler for the question is gone: faulthandler or the signal was taken over by the script"
_NOT_OVERDUE = "its own thread did not answer, and only a rank that is overdue is sent the signal"
_THREAD_NUMBER = re.compile(r"0x0*(?P<number>[0-9a-f]+)")
_ONE_THREAD = "Stack (most recent call first):"
_FAULTHANDLER_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


class _Asked(NamedTuple):
    """A process that may be asked."""

    pid: int
    pidfd: int
    cell: str
    by_signal: tuple[str, int]
    """The file in which it answers the signal, and how long that was before."""
    by_thread: tuple[str, int]
    """The same of the file in which its own thread answers."""
    refusal: str
    """Why it cannot be asked by the signal; empty where it can."""

    @property
    def threads(self) -> tuple[Thread, ...]:
        """What it has told, once that is complete.

        A signal may end the call that kept the GIL; what its thread tells then is of a later moment.
        """
        return _signal_answer(_new_text(*self.by_signal)) or _thread_answer(_new_text(*self.by_thread))


def from_inside(
    asked: Mapping[int, tuple[int, str]], number: int, end: float, why: dict[int, str], interruptible: Collection[int]
) -> dict[int, tuple[Thread, ...]]:
    """Ask all processes for their stacks at the same moment, then read the answers as they come.

    The signal may wake a C call that returns on EINTR, and a process that waits for that one then goes on, too. Each
    process handles its signal before it goes on, so all signals are sent in one go, after everything else is looked up.

    Args:
        asked: Key (say, a local rank) to pid and the file in which that process answers.
        number: The signal.
        end: When to stop waiting, on ``time.monotonic()``.
        why: Filled in: why there is no stack of a key.
        interruptible: Keys of those that may be sent the signal.
    """
    found: dict[int, tuple[Thread, ...]] = {}
    waiting: dict[int, _Asked] = {}
    try:
        for key, (pid, file) in asked.items():
            pidfd = open_pidfd(pid)
            if pidfd is None:
                why[key] = _GONE
                continue
            cell = file.removesuffix(STACK)
            by_signal, by_thread = (
                (path, plain_size(path)) for path in (_where_it_writes(pid, each) for each in (file, cell + THREADS))
            )
            status = process_status(pid)
            why[key] = _why_not_ask("X" if status is None else status.state, by_signal[1] >= 0)
            if why[key]:
                os.close(pidfd)
                continue
            refusal = "" if handles_signal(pid, number) else _NO_HANDLER
            if key not in interruptible:
                refusal = _NOT_OVERDUE
            waiting[key] = _Asked(pid, pidfd, cell, by_signal, by_thread, refusal)
        told = {key for key, each in waiting.items() if put_question(each.cell + QUESTIONS, STACKS_QUESTION)}
        start = time.monotonic()
        _read_answers(waiting, told, start + min((end - start) / 2, _LONGEST_WAIT_FOR_A_THREAD_SECONDS), found, why)
        why.update((key, each.refusal or _SILENT) for key, each in waiting.items())
        silent = [each for each in waiting.values() if not each.refusal and not _has_grown(*each.by_thread)]
        gone = {each.pidfd for each in silent if not send_to_main_thread(each.pidfd, each.pid, number)}
        for key in [key for key, each in waiting.items() if each.pidfd in gone]:
            why[key] = _GONE
            os.close(waiting.pop(key).pidfd)
        signalled = {key for key, each in waiting.items() if each in silent}
        awaited = signalled | (told & waiting.keys())
        _read_answers(waiting, awaited, end, found, why)
        for key in signalled & found.keys():  # whichever way it has answered
            found[key] = tuple(thread._replace(was_asked=True) for thread in found[key])
        return found
    finally:
        for each in waiting.values():
            os.close(each.pidfd)


def _read_answers(
    waiting: dict[int, _Asked],
    keys: Collection[int],
    end: float,
    found: dict[int, tuple[Thread, ...]],
    why: dict[int, str],
) -> None:
    """Read what some of those that are waited for tell, until all of these have or have ended, or the time is up."""
    while (awaited := [key for key in keys if key in waiting]) and time.monotonic() < end:
        ended = wait_for_exit([waiting[key].pidfd for key in awaited], _LOOK_SECONDS)
        for key in awaited:
            each = waiting[key]
            if threads := each.threads:
                found[key] = threads
            if each.pidfd in ended:
                why[key] = _GONE
            if threads or each.pidfd in ended:
                os.close(waiting.pop(key).pidfd)


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


def _why_not_ask(state: str, has_file: bool) -> str:
    """Return why a process cannot be asked for its stack; empty where it can."""
    if state in "ZX":
        return _GONE
    if state in "Tt":
        return "it is stopped, and a stopped process answers no signal"
    if not has_file:
        return "it is not monitored yet, or the file that it would answer in is gone"
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


def _has_grown(path: str, before: int) -> bool:
    return plain_size(path) > before


def _new_text(path: str, before: int) -> str:
    """Return what was written since it was asked."""
    try:
        with open(path, "rb", opener=only_plain) as file:
            file.seek(max(0, before))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _signal_answer(text: str) -> tuple[Thread, ...]:
    # Of one thread; those of earlier releases told of all, the current one last.
    is_complete = text.endswith("\n") and ("Current thread" in text or _ONE_THREAD in text)
    return _parse_faulthandler(text) if is_complete else ()


def _thread_answer(text: str) -> tuple[Thread, ...]:
    """Return what a process's own thread tells once that is complete; none of the others had the GIL meanwhile."""
    own, is_complete, _ = text.partition(END_OF_STACKS)
    if not is_complete:
        return ()
    head, _, stacks = own.partition("\n")
    main = _THREAD_NUMBER.search(head)
    found: dict[str, Thread] = {}
    for thread in _parse_faulthandler(stacks, current=""):
        name = MAIN if main is not None and _is_of(thread, main["number"]) else thread.name
        if thread.frames and name not in found:  # the main thread stands there twice
            found[name] = thread._replace(name=name, is_active=False, was_asked=False)
    return tuple(found.values())


def _is_of(thread: Thread, number: str) -> bool:
    found = _THREAD_NUMBER.search(thread.name)
    return found is not None and found["number"] == number


def _parse_faulthandler(text: str, current: str = MAIN) -> tuple[Thread, ...]:
    threads = []
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines() or [""]
        if not head.startswith(("Current thread", "Thread", _ONE_THREAD)):  # it lists extension modules after a fault
            continue
        frames = of_the_worker(
            frame_of(match["function"], match["file"], int(match["line"]))
            for line in lines
            if (match := _FAULTHANDLER_FRAME.match(line))
        )
        if answers_questions(frames):
            continue
        is_current = head.startswith(("Current thread", _ONE_THREAD))
        name = current if is_current else head.partition(" (")[0]
        threads.append(Thread(name, is_active=is_current, holds_gil=False, frames=frames, was_asked=current == MAIN))
    return tuple(threads)
