"""What the noise of one rank in one row explains, apart from how much the ranks differ.

Few ranks show little of how much healthy ones differ by chance: of two or four whose steps take other times each, as
sequences of random length do, one was named several times a day. What they do show is their own noise. It is known in
two ways:

**Within a window**, by the standard error of its median or mean, which each rank sends (:mod:`straggler.measurement.
standard_errors`). It is known at once, and too large where the ranks share what is random, such as a length.

**Between windows**, by half of the mean square of the difference of two windows in a row (von Neumann 1941), which a
rank that is slow for long does not raise: it differs from the others, and not from itself. The differences are those
of a rank to the mean of its group, since the reference of a few is one of them. It outweighs the former with time.

A difference to the reference has the noise of both. The mean of ``n`` windows has a standard deviation of
``sqrt(variance / n)``, and a rank is slow only where it is over a quantile of Student's t times that, too. From
``TAIL_RANKS`` peers on their spread shows all of this, and nothing is kept here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.pacing import pace, paced
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust_scores import LEAST_NOISE
from straggler.scoring.spreads import TAIL_RANKS, student_quantile

__all__ = ["CellNoise"]

Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Cells = npt.NDArray[np.intp]

_LONGEST = 32.0
"""Windows that the noise rests on at most."""
_PRIOR_WINDOWS = 4.0
"""So many windows the noise within windows counts for, or where it is not known that of the other ranks."""
_PRIOR_DEGREES = 8.0
_OUTLIER = np.float32(4.0)
"""Times the variance so far that one difference counts for at most: a step to another level is no noise."""
_LEAST = np.float32(LEAST_NOISE**2)
_FEW = 4
_OF_A_MEDIAN = 1.57
"""The variance of a median by that of a mean, for normal variables: pi / 2."""


class CellNoise:
    """The noise of every row and rank, in logarithms of the ratio to the reference.

    Args:
        ranks: Ranks in the job.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._is_measured = False
        self._has_few = np.zeros(ranks, dtype=bool)
        self._last = np.zeros((0, ranks), dtype=np.float32)
        self._within = self._last.copy()
        self._prior = self._last.copy()
        self._between = self._last.copy()
        self._windows = self._last.copy()
        self._differences = self._last.copy()
        self._reference = self._last.copy()

    def see(self, y: Float32, missing: npt.NDArray[np.bool_] | None, errors: Float32 | None, peers: PeerGroups) -> None:
        """Take a window.

        Args:
            y: Logarithm of the ratio to the reference, shape ``(rows, ranks)``; what stands where a rank has nothing is
                not looked at.
            missing: Where a rank has nothing; None: nowhere.
            errors: Standard error of each rank's own logarithm, NaN or None where not known.
            peers: Who is compared with whom.
        """
        self._grow(y.shape[0])
        sizes = peers.sizes().astype(np.float32)
        self._has_few = np.broadcast_to(sizes < TAIL_RANKS, y.shape[1:])
        if not self._has_few.any():
            return
        here = np.ones(y.shape, dtype=bool) if missing is None else ~missing
        means = _group_means(np.where(here, y, np.float32(np.nan)), peers)
        apart = y - np.where(sizes > 1, means, np.float32(0.0))  # one alone is compared with its own past
        pace()
        known = here & ~np.isnan(self._last)
        half = np.square(apart - self._last, out=np.zeros_like(y), where=known)
        half *= np.float32(0.5) * sizes / np.maximum(sizes - np.float32(1.0), np.float32(1.0))
        pace()
        usual = np.maximum(np.maximum(self._between, self._within), _LEAST)
        np.minimum(half, _OUTLIER * usual, out=half, where=self._differences > 2.0)
        self._differences += known
        weight = known / np.clip(self._differences, np.float32(1.0), np.float32(_LONGEST))
        self._between += (half - self._between) * weight
        pace()
        self._is_measured = errors is not None
        if errors is not None:
            measured = here & ~np.isnan(errors)
            self._windows += measured
            weight = measured / np.clip(self._windows, np.float32(1.0), np.float32(_LONGEST))
            self._within += (np.square(np.where(measured, errors, np.float32(0.0))) - self._within) * weight
        pace()
        self._last = np.where(here, apart, self._last)
        self._prior = self._within if self._is_measured else np.maximum(self._within, self._usual(peers))
        self._reference = self._of_reference(peers)

    def bars(
        self, cells: Cells, z: float | Floats, now: npt.NDArray[np.floating], before: Float32 | None = None
    ) -> Float32:
        """Return what noise alone explains of the mean of a cell's last windows.

        Args:
            cells: Flat indices.
            z: Normal quantile of the chance that it explains more.
            now: Windows of the mean, broadcastable.
            before: Windows of the mean that it is compared with, where that is the cell's own past; None: the peers.
        """
        square = self._own().flat[cells] + self._reference.flat[cells]
        square *= self.is_known(cells)
        shares = 1.0 / np.maximum(now, 1.0)
        if before is not None:
            shares = shares + 1.0 / np.maximum(before, 1.0)
        degrees = np.minimum(self._differences.flat[cells], _LONGEST).astype(np.float64) + _PRIOR_DEGREES
        return np.asarray(student_quantile(z, degrees) * np.sqrt(square * shares), dtype=np.float32)

    def is_known(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Return whether the noise of each cell is known here: it has few peers."""
        return np.asarray(self._has_few[cells % self._ranks])

    def reset_row(self, row: int) -> None:
        """Forget a row."""
        if row < len(self._last):
            self._last[row] = np.nan
            memories = (self._within, self._prior, self._between, self._windows, self._differences, self._reference)
            for memory in memories:
                memory[row] = 0.0

    def _own(self) -> Float32:
        """Return the variance of each rank's own part in one window."""
        count = np.minimum(self._differences, np.float32(_LONGEST))
        prior = np.float32(_PRIOR_WINDOWS)
        pace()
        both = (prior * self._prior + count * self._between) / (prior + count)
        return np.asarray(both, dtype=np.float32)

    def _usual(self, peers: PeerGroups) -> Float32:
        """Return the middle of the noise between windows, which stands for that of a rank while it has few windows."""
        known = np.where(self._differences > 0, self._between, np.float32(np.nan))
        return np.asarray(np.nan_to_num(peers.middle(known, upper=True)), dtype=np.float32)

    def _of_reference(self, peers: PeerGroups) -> Float32:
        """Return the variance of the reference: of a few the noise of one of them, of many that of their median."""
        sizes = peers.sizes().astype(np.float32)
        share = np.where(sizes <= _FEW, np.float32(1.0), np.float32(_OF_A_MEDIAN) / sizes)
        return np.broadcast_to(share * peers.middle(self._own(), upper=True), self._within.shape).astype(np.float32)

    def _grow(self, rows: int) -> None:
        more = rows - len(self._last)
        if more <= 0:
            return
        nothing = np.zeros((more, self._ranks), dtype=np.float32)
        self._last = np.concatenate([self._last, np.full_like(nothing, np.nan)])
        for name in ("_within", "_prior", "_between", "_windows", "_differences", "_reference"):
            setattr(self, name, np.concatenate([getattr(self, name), nothing]))


def _group_means(values: Float32, peers: PeerGroups) -> Float32:
    """Return the mean of each rank's group; NaN is left out. Shape ``(rows, 1)`` with one group, else of ``values``."""
    known = ~np.isnan(values)
    if not len(values):
        return values
    filled = np.where(known, values, np.float32(0.0))
    if peers.count == 1:
        return np.asarray(
            filled.sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1), np.float32
        )
    sums = np.stack([np.bincount(peers.member, row, peers.count) for row in paced(filled)])
    counts = np.stack([np.bincount(peers.member, row, peers.count) for row in paced(known)])
    return np.asarray(peers.spread_out((sums / np.maximum(counts, 1)).astype(np.float32)), np.float32)
