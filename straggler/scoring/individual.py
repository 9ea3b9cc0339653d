"""Individual drift: each rank against its own past, by the change test of robust scoring."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust import RobustScorer
from straggler.settings import RobustSettings

__all__ = ["IndividualScorer"]

Float32 = npt.NDArray[np.float32]


class IndividualScorer(RobustScorer):
    """Scores each rank against its own first window, without peers.

    ``x`` is own median / own first median - 1; there is no level test. Where most of a row's ranks slow down
    together, the work has changed, not the ranks: their usual is taken anew.
    """

    _has_level = False
    _longer = (8,)

    def __init__(self, ranks: int, settings: RobustSettings | None = None) -> None:
        super().__init__(ranks, settings)
        self._first: Float32 = np.zeros((0, ranks), dtype=np.float32)

    def _reference(self, peers: PeerGroups, medians: Float32) -> Float32:
        new = len(medians) - len(self._first)
        if new:
            self._first = np.concatenate([self._first, np.full((new, self.ranks), np.nan, dtype=np.float32)])
        np.copyto(self._first, medians, where=np.isnan(self._first))
        return self._first

    def usual_seconds(self) -> Float32:
        """Return what each rank usually takes, shape ``(rows, ranks)``; NaN before its first window."""
        return self._first * np.exp(self._tracks[0].pools.usual())

    def reset_row(self, row: int) -> None:
        """Learn the usual of this row anew, for all ranks."""
        self._history.reset_row(row)
        self._tracks[0].reset_row(row)
        self._first[row] = np.nan
