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

    __slots__ = ("_error", "_number")

    def __init__(self) -> None:
        self._error, self._number = 0, 0

    def is_no_progress(self, error: BaseException | None, number: int, *, is_leaving: bool) -> bool:
        """Return whether a heartbeat is sent because an exception is on its way, as in a ``finally``.

        Who trains on while one is handled, to try a batch once more, sends more heartbeats: only the first of them is
        none that counts.

        Args:
            error: The exception that is being handled.
            number: How many heartbeats have counted before.
            is_leaving: The thread says itself that it leaves what it was in.
        """
        is_new = error is not None and (id(error), number) != (self._error, self._number)
        self._error, self._number = id(error), number
        if is_new or is_leaving:
            return True
        self._number += 1  # this one counts
        return False
