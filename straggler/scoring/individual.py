"""Individual drift: each rank against its own past, by the change test of robust scoring."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.pacing import pace
from straggler.scoring.past import Past
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust import RobustScorer
from straggler.settings import RobustSettings

__all__ = ["IndividualScorer"]

_MOST_KEPT = np.float32(24.0)
"""Windows that the past of an earlier generation counts for at most."""

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
        self._kept: dict[int, tuple[Float32, Float32]] = {}

    def _reference(self, peers: PeerGroups, medians: Float32) -> Float32:
        new = len(medians) - len(self._first)
        if new:
            known = len(self._first)
            self._first = np.concatenate([self._first, np.full((new, self.ranks), np.nan, dtype=np.float32)])
            self._recall(known)
        np.copyto(self._first, medians, where=np.isnan(self._first))
        return self._first

    def usual_seconds(self) -> Float32:
        """Return what each rank usually takes, shape ``(rows, ranks)``; NaN before its first window."""
        pace()
        usual = self._first * np.exp(self._tracks[0].pools.usual())
        pace()
        return usual

    def reset_row(self, row: int) -> None:
        """Learn the usual of this row anew, for all ranks."""
        self._history.reset_row(row)
        self._tracks[0].reset_row(row)
        self._first[row] = np.nan

    def past(self) -> dict[str, Past]:
        """Return what each rank usually takes; NaN where it rests on no window."""
        pools = self._tracks[0].pools
        rows = min(len(self._first), len(pools.learnt))
        seconds = np.where(pools.learnt[:rows] > 0, self.usual_seconds()[:rows], np.float32("nan")).astype(np.float32)
        kept = self._kept  # of rows that have not come again yet
        return {
            "usual": Past(
                np.concatenate([self._history.names[:rows], np.array(list(kept), dtype=np.uint64)]),
                np.concatenate([seconds, *(of[None] for of, _ in kept.values())]),
                np.concatenate([pools.learnt[:rows], *(learnt[None] for _, learnt in kept.values())]),
            )
        }

    def take_past(self, past: dict[str, Past]) -> None:
        """Begin with what each rank took usually; it counts for at most some windows, so that it is soon outweighed."""
        usual = past["usual"]
        learnt = np.where(np.isnan(usual.seconds), np.float32(0.0), np.minimum(usual.learnt, _MOST_KEPT))
        self._kept = dict(zip(usual.names.tolist(), zip(usual.seconds, learnt, strict=True), strict=True))

    def _recall(self, rows: int) -> None:
        """Begin the rows after the first so many with what is kept of them."""
        pools = self._tracks[0].pools
        pools.grow(len(self._first))
        for row, name in enumerate(self._history.names[rows:].tolist(), rows):
            if name in self._kept:
                self._first[row], pools.learnt[row] = self._kept.pop(name)
