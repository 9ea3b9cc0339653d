"""A histogram of durations: how many were at most so long."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["Durations", "Histogram"]


class Histogram(NamedTuple):
    """A histogram as it is served."""

    buckets: tuple[tuple[float, int], ...]
    """Bounds in seconds, rising, each with how many durations were not above it; infinity is left out."""
    total: int
    sum_seconds: float


class Durations:
    """Counts durations one by one.

    Args:
        bounds: Of the buckets, seconds, rising.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count a duration in nanoseconds; a negative one, as of two clocks, is none."""
        if duration_ns >= 0:
            self._counts[bisect_left(self._bounds, duration_ns / NS_PER_SECOND)] += 1
            self._sum_ns += duration_ns

    @property
    def histogram(self) -> Histogram:
        """What was counted so far."""
        total, buckets = 0, []
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            buckets.append((bound, total))
        return Histogram(tuple(buckets), sum(self._counts), self._sum_ns / NS_PER_SECOND)
