"""Individual drift: each rank against its own past, by the change test of robust scoring."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust import RobustScorer

__all__ = ["OwnPastScorer"]

Float32 = npt.NDArray[np.float32]


class OwnPastScorer(RobustScorer):
    """Individual drift: each rank against its own first window, no peers needed and none accused.

    ``x`` is own median / own first median - 1; there is no level test. Where most of a row's ranks slow down
    together, the work has changed, not the ranks: their usual is taken anew.
    """

    _first: Float32

    def _grow(self, rows: int) -> None:
        first: Float32 = np.full((rows, self.ranks), np.nan, dtype=np.float32)
        self._first = np.concatenate([self._first, first]) if hasattr(self, "_first") else first
        super()._grow(rows)

    def _reference(self, peers: PeerGroups, medians: Float32) -> Float32:
        np.copyto(self._first, medians, where=np.isnan(self._first))
        return self._first

    def _bar(self, peers: PeerGroups, pooled: Float32) -> tuple[Float32, Float32]:
        nothing = np.full((pooled.shape[0], 1), np.inf, dtype=np.float32)
        return nothing, nothing

    def usual_seconds(self) -> Float32:
        """What each rank usually takes, shape ``(rows, ranks)``; NaN before its first window."""
        return self._first * (np.float32(1.0) + self._usual)

    def start_anew(self, row: int) -> None:
        """Take this row's usual anew, for all ranks."""
        for memory in (self._usual, self._learnt, self._cusum, self._bits, self._slow, self._calm):
            memory[row] = 0
        self._first[row] = np.nan
