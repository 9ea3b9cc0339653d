"""Statistic and the one definition of each.

CPU sections, CUDA events and kernels are all summarised by :func:`summarise`, so that the medians of two probes
can be compared. Inside this package every duration is in seconds; a report shows summaries in the units of
nvidia-resiliency-ext, see :func:`in_unit`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Statistic", "Summary", "in_unit", "summarise"]


class Statistic(enum.Enum):
    """The statistics of the durations of one section or kernel in one window.

    In a report's summaries they are in milliseconds for sections and in microseconds for kernels and other GPU times;
    NUM has no unit.
    """

    MIN = "MIN"
    """The shortest."""
    MAX = "MAX"
    """The longest."""
    MED = "MED"
    """The median; the mean of the two middle ones when NUM is even."""
    AVG = "AVG"
    """The arithmetic mean. AVG x NUM is the time spent in the measured entries: a part of all, if they are sampled."""
    STD = "STD"
    """The population standard deviation (divided by NUM): 0.0, never NaN, for a single sample."""
    NUM = "NUM"
    """How many samples."""

    def __str__(self) -> str:
        return self.value


Summary = dict[Statistic, float]


def summarise(seconds: Sequence[float] | npt.NDArray[np.float64]) -> Summary:
    """Summarise the durations of one section or kernel.

    Args:
        seconds: At least one duration, each finite and not negative.

    Raises:
        ValueError: There is none, or one is NaN, infinite or negative; a summary never hides that.
    """
    samples = np.asarray(seconds, dtype=np.float64)
    if samples.ndim != 1 or samples.size == 0:
        raise ValueError(f"a summary needs a flat sequence of at least one duration, got shape {samples.shape}")
    bad = ~(np.isfinite(samples) & (samples >= 0.0))
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        raise ValueError(f"duration {samples[where]} at position {where} is not a time in seconds")
    return {
        Statistic.MIN: float(samples.min()),
        Statistic.MAX: float(samples.max()),
        Statistic.MED: float(np.median(samples)),
        Statistic.AVG: float(samples.mean()),
        Statistic.STD: float(samples.std()),
        Statistic.NUM: float(samples.size),
    }


def in_unit(summary: Summary, per_second: float) -> Summary:
    """Return a summary in another unit than seconds.

    Args:
        summary: In seconds.
        per_second: How many of the unit are a second: 1e3 for milliseconds.
    """
    return {kind: value if kind is Statistic.NUM else value * per_second for kind, value in summary.items()}
