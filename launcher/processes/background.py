"""A thread that writes what others hand it, so that no file system, pipe or terminal can hold up a restart.

Two ways were sketched:

* *A descriptor opened anew with O_NONBLOCK* (through ``/proc/self/fd``): no thread, and a full pipe is noticed at
  once. But a regular file blocks whatever its flags, which is the case that matters for log folders; a socket
  cannot be opened that way; and every line that does not fit at this very moment is lost.
* *A thread with a bounded queue*: whatever blocks, blocks there. What a slow reader has not taken yet waits in
  memory, up to a bound, and only what is beyond it is lost, counted, and reported later.

The thread was chosen. It is started early, while the system still grants threads, but after the zygote was forked,
since a process with threads must not be forked. The first way is used before that, and where no thread can be started.

Standard library only: the monitor uses it, too.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["Background", "NotDoneError", "place_of"]

T = TypeVar("T")


class NotDoneError(Exception):
    """A call was not done in time: what it waits for does not answer."""


class _Thread(threading.Thread):
    place: str | None = None


def place_of(native_id: int) -> str | None:
    """Return the folder that a thread of this process was started for; None for any other thread."""
    threads = [each for each in threading.enumerate() if each.native_id == native_id]
    return next((each.place for each in threads if isinstance(each, _Thread)), None)


class Background:
    """One thread and the calls that wait for it.

    Args:
        name: Of the thread.
        room: How much may wait; the unit is the caller's, most often bytes.
        place: The folder that the calls touch, where it is one; for messages.
    """

    def __init__(self, name: str, room: int, place: str | None = None) -> None:
        self._name = name
        self._place = place
        self._free = room
        self._calls: collections.deque[tuple[Callable[[], object], int]] = collections.deque()
        self._changed = threading.Condition()
        self._busy_since: float | None = None
        self._thread: threading.Thread | None = None
        self._gathering = 0

    @property
    def is_started(self) -> bool:
        """Return whether there is a thread; otherwise calls are made where they are handed over."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread; where the system refuses one, calls go on being made by the caller."""
        if self._thread is None:
            thread = _Thread(target=self._run, name=self._name, daemon=True)
            thread.place = self._place
            with contextlib.suppress(RuntimeError):  # pids.max, RLIMIT_NPROC
                thread.start()
                self._thread = thread

    def submit(self, call: Callable[[], object], size: int = 1) -> bool:
        """Hand over a call without waiting for it. What it raises goes to :func:`threading.excepthook`.

        Returns:
            Whether there was room for it.
        """
        if self._thread is None:
            _make(call)
            return True
        with self._changed:
            if size > self._free:
                return False
            self._free -= size
            self._calls.append((call, size))
            if not self._gathering:
                self._changed.notify_all()
        return True

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Wake the thread once for all that is handed over meanwhile, unless somebody waits for a result.

        A thread that is woken for each line takes the interpreter's lock and a processor from the caller, which needs
        both to start ranks again.
        """
        with self._changed:
            self._gathering += 1
        try:
            yield
        finally:
            with self._changed:
                self._gathering -= 1
                if self._calls and not self._gathering:
                    self._changed.notify_all()

    def call(self, function: Callable[[], T], timeout_seconds: float) -> T:
        """Call a function in the thread, and return its result within a bound.

        Raises:
            NotDoneError: It was not done in time, or what came before it has been stuck for as long already, so
                that waiting would be in vain; it may still be done later.
            Exception: What the function has raised.
        """
        if self._thread is None:
            return function()
        outcome: list[T] = []
        problem: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                outcome.append(function())
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                problem.append(error)
            done.set()

        if self._is_stuck(timeout_seconds) or not self.submit(run):
            raise NotDoneError(f"no answer within {timeout_seconds:g} s")
        self._wake()
        if not done.wait(timeout_seconds):
            raise NotDoneError(f"no answer within {timeout_seconds:g} s")
        if problem:
            raise problem[0]
        return outcome[0]

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until nothing waits any more, or the time is up.

        Returns:
            Whether all is done.
        """
        self._wake()
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls and self._busy_since is None, timeout_seconds)

    def _wake(self) -> None:
        if self._gathering:
            with self._changed:
                self._changed.notify_all()

    def _is_stuck(self, seconds: float) -> bool:
        since = self._busy_since
        return since is not None and time.monotonic() - since > seconds

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._calls:
                    self._changed.wait()
                call, size = self._calls.popleft()
                self._busy_since = time.monotonic()
            _make(call)
            with self._changed:
                self._free += size
                self._busy_since = None
                self._changed.notify_all()


def _make(call: Callable[[], object]) -> None:
    """Make a call; a mistake in it must end neither the thread, for which others wait, nor who has handed it over."""
    try:
        call()
    except Exception:  # noqa: BLE001 - it is reported
        with contextlib.suppress(Exception):  # what stands in for standard error may raise anything
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
