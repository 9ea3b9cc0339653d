"""The exception that is being handled, and whether a heartbeat is sent only because of it."""

from __future__ import annotations

import sys

__all__ = ["HandledAtHeartbeats", "exception"]

if sys.version_info >= (3, 11):
    from sys import exception
else:

    def exception() -> BaseException | None:
        """Return the exception that is being handled."""
        return sys.exc_info()[1]


class HandledAtHeartbeats:
    """Remembers which exception was being handled at the last heartbeat."""

    __slots__ = ("_error", "_iteration", "_number")

    def __init__(self) -> None:
        self._error, self._iteration, self._number = 0, 0, 0

    def is_no_progress(self, error: BaseException | None, number: int, iteration: int, *, is_leaving: bool) -> bool:
        """Return whether a heartbeat is sent because an exception is on its way, as in a ``finally``.

        Who trains on while one is handled, as to try a batch once more, makes progress by iterations: what is sent in a
        later one than the heartbeat before counts.

        Args:
            error: The exception that is being handled.
            number: How many heartbeats have counted before.
            iteration: Which was noted last.
            is_leaving: The thread says itself that it leaves what it was in.
        """
        if error is None:
            return is_leaving
        is_the_same = (id(error), number) == (self._error, self._number)
        has_moved = iteration != self._iteration
        self._error, self._iteration, self._number = id(error), iteration, number
        if is_leaving or not is_the_same or not has_moved:
            return True
        self._number += 1  # this one counts
        return False
