"""What robust scoring remembers of every row and rank from window to window."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from straggler.pacing import pace
from straggler.settings import RobustSettings

__all__ = ["RowHistory", "average_of_last", "began", "count_bits", "lasts"]

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]

_MAJORITY = 0.6
_POPCOUNT = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint8)


class RowHistory:
    """Arrays of shape ``(rows, ranks)``, section-major; rows are added as new names come.

    Args:
        ranks: Ranks in the job.

    Attributes:
        names: Name hash of each row.
        bits: For each statistic, one bit for each of the last windows, the latest lowest: whether it was near a bar.
        slow: Which cells are SLOW.
        test: What made a cell SLOW: statistic, kind of test and scale in one number.
        bar: The bar that it was over then.
        strength: Largest multiple of it since.
        calm: Windows in a row under half of that, while SLOW.
        held: Windows for which a cell's past is kept apart after it was SLOW.
        since: Window in which a SLOW cell began to be slow.
    """

    names: npt.NDArray[np.uint64]
    bits: list[npt.NDArray[np.uint32]]
    slow: npt.NDArray[np.bool_]
    test: Bytes
    bar: Float32
    strength: Float32
    calm: Bytes
    held: Bytes
    since: Int32

    def __init__(self, ranks: int, statistics: int) -> None:
        self.ranks = ranks
        self.names = np.zeros(0, dtype=np.uint64)
        self.bits = [np.zeros((0, ranks), dtype=np.uint32) for _ in range(statistics)]
        self._grow(0)

    def _grow(self, rows: int) -> None:
        """Make room for rows that were never seen before."""
        shape = (rows, self.ranks)

        def more(name: str, kind: Any) -> None:
            new: npt.NDArray[Any] = np.zeros(shape, dtype=kind)
            old = getattr(self, name, None)
            setattr(self, name, new if old is None else np.concatenate([old, new]))

        self.bits = [np.concatenate([bits, np.zeros(shape, dtype=np.uint32)]) for bits in self.bits]
        for name, kind in (("bar", np.float32), ("strength", np.float32), ("slow", np.bool_), ("since", np.int32)):
            more(name, kind)
        for name in ("test", "calm", "held"):
            more(name, np.uint8)

    def align(
        self,
        names: npt.NDArray[np.uint64],
        medians: npt.NDArray[np.floating],
        num: npt.NDArray[np.floating] | None,
        min_samples: int,
    ) -> Float32:
        """Return the medians as float32 in the row order of the history; new rows are appended to it.

        Args:
            names: Name hash of each row of ``medians``.
            medians: Median seconds, shape ``(rows, ranks)``, NaN where a rank has none.
            num: Samples behind each median; None: enough.
            min_samples: Samples below which a median becomes NaN.

        Raises:
            ValueError: The shape is not that, or a median is zero, negative or infinite.
        """
        if medians.shape != (len(names), self.ranks):
            raise ValueError(f"medians have shape {medians.shape}, expected {(len(names), self.ranks)}")
        medians = np.array(medians, dtype=np.float32)
        pace()
        lowest, highest = 1.0, 1.0
        if medians.size:
            lowest, highest = float(np.fmin.reduce(medians, axis=None)), float(np.fmax.reduce(medians, axis=None))
        if lowest <= 0.0 or highest == float("inf"):
            raise ValueError(f"medians reach from {lowest} to {highest} s; a duration is above 0 and finite")
        if num is not None:
            few = num < min_samples
            if few.any():
                medians[few] = np.nan
        pace()
        if np.array_equal(names, self.names):
            return medians
        new = np.setdiff1d(names, self.names)
        if len(new):
            self.names = np.concatenate([self.names, new])
            self._grow(len(new))
        return self.place(names, medians)

    def place(self, names: npt.NDArray[np.uint64], values: npt.NDArray[np.floating]) -> Float32:
        """Return values of rows that have come before in the row order of the history; NaN in the other rows.

        Args:
            names: Name hash of each row of ``values``.
            values: Shape ``(rows, ranks)``.
        """
        if np.array_equal(names, self.names):
            return np.asarray(values, dtype=np.float32)
        aligned = np.full((len(self.names), self.ranks), np.nan, dtype=np.float32)
        place = {name: row for row, name in enumerate(self.names.tolist())}
        aligned[[place[name] for name in names.tolist()]] = values
        return aligned

    def reset_row(self, row: int) -> None:
        """Forget what was learned of a row, and every suspicion of its ranks."""
        for memory in (*self.bits, self.slow, self.calm, self.held, self.strength):
            memory[row] = 0

    def release(self, cells: npt.NDArray[np.intp], windows: int) -> None:
        """End SLOW for these cells (flat indices) and forget what led to it; keep their past apart for a while."""
        for memory in (self.slow, self.calm, self.strength, *self.bits):
            memory.flat[cells] = 0
        self.held.flat[cells] = windows


def count_bits(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Return how many bits are set in each number."""
    return np.asarray(_POPCOUNT[bits.astype("<u4")[:, None].view(np.uint8)].sum(axis=1, dtype=np.int64))


def lasts(bits: npt.NDArray[np.uint32], scale: int, seen: Float32, settings: RobustSettings) -> npt.NDArray[np.bool_]:
    """Return which cells were near a bar in most windows of a pool, and in ``k`` of the last ``m``.

    Args:
        bits: As in :class:`RowHistory`, of some cells.
        scale: Windows of the pool.
        seen: Windows since the first of each cell.
        settings: Have ``k`` and ``m``.
    """
    recent = count_bits(bits & np.uint32((1 << settings.m) - 1)) >= settings.k
    if scale <= settings.m:
        return recent
    longer = count_bits(bits & np.uint32((1 << scale) - 1))
    return np.asarray(recent & (longer >= np.ceil(_MAJORITY * np.minimum(seen, scale))))


def began(bits: npt.NDArray[np.uint32], windows: int) -> npt.NDArray[np.int64]:
    """Return how many windows ago each cell began to be near its bar.

    That is where the number of windows near the bar, less that of the others, is largest when counted back from now.
    """
    places = np.arange(min(windows, 31))
    score = np.cumsum(2 * ((bits[:, None] >> places.astype(np.uint32)) & np.uint32(1)).astype(np.int64) - 1, axis=1)
    return np.asarray(np.argmax(score, axis=1))


def average_of_last(windows: list[Float32], some_missing: bool) -> Float32:
    """Return the average of those of the windows that have a value, where the last one has one.

    Args:
        windows: The last ones, oldest first; such of fewer rows are left out.
        some_missing: The last window has gaps.
    """
    x = windows[-1]
    last = [window for window in windows if window.shape == x.shape]
    pooled = last[0] + last[1] if len(last) > 1 else np.array(last[0])
    for window in last[2:]:
        pooled += window
    pooled *= np.float32(1.0 / len(last))
    holes = np.flatnonzero(np.isnan(pooled) & ~np.isnan(x)) if len(last) > 1 else np.zeros(0, dtype=np.intp)
    if len(holes):
        pooled.flat[holes] = np.nanmean([window.flat[holes] for window in last], axis=0)
    if some_missing:
        pooled[np.isnan(x)] = np.nan
    return pooled
