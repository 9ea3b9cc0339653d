"""Statistics of many rows at once: what ``straggler.measurement.summary`` says of each, computed over the last axis.

Written apart from it, so that one checks the other (tests/benchmarks/test_fleet_jobs.py).
"""

from __future__ import annotations

import attrs
import numpy as np

from benchmarks.fleet.noise import Floats

__all__ = ["Statistics", "summaries"]

_TO_SIGMA = 1.4826


@attrs.frozen
class Statistics:
    """Statistics in seconds, except ``num``; each shape ``(rows, ranks)``, NaN where a rank is missing.

    Args:
        med: Median.
        avg: Mean.
        num: Samples.
        total: Seconds spent.
        spread: Robust standard deviation of the samples.
    """

    med: Floats
    avg: Floats
    num: Floats
    total: Floats
    spread: Floats


def _median(ordered: Floats) -> Floats:
    middle, odd = divmod(ordered.shape[-1], 2)
    return ordered[..., middle] if odd else (ordered[..., middle - 1] + ordered[..., middle]) / 2.0


def summaries(seconds: Floats) -> Statistics:
    """Summarise durations along the last axis.

    Args:
        seconds: Shape ``(rows, ranks, steps)``; all of a rank's steps are NaN where it is missing.
    """
    steps = seconds.shape[-1]
    med = _median(np.sort(seconds, axis=-1))
    avg = seconds.sum(axis=-1) / steps
    spread = _TO_SIGMA * _median(np.sort(np.abs(seconds - med[..., None]), axis=-1))
    if steps < 2:
        spread = np.zeros_like(med)
    num = np.where(np.isnan(med), np.nan, float(steps))
    return Statistics(med, avg, num, avg * num, spread)
