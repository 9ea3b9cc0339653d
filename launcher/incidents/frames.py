"""Frames of Python, and what they tell."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.processes.working_folder import working_folder
from resilience_core.system.installation import HOME

__all__ = [
    "CRASHED",
    "Frame",
    "MAIN",
    "NATIVE",
    "OURS",
    "Thread",
    "answers_questions",
    "frame_of",
    "innermost_frame",
    "is_a_wait_for_the_gpu",
    "is_of_an_ending_interpreter",
    "main_thread",
    "native_frame",
    "of_the_worker",
    "own_frame",
    "own_frame_in",
    "own_line_of",
    "same_with_native",
    "thread_name",
]

_WAITS_FOR_A_GPU = re.compile(
    r"\.(item|cpu|tolist|numpy|to|wait|query|nonzero)\(|synchronize|\b(float|int|bool|print)\("
)
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?P<file>(?P<package>[^/]+).*)")
_STANDARD_LIBRARY = re.compile(r".*/lib\d*/python3\.\d+/(?P<file>.*)")
_IN_TRACEBACK = re.compile(  # of an exception group behind a bar
    r'^(?: +\| )?  File "(?P<path>[^"]+)", line (?P<line>\d{1,9}), in (?P<function>.+)$', re.MULTILINE
)
_LONGEST_NATIVE_NAME = 120
_MOST_FRAMES = 100
"""That faulthandler writes of a thread."""
MAIN = "MainThread"
"""What Python calls the thread that runs the training loop."""
CRASHED = "crashed thread"
"""What we call the one that has caused a fatal signal."""
NATIVE = "native"
"""What a frame of C or C++ belongs to; its file is the library."""
OURS = ("adapters", "launcher", "resilience_core", "straggler")


class Frame(NamedTuple):
    """One line of a stack."""

    function: str
    file: str
    """For people: relative to the working folder, or to where packages are installed."""
    line: int
    package: str = ""
    """What it belongs to: empty for the user's own code, ``python`` for the standard library, or a package.

    ``native`` for C and C++."""
    path: str = ""
    """The file as the interpreter knows it."""

    def __str__(self) -> str:
        place = self.file if self.package == NATIVE else f"{self.file}:{self.line}"
        return f"{self.function} ({place})"


class Thread(NamedTuple):
    """One thread of a process; the innermost frame comes first."""

    name: str
    is_active: bool
    holds_gil: bool
    frames: tuple[Frame, ...]
    was_asked: bool = False
    """The process has written it itself, upon a signal, which may have woken it."""


def main_thread(threads: tuple[Thread, ...]) -> Thread | None:
    """Return the thread that matters: the one that has crashed, or runs the training loop, or is listed last."""
    for name in (CRASHED, MAIN):
        for thread in threads:
            if thread.name == name:
                return thread
    return threads[-1] if threads else None


def same_with_native(thread: Thread, native: Sequence[Thread]) -> Thread | None:
    """Return the thread with its native frames; None where it was not seen, or has moved between the two looks."""
    for other in native:
        if other.name == thread.name and tuple(f for f in other.frames if f.package != NATIVE) == thread.frames:
            return other
    return None


def own_frame(threads: tuple[Thread, ...]) -> Frame | None:
    """Return the innermost line of the user's own code in the main thread."""
    thread = main_thread(threads)
    return next((f for f in thread.frames if f.package == ""), None) if thread is not None else None


def own_frame_in(traceback: str) -> Frame | None:
    """Return the innermost line of the user's own code in the text of a traceback."""
    match = _IN_TRACEBACK.match(own_line_of(traceback))
    return frame_of(match["function"], match["path"], int(match["line"])) if match is not None else None


def own_line_of(traceback: str) -> str:
    """Return the line of a traceback's text that :func:`own_frame_in` reads; nothing where there is none."""
    for m in reversed([*_IN_TRACEBACK.finditer(traceback)]):
        if frame_of(m["function"], m["path"], int(m["line"])).package == "":
            return f"{m[0]}\n"
    return ""


def innermost_frame(threads: Sequence[Thread]) -> Frame | None:
    """Return the innermost frame of the main thread."""
    thread = main_thread(tuple(threads))
    return thread.frames[0] if thread is not None and thread.frames else None


def is_of_an_ending_interpreter(threads: Sequence[Thread]) -> bool:
    """Return whether the main thread has left its script: it runs what is run at exit, or no Python any more.

    A stack that a signal has asked for has a hundred frames at most, so that of a deeper one does not tell.
    """
    thread = main_thread(tuple(threads))
    if thread is None or thread.name != MAIN or len(thread.frames) >= _MOST_FRAMES:
        return False
    return all(frame.function != "<module>" for frame in thread.frames)


def is_a_wait_for_the_gpu(threads: Sequence[Thread], sources: Mapping[Frame, str]) -> bool:
    """Return whether the innermost line may wait for a kernel; no Python frame shows that, so its source tells."""
    frame = innermost_frame(threads)
    if frame is None:
        return False
    source = sources.get(frame)
    return not source or bool(_WAITS_FOR_A_GPU.search(source))


def answers_questions(frames: Sequence[Frame]) -> bool:
    """Return whether this is our thread that tells how far a rank is in its collectives: its place tells nothing."""
    return any(frame.path.endswith("resilience_core/monitoring/group_numbers.py") for frame in frames)


def thread_name(thread: dict[str, Any]) -> str:
    """Return a thread's name; the main thread, which has the process's number, may lack one."""
    if thread.get("os_thread_id") == thread.get("pid"):
        return "MainThread"
    return str(thread.get("thread_name") or f"thread {thread.get('os_thread_id')}")


def of_the_worker(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Return the frames without the outermost ones, in which the launcher made a warm worker."""
    return tuple(
        itertools.takewhile(lambda frame: not frame.path.endswith("launcher/zygote/worker_bootstrap.py"), frames)
    )


def native_frame(function: str, library: str) -> Frame:
    """Return a frame of C or C++; one that the library has no name for is known by the library alone."""
    name = "??" if function.startswith("0x") else function
    if len(name) > _LONGEST_NATIVE_NAME:  # templates of pybind11 take kilobytes
        name = f"{name[:_LONGEST_NATIVE_NAME]}..."
    return Frame(name, os.path.basename(library), 0, NATIVE, library)


def frame_of(function: str, path: str, line: int) -> Frame:
    """Return a frame with its path shortened, and told what it belongs to."""
    if (match := _INSTALLED.match(path)) is not None:
        return Frame(function, match["file"], line, match["package"].removesuffix(".py"), path)
    if (match := _STANDARD_LIBRARY.match(path)) is not None:
        return Frame(function, match["file"], line, "python", path)
    if path.startswith("<frozen"):
        return Frame(function, path, line, "python", path)
    if path.startswith("<resilience_core: "):  # resilience_core/_event_calls.py
        return Frame(function, path, line, "resilience_core", path)
    if path.startswith(HOME + os.sep) and (short := os.path.relpath(path, HOME)).split(os.sep)[0] in OURS:
        return Frame(function, short, line, short.split(os.sep)[0], path)
    here = working_folder()
    is_below = here is not None and path.startswith(here + os.sep)
    return Frame(function, os.path.relpath(path, here) if is_below else path, line, "", path)
