"""What is remembered of one statistic of every row and rank: the last windows, their sums, and the past before them.

Kept are the logarithms ``y`` of each rank's ratio to its reference, in units of 2^-13, so that every sum is exact in
float32 and nothing accumulates. Over each of a few scales (numbers of windows) the sum of the last ones is kept up to
date by adding the newest and taking out the oldest (a moving average chart, Roberts 1959). The past of a rank is the
sum of all its windows; without the pool it is what the rank usually takes, so that a slowness of the length of the
pool never is a part of what it is compared with.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.pacing import pace

__all__ = ["Pools", "for_rows"]

Float32 = npt.NDArray[np.float32]
Cells = npt.NDArray[np.intp]

_UNIT = np.float32(2.0**-13)
_LARGEST = 2.0
"""Logarithm that a window counts for at most; int16 holds twice that in these units."""
_LONGEST_PAST = 512.0
"""Windows after which the past forgets: so long that a slow drift cannot hide in it."""


class Pools:
    """Sums of ``y`` over several scales, arrays of shape ``(rows, ranks)``.

    Args:
        ranks: Ranks in the job.
        scales: Windows of each pool, ascending.

    Attributes:
        seen: Windows since the cell's first, shape ``(rows, ranks)``.
        past: Sum of ``y`` over all windows that are learned from.
        learnt: How many these are.
    """

    def __init__(self, ranks: int, scales: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.scales = scales
        self._ring = np.zeros((scales[-1], 0, ranks), dtype=np.int16)
        self._sums = [np.zeros((0, ranks), dtype=np.float32) for _ in scales]
        self._place = 0
        self.seen = np.zeros((0, ranks), dtype=np.float32)
        self.past = np.zeros((0, ranks), dtype=np.float32)
        self.learnt = np.zeros((0, ranks), dtype=np.float32)
        self._least_seen = 0

    def grow(self, rows: int) -> None:
        """Make room for so many rows in all."""
        more = rows - self.seen.shape[0]
        if more <= 0:
            return
        shape = (more, self.ranks)
        self._ring = np.concatenate([self._ring, np.zeros((self.scales[-1], *shape), dtype=np.int16)], axis=1)
        self._sums = [np.concatenate([s, np.zeros(shape, dtype=np.float32)]) for s in self._sums]
        for name in ("seen", "past", "learnt"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(shape, dtype=np.float32)]))

    def add(self, y: Float32, missing: npt.NDArray[np.bool_] | None, frozen: Cells, most: Float32) -> Float32:
        """Take a window; return it as it is kept.

        Args:
            y: Logarithm of the ratio to the reference; NaN where missing. It is overwritten.
            missing: Where; None: nowhere.
            frozen: Flat indices of cells that nothing is learned from.
            most: What a window counts for at most, broadcastable.
        """
        if missing is not None:
            # What a rank would have shown is what it has shown on average: neither better nor worse than it was.
            gaps = np.flatnonzero(missing)
            y.flat[gaps] = self.average_of(len(self.scales) - 1, gaps)
        np.clip(y, -most, most, out=y)
        y *= np.float32(1.0) / _UNIT
        np.rint(y, out=y)
        pace()
        for place, scale in enumerate(self.scales):
            self._sums[place] += y
            self._sums[place] -= self._ring[(self._place - scale) % self.scales[-1]]
        self._ring[self._place % self.scales[-1]] = y
        self._place += 1
        pace()
        count: Float32 | np.float32 = np.float32(1.0)
        if missing is not None:
            count = (~missing | (self.seen > 0)).astype(np.float32)
        self.seen += count
        self._least_seen = int(self.seen.min()) if self.seen.size else 0
        kept_past, kept_learnt = self.past.flat[frozen], self.learnt.flat[frozen]
        self.past += y
        self.learnt += count
        self.past.flat[frozen], self.learnt.flat[frozen] = kept_past, kept_learnt
        if self.learnt.size and float(self.learnt.max()) > _LONGEST_PAST:
            long = self.learnt > _LONGEST_PAST
            share = np.where(
                long, np.float32(1.0) - np.float32(1.0) / np.maximum(self.learnt, np.float32(1.0)), np.float32(1.0)
            )
            self.past *= share
            self.learnt *= share
        return np.asarray(y * _UNIT)

    def _count(self, scale: int) -> Float32 | np.float32:
        """Return the windows in each cell's pool."""
        if self._least_seen >= scale:
            return np.float32(scale)
        return np.clip(self.seen, np.float32(1.0), np.float32(scale))

    def average(self, place: int) -> Float32:
        """Return the mean of the last windows at one scale."""
        pace()
        return np.asarray(self._sums[place] * (_UNIT / self._count(self.scales[place])))

    def average_of(self, place: int, cells: Cells) -> Float32:
        """Return the same of some cells."""
        count = np.clip(self.seen.flat[cells], 1.0, float(self.scales[place]))
        return np.asarray(self._sums[place].flat[cells] * _UNIT / count, dtype=np.float32)

    def before(self, place: int, at_least: int) -> Float32:
        """Return the mean before the pool; NaN where it would rest on too few windows."""
        scale = np.float32(self.scales[place])
        rest = self.learnt - scale
        usual = self.past - self._sums[place]
        pace()
        if rest.size and float(rest.min()) >= at_least:
            usual *= _UNIT / rest
            return usual
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(rest >= at_least, usual * _UNIT / rest, np.float32("nan"))

    def usual_of(self, cells: Cells, at_least: int) -> Float32:
        """Return what some cells usually take, by the past that was kept apart for them; NaN while unknown."""
        learnt = self.learnt.flat[cells]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(learnt >= at_least, self.past.flat[cells] * _UNIT / learnt, np.float32("nan"))

    def usual(self) -> Float32:
        """Return the mean over the past, 0 where there is none."""
        return np.asarray(self.past * (_UNIT / np.maximum(self.learnt, np.float32(1.0))))

    def set_apart(self, scale: int, cells: Cells) -> None:
        """Take the pool of at least so many windows out of the past of these cells."""
        place = next((p for p, windows in enumerate(self.scales) if windows >= scale), len(self.scales) - 1)
        count = np.minimum(self.seen.flat[cells], np.float32(self.scales[place]))
        enough = self.learnt.flat[cells] >= count
        self.past.flat[cells] -= np.where(enough, self._sums[place].flat[cells], 0.0)
        self.learnt.flat[cells] -= np.where(enough, count, 0.0)

    def take_back(self, cells: Cells) -> None:
        """Put the longest pool into the past of these cells, which it was kept apart from."""
        self.past.flat[cells] += self._sums[-1].flat[cells]
        self.learnt.flat[cells] += np.float32(self.scales[-1])

    def reset_row(self, row: int) -> None:
        """Forget what was learned of a row."""
        self._ring[:, row] = 0
        for memory in (*self._sums, self.seen, self.past, self.learnt):
            memory[row] = 0
        self._least_seen = 0


def for_rows(values: Float32, rows: int, fill: float) -> Float32:
    """Return values of so many rows, or of one row for all: those that are new have ``fill``."""
    known = values.shape[0]
    if known in (1, rows):
        return values
    return np.concatenate([values, np.full((rows - known, values.shape[1]), fill, dtype=np.float32)])
