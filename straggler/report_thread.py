"""The thread that makes reports, so that training does not: it works one piece after the other, and polls meanwhile."""

from __future__ import annotations

import atexit
import logging
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

__all__ = ["ReportThread"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GRACE_SECONDS = 1.0
_LONGEST_END_SECONDS = 3.0

_open: weakref.WeakSet[ReportThread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End the threads first: one that is inside the store's library while the interpreter ends aborts the process."""
    for thread in list(_open):
        thread.close(grace_seconds=0.0, limit_seconds=0.5)
        thread.at_exit()


class ReportThread:
    """Works on what is given to it, in turn.

    Args:
        poll: Called whenever nothing else is to be done and the time it has last returned is over; it returns the
            seconds until the next call.
        at_exit: Called after the thread has ended with the interpreter, because nobody has closed it.
    """

    def __init__(self, poll: Callable[[], float], at_exit: Callable[[], None] = lambda: None) -> None:
        self._poll = poll
        self.at_exit = at_exit
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._hurried_from = math.inf
        self._is_closed = False
        self._has_failed = False
        self._later = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="straggler-reports", daemon=True)
        self._thread.start()
        _open.add(self)

    def do(self, work: Callable[[], None]) -> None:
        """Have something done, without waiting for it; what it raises is logged."""
        self._work.put(work)

    def do_later(self, work: Callable[[], None]) -> None:
        """Have something done that does not hurry the piece in hand."""

        def carry_out() -> None:
            with self._counting:
                self._later -= 1
            work()

        with self._counting:
            self._later += 1
        self._work.put(carry_out)

    def do_and_wait(self, work: Callable[[], T]) -> T:
        """Have something done after what was given before; return what it returns, raise what it raises."""
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def carry_out() -> None:
            try:
                results.append(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                errors.append(error)
            finally:
                done.set()

        self.do(carry_out)
        while not done.wait(1.0):
            if not self._thread.is_alive() and not done.is_set():
                raise RuntimeError("the thread that makes straggler reports has ended")
        if errors:
            raise errors[0]
        return results[0]

    @property
    def waiting(self) -> int:
        """Return how many pieces of work have not begun, but for those that hurry nothing."""
        return max(self._work.qsize() - self._later - self._is_closed, 0)

    def is_hurried(self) -> bool:
        """Return whether the piece in hand should wait for nobody any more: others wait, or the thread is to end."""
        return self.waiting > 0 or time.monotonic() >= self._hurried_from

    @property
    def is_awaited(self) -> bool:
        """Return whether somebody waits for the piece in hand to be over: another piece does, or the end."""
        return self._work.qsize() > self._later

    def close(self, grace_seconds: float = _GRACE_SECONDS, limit_seconds: float = _LONGEST_END_SECONDS) -> None:
        """Finish what was given, and end.

        Args:
            grace_seconds: How long the work in hand may still wait for others to answer.
            limit_seconds: How long to wait for the end.
        """
        if not self._is_closed:
            _open.discard(self)
            self._hurried_from = time.monotonic() + grace_seconds
            self._is_closed = True
            self._work.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(limit_seconds)

    def _run(self) -> None:
        pause = 0.0
        while True:
            try:
                work = self._work.get(timeout=pause)
            except queue.Empty:
                pass
            else:
                if work is None:
                    return
                self._carry_out(work)
                if self.waiting:
                    continue
            pause = self._carry_out(self._poll) or 1.0

    def _carry_out(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except BaseException:  # SystemExit, too: it would end this thread, and all reports with it
            if not self._has_failed:
                self._has_failed = True
                logger.exception("straggler: a report was not made (said once); training goes on")
            return None
