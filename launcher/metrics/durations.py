"""The durations of sections, which a rank counts by their bits, as a histogram."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.agent.durations import Histogram
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["BOUNDS_OF_SECTIONS", "of_bits"]

_LEAST_BITS, _MOST_BITS = 17, 42
"""Sections are told apart from 131 us to 73 minutes. The rank counts by the powers of two below and above, too; they
are left out here, since each would be one more series for every section of every rank."""

BOUNDS_OF_SECTIONS = tuple((1 << bits) / NS_PER_SECOND for bits in range(_LEAST_BITS, _MOST_BITS + 1))


def of_bits(durations: Mapping[int, int], took_ns: int) -> Histogram:
    """Return the histogram of a section.

    Args:
        durations: From a number of bits to how many durations in nanoseconds had that many: all below 2**bits.
        took_ns: Their sum.
    """
    total = sum(count for bits, count in durations.items() if bits < _LEAST_BITS)
    buckets = []
    for bits, bound in zip(range(_LEAST_BITS, _MOST_BITS + 1), BOUNDS_OF_SECTIONS, strict=True):
        total += durations.get(bits, 0)
        buckets.append((bound, total))
    return Histogram(tuple(buckets), sum(durations.values()), took_ns / NS_PER_SECOND)
