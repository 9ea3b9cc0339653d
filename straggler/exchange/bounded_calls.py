"""Calls to a store that may never return, each made on a helper thread and waited for with a limit."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from straggler.exchange.presence import Presence
from straggler.pacing import carried, longest_wait

__all__ = ["BoundedCalls"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


_MOST_FAILURES = 3
"""In a row; after these the connection is given up: it does not come back, and each try would be logged by torch."""


_ANSWER_SECONDS = 0.5


class BoundedCalls:
    """Makes calls on a daemon thread, and waits for each with a limit.

    Args:
        presence: Of the store. Where it is not expected to be there no call is made, and after a call that has failed
            another one only where the store answers: torch prints a page for each that fails.
    """

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stuck: threading.Event | None = None
        self._thread = threading.Thread(target=self._run, name="straggler-exchange", daemon=True)
        self._thread.start()
        self._said = False
        self._failures = 0

    def call(self, what: str, function: Callable[[], T], limit_seconds: float) -> T | None:
        """Have a function called and wait for its result.

        Args:
            what: What it does, for the message.
            function: A failure of it is logged, the first one only.
            limit_seconds: How long to wait; up to twice as long where the function may wait for steps.

        Returns:
            The result; None after a failure, when it takes longer, while an earlier call has not come back, and for
            good once calls have failed three times in a row.
        """
        if not self.can_call or not self._presence.is_expected():
            return None
        if self._failures and not self._presence.answers(min(_ANSWER_SECONDS, limit_seconds)):
            self._failures += 1
            return None
        return self._made(what, function, limit_seconds)

    def begin(self, what: str, function: Callable[[], object]) -> None:
        """Have a function called before all later ones, without waiting for it, if the store is expected to be there.

        Args:
            what: As for :meth:`call`.
            function: As there. Where it hangs, the next call is the one that takes too long.
        """
        if self._presence.is_expected():
            self._work.put(lambda: self._make(what, function))

    @property
    def can_call(self) -> bool:
        """Return whether no call hangs, and the connection is not given up."""
        return self._failures < _MOST_FAILURES and (self._stuck is None or self._stuck.is_set())

    def last_call(self, what: str, function: Callable[[], object], limit_seconds: float) -> None:
        """Have a function called if the store answers, even if it is no longer expected to be there; then end.

        Args:
            what: As for :meth:`call`.
            function: As there.
            limit_seconds: As there.
        """
        if self.can_call and self._presence.answers(min(_ANSWER_SECONDS, limit_seconds)):
            self._made(what, function, limit_seconds)
        self.close()

    def _made(self, what: str, function: Callable[[], T], limit_seconds: float) -> T | None:
        done = threading.Event()
        result: list[T] = []

        def work() -> None:
            try:
                self._make(what, lambda: result.append(function()))
            finally:
                done.set()

        function = carried(function)
        self._work.put(work)
        if not done.wait(limit_seconds + min(longest_wait(), limit_seconds)):
            self._stuck = done
            self._say(
                f"{what} took more than {limit_seconds:g} s: the process that serves the store is stopped or gone"
            )
            return None
        if result:
            self._stuck = None
            return result[0]
        return None

    def _make(self, what: str, function: Callable[[], object]) -> None:
        try:
            function()
            self._failures = 0
        except Exception as error:  # noqa: BLE001 - torch raises several types for a store that is gone
            self._failures += 1
            self._say(f"{what} failed ({type(error).__name__}: {error})")

    def close(self) -> None:
        """End the thread once the call that it makes comes back."""
        self._work.put(None)

    def _say(self, message: str) -> None:
        if not self._said:
            self._said = True
            logger.warning("straggler report: %s; reports go on without the others (said once)", message)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # it may hold the store, whose server ends with the process group
