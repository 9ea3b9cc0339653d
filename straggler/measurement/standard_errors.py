"""Standard errors of the median and the mean of one window's samples.

**Median**: half of the distance between the order statistics that lie half the square root of the count on both sides
of the middle (Woodruff 1952, with one standard deviation). It needs no form of the distribution: of durations that take
one of two values, a formula for normal variables is wrong by a multiple.

**Mean**: the standard deviation by the square root of the count.

Samples in a row may be alike, as where a machine is disturbed for some steps, so that there are fewer independent ones.
The means of a few batches in a row show that (Conway 1963): where they vary by more than twice as much (a variance) as
those of independent samples would, both errors are larger by the root of that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["standard_errors"]

Floats = npt.NDArray[np.float64]

_BATCHES = 8
_LEAST_OF_A_BATCH = 4
_CERTAIN = 2.0


def standard_errors(seconds: Floats) -> tuple[Floats, Floats]:
    """Return the standard errors of the median and the mean, in seconds, over the last axis; 0 of fewer than two.

    Args:
        seconds: In the order in which they came, shape ``(..., samples)``; NaN makes the errors NaN.
    """
    count = seconds.shape[-1]
    if count < 2:
        return np.zeros(seconds.shape[:-1]), np.zeros(seconds.shape[:-1])
    ordered = np.sort(seconds, axis=-1)
    away = min(0.5 * count**0.5, 0.5 * (count - 1))
    of_median = 0.5 * (_at(ordered, 0.5 * (count - 1) + away) - _at(ordered, 0.5 * (count - 1) - away))
    variance = seconds.var(axis=-1, ddof=1)
    size = count // _BATCHES
    factor = np.ones(seconds.shape[:-1])
    if size >= _LEAST_OF_A_BATCH:
        batches = seconds[..., count - _BATCHES * size :].reshape(*seconds.shape[:-1], _BATCHES, size)
        ratio = size * batches.mean(axis=-1).var(axis=-1, ddof=1) / np.where(variance > 0.0, variance, 1.0)
        factor = np.where(ratio > _CERTAIN, np.sqrt(ratio), 1.0)
    return np.asarray(factor * of_median), np.asarray(factor * np.sqrt(variance / count))


def _at(ordered: Floats, place: float) -> Floats:
    """Return the value at a place between two order statistics."""
    low = min(int(place), ordered.shape[-1] - 2)
    share = place - low
    return np.asarray((1.0 - share) * ordered[..., low] + share * ordered[..., low + 1])
