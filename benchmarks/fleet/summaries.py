"""Statistics of many rows at once: what ``straggler.measurement.summary`` says of each, computed over the last axis.

Written apart from it, so that one checks the other (tests/benchmarks/test_fleet_jobs.py).
"""

from __future__ import annotations

import attrs
import numpy as np

from benchmarks.fleet.noise import Floats

__all__ = ["Statistics", "summaries"]

_BATCHES, _LEAST = 8, 4


@attrs.frozen
class Statistics:
    """Statistics in seconds, except ``num``; each shape ``(rows, ranks)``, NaN where a rank is missing.

    Args:
        med: Median.
        avg: Mean.
        num: Samples.
        total: Seconds spent.
        med_error: Standard error of the median.
        avg_error: Standard error of the mean.
    """

    med: Floats
    avg: Floats
    num: Floats
    total: Floats
    med_error: Floats
    avg_error: Floats


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
    num = np.where(np.isnan(med), np.nan, float(steps))
    med_error, avg_error = _errors(seconds, avg)
    return Statistics(med, avg, num, avg * num, med_error, avg_error)


def _errors(seconds: Floats, avg: Floats) -> tuple[Floats, Floats]:
    steps = seconds.shape[-1]
    if steps < 2:
        return 0.0 * avg, 0.0 * avg
    middle, half = (steps - 1) / 2.0, min(steps**0.5, steps - 1.0) / 2.0
    places = np.arange(steps)
    ordered = np.sort(seconds, axis=-1)
    # What a line through the order statistics shows at a place.
    low, high = (
        (ordered * np.clip(1.0 - np.abs(places - place), 0.0, None)).sum(axis=-1)
        for place in (middle - half, middle + half)
    )
    square = ((seconds - avg[..., None]) ** 2).sum(axis=-1) / (steps - 1)
    widened = np.ones_like(avg)
    if steps >= _BATCHES * _LEAST:
        each = steps // _BATCHES
        last = seconds[..., -each * _BATCHES :]
        means = np.stack([last[..., k * each : (k + 1) * each].sum(axis=-1) / each for k in range(_BATCHES)], axis=-1)
        between = ((means - means.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) / (_BATCHES - 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.nan_to_num(each * between / square)
        widened = np.where(ratio > 2.0, ratio**0.5, 1.0)
    return widened * (high - low) / 2.0, widened * (square / steps) ** 0.5
