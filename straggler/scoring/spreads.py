"""How much healthy ranks differ, and the bars that follow from it.

**Spread.** Of a few peers: 1.4826 x the median absolute deviation (Rousseeuw and Croux 1993), which a minority of slow
ranks does not move. From ``TAIL_RANKS`` peers on, it is the larger of two deviations on the *fast* side, where no slow
rank is: that of the lower quartile, and that of a quantile further out, each divided by that of a normal variable.
So the tail is measured and not assumed. The two sides differ where durations are averages with rare long pauses;
for those the slow side counts too.

**Smoothing.** Spreads of pools are averaged over windows (their squares, exponentially). What one window shows counts
with its peers and windows as degrees of freedom; a prior counts as ``PRIOR_DEGREES`` more (moderated variances, Smyth
2004), and the bar is the quantile of Student's t with all of them (Wallace 1959), which a normal quantile would
understate for few ranks.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from straggler.pacing import paced
from straggler.scoring.peers import PeerGroups
from straggler.settings import RobustSettings

__all__ = ["TAIL_RANKS", "Quantiles", "Spread", "normal_quantile", "spread_of", "student_quantile"]

Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

TAIL_RANKS = 48
"""Peers from which on the tail is measured."""
PRIOR_DEGREES = 8.0
_MAD_DEGREES = 0.37
"""Degrees of freedom of a median absolute deviation per rank: its efficiency."""
_FEW = 4
_MOST_STUDENT = 1.3
"""How much more than the normal quantile that of Student's t counts for at most."""
_RISES = 1.5
"""By which factor a square rises at most from window to window: a slow rank of a few must not raise its own bar."""
_LONGEST = 64
"""Windows that a smoothed spread rests on at most."""
_REPORTS_A_DAY = 1440
_MANY_SHARE, _SHARE_OF_NOISE = 0.01, 0.1
"""Of the false names in the first windows, those among many peers, and those that a rank's own noise may lead to."""
_NORMAL = statistics.NormalDist()


def normal_quantile(chance: float) -> float:
    """Return what a normal variable exceeds with this chance."""
    return _NORMAL.inv_cdf(1.0 - min(max(chance, 1e-15), 0.5))


class Quantiles(NamedTuple):
    """Normal quantiles: how many standard deviations a healthy rank may be off.

    Args:
        few: In a rank's first windows, where it has few peers.
        many: The same where it has many.
        later: In all later windows.
        noise: In a rank's first windows, by its own noise.
    """

    few: float
    many: float
    later: float
    noise: float

    @classmethod
    def of(cls, settings: RobustSettings, comparisons: int) -> Quantiles:
        """Return those for so many comparisons in a window."""
        first = settings.false_alarms / comparisons
        later = settings.false_alarms_per_day / _REPORTS_A_DAY / comparisons
        return cls(*map(normal_quantile, (first, _MANY_SHARE * first, later, _SHARE_OF_NOISE * first)))


def student_quantile(z: float | Floats, degrees: Floats) -> Floats:
    """Return what Student's t exceeds with the chance that a normal variable exceeds ``z`` (Wallace 1959)."""
    inner = z * (8.0 * degrees + 3.0) / (8.0 * degrees + 1.0)
    student = np.sqrt(degrees * np.expm1(np.minimum(inner**2 / degrees, 50.0)))
    return np.asarray(np.minimum(student, _MOST_STUDENT * z))


def spread_of(values: Float32, peers: PeerGroups, *, inner: bool) -> tuple[Float32, Float32]:
    """Return the spread within each group.

    Args:
        values: Shape ``(rows, ranks)``; NaN is left out.
        peers: The groups.
        inner: The lower quartile counts too; of up to four values the larger middle one is taken.

    Returns:
        That of the fast side and the larger of both sides, each shape ``(rows, groups)``, NaN where nothing is known.
        Of a few peers both are the same.
    """
    low = np.full((values.shape[0], peers.count), np.nan, dtype=np.float32)
    both = low.copy()
    for group, columns in enumerate(paced(peers.members())):
        chosen = values if peers.count == 1 else values[:, columns]
        counts = chosen.shape[1] - np.count_nonzero(np.isnan(chosen), axis=1)
        for count in np.unique(counts).tolist():
            if count < 1:
                continue
            same = np.flatnonzero(counts == count)
            some = chosen if len(same) == len(counts) else chosen[same]
            if count >= TAIL_RANKS:
                low[same, group], both[same, group] = _tails(some, count, inner)
            else:
                low[same, group] = both[same, group] = _mad(some, count, inner)
    return low, both


def _mad(values: Float32, count: int, inner: bool) -> Float32:
    away = np.sort(np.abs(values), axis=1)
    low, high = (count - 1) // 2, count // 2
    if count <= _FEW:
        low = high = high if inner else low
    return np.asarray(np.float32(1.4826 / 2) * (away[:, low] + away[:, high]))


def _tails(values: Float32, count: int, inner: bool) -> tuple[Float32, Float32]:
    far = max(3, round(0.003 * count))
    # Less far on the slow side, where some ranks may be slow.
    other = max(3, round(0.04 * count))
    places = sorted({far - 1, count // 4, count // 2, count - other})
    ordered = np.partition(values, places, axis=1)
    middle = ordered[:, count // 2]
    low = (middle - ordered[:, far - 1]) / np.float32(normal_quantile((far - 0.4) / (count + 0.2)))
    if inner:
        low = np.maximum(low, (middle - ordered[:, count // 4]) / np.float32(0.6745))
    high = (ordered[:, count - other] - middle) / np.float32(normal_quantile((other - 0.4) / (count + 0.2)))
    return np.asarray(low, dtype=np.float32), np.asarray(np.maximum(low, high), dtype=np.float32)


class Spread:
    """The smoothed spread of one scale, per row and group.

    Args:
        scale: Windows of the pool.
        prior: Spread of a healthy group before any is known.
        least: No spread is believed to be below it.
        follows: Of many peers, it follows the noise of a whole job that grows at once.
    """

    def __init__(self, scale: int, prior: float, least: float, *, follows: bool = True) -> None:
        self._scale, self._prior, self._least, self._follows = scale, prior, least, follows
        self._square = np.zeros((0, 1))
        self._count = np.zeros((0, 1))
        self._now = np.zeros((0, 1))

    def see(self, now: Float32) -> None:
        """Take what a window shows, shape ``(rows, groups)``; NaN says nothing."""
        if now.shape != self._square.shape:
            self._resize(now.shape)
        known = ~np.isnan(now)
        square = np.where(known, now, 0.0).astype(np.float64) ** 2
        first = self._count == 0
        # Until the pool is full, its spread falls from window to window: the first ones say little of the later.
        full = np.maximum(self._count + 1.0 - self._scale, 2.0)
        weight = 1.0 / np.minimum(np.where(first, 1.0, full), _LONGEST)
        smoothed = self._square + weight * (square - self._square)
        begins = square if self._follows else np.minimum(square, 4.0 * self._prior**2)
        smoothed = np.where(first, begins, np.minimum(smoothed, np.maximum(self._square, self._least**2) * _RISES))
        self._now = np.where(known, square, 0.0)
        self._square = np.where(known, smoothed, self._square)
        self._count = self._count + known

    def _resize(self, shape: tuple[int, ...]) -> None:
        rows, groups = shape
        square, count = np.zeros((rows, groups)), np.zeros((rows, groups))
        if groups == self._square.shape[1]:
            square[: len(self._square)], count[: len(self._count)] = self._square, self._count
        self._square, self._count = square, count

    def deviation(self, sizes: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the deviation with its prior, and its degrees of freedom, shape ``(rows, groups)``."""
        blocks = np.clip(self._count / self._scale, 1.0, 1.0 + _LONGEST / self._scale)
        degrees = np.where(self._count > 0, _MAD_DEGREES * np.minimum(sizes, 1024) * blocks, 0.0)
        square = np.maximum(self.squares(sizes), self._least**2)
        moderated = (degrees * square + PRIOR_DEGREES * self._prior**2) / (degrees + PRIOR_DEGREES)
        return np.maximum(np.sqrt(moderated), self._least), degrees + PRIOR_DEGREES

    def squares(self, sizes: npt.NDArray[np.int64]) -> Floats:
        """Return the smoothed square; of many peers at least most of what the last window showed."""
        if not self._follows:
            return self._square
        return np.where(sizes >= TAIL_RANKS, np.maximum(self._square, 0.64 * self._now), self._square)

    def reset_row(self, row: int) -> None:
        """Forget a row."""
        if row < len(self._square):
            self._square[row], self._count[row] = 0.0, 0.0
