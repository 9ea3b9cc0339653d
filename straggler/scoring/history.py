"""What robust scoring remembers of every row and rank from window to window."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["RowHistory"]

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]


class RowHistory:
    """Arrays of shape ``(rows, ranks)``, section-major; rows are added as new names come.

    Args:
        ranks: Ranks in the job.

    Attributes:
        names: Name hash of each row.
        usual: What each cell's ``x`` usually is.
        learnt: Windows that ``usual`` rests on.
        cusum: The change test's sum.
        noise: Robust standard deviation of the drift, shape ``(rows, 1)``, or ``(rows, ranks)`` with peer groups.
        bits: One bit for each of the last windows, the latest lowest: whether it was near or over the bar.
        slow: Which cells are SLOW.
        calm: Windows in a row under half the bar, while SLOW.
        since_level: Window in which the level test first saw the cell.
        since_change: Window in which its CUSUM left zero.
    """

    names: npt.NDArray[np.uint64]
    usual: Float32
    learnt: Float32
    cusum: Float32
    noise: Float32
    bits: Bytes
    slow: npt.NDArray[np.bool_]
    calm: Bytes
    since_level: Int32
    since_change: Int32

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._has_groups = False
        self.names = np.zeros(0, dtype=np.uint64)
        self._grow(0)

    def _grow(self, rows: int) -> None:
        """Make room for rows that were never seen before."""
        shape = (rows, self.ranks)

        def more(name: str, kind: Any, shape: tuple[int, int]) -> None:
            new: npt.NDArray[Any] = np.zeros(shape, dtype=kind)
            old = getattr(self, name, None)
            setattr(self, name, new if old is None else np.concatenate([old, new]))

        for name in ("usual", "learnt", "cusum"):
            more(name, np.float32, shape)
        more("slow", np.bool_, shape)
        for name in ("bits", "calm"):
            more(name, np.uint8, shape)
        for name in ("since_level", "since_change"):
            more(name, np.int32, shape)
        more("noise", np.float32, shape if self._has_groups else (rows, 1))

    def set_groups(self, has_groups: bool) -> None:
        """Measure the noise for each peer group or for all ranks as one; a change of this begins it anew."""
        if has_groups != self._has_groups:
            self._has_groups = has_groups
            self.noise = np.zeros((len(self.names), self.ranks if has_groups else 1), dtype=np.float32)

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
        lowest, highest = 1.0, 1.0
        if medians.size:
            lowest, highest = float(np.fmin.reduce(medians, axis=None)), float(np.fmax.reduce(medians, axis=None))
        if lowest <= 0.0 or highest == float("inf"):
            raise ValueError(f"medians reach from {lowest} to {highest} s; a duration is above 0 and finite")
        if num is not None:
            few = num < min_samples
            if few.any():
                medians[few] = np.nan
        if np.array_equal(names, self.names):
            return medians
        new = np.setdiff1d(names, self.names)
        if len(new):
            self.names = np.concatenate([self.names, new])
            self._grow(len(new))
        aligned = np.full((len(self.names), self.ranks), np.nan, dtype=np.float32)
        place = {name: row for row, name in enumerate(self.names.tolist())}
        aligned[[place[name] for name in names.tolist()]] = medians
        return aligned

    def reset_row(self, row: int) -> None:
        """Forget what was learned of a row, and every suspicion of its ranks."""
        for memory in (self.usual, self.learnt, self.cusum, self.bits, self.slow, self.calm):
            memory[row] = 0

    def release(self, cells: npt.NDArray[np.intp]) -> None:
        """End SLOW for these cells (flat indices) and forget what led to it."""
        for memory in (self.slow, self.calm, self.bits, self.cusum):
            memory.flat[cells] = 0
