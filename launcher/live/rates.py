"""How many iterations a rank does in a second, from when its iteration was seen to change. Pure."""

from __future__ import annotations

from collections import deque

from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["Rate"]

_WINDOW_NS = 10 * NS_PER_SECOND
"""The rate is that of so long; of slow steps, that of the last few."""


class Rate:
    """The pace of one rank."""

    def __init__(self) -> None:
        self._changes: deque[tuple[int, int]] = deque()
        self._iteration = -1

    def note(self, now_ns: int, iteration: int) -> None:
        """Note the iteration that a rank is in.

        The first one that is seen, and the first one of those that begin anew, is no change: since when the rank was in
        it is not known.

        Args:
            now_ns: ``CLOCK_MONOTONIC``; not earlier than at the last call.
            iteration: Negative for unknown. One that is lower than before begins anew.
        """
        changes, before = self._changes, self._iteration
        self._iteration = max(iteration, -1)
        if iteration < before:
            changes.clear()
            return
        if before < 0 or iteration == before:
            return
        changes.append((now_ns, iteration))
        while len(changes) > 3 and changes[1][0] <= now_ns - _WINDOW_NS:
            changes.popleft()

    def per_second(self, now_ns: int) -> float | None:
        """Return iterations per second; None until the iteration was seen to change twice.

        A rank that is silent for longer than a step takes becomes slower from then on.
        """
        changes = self._changes
        if len(changes) < 2:
            return None
        (first_ns, first), (last_ns, last) = changes[0], changes[-1]
        if last_ns <= first_ns:
            return None
        step_ns = (last_ns - first_ns) / (last - first)
        end_ns = max(last_ns, now_ns - step_ns)
        return (last - first) / (end_ns - first_ns) * NS_PER_SECOND
