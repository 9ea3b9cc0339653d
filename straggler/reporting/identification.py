"""Identification of stragglers: which ranks of a report are slow, by the robust state or by a score threshold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypedDict

import attrs
import numpy as np
import numpy.typing as npt

from straggler.scoring.robust_scores import RobustScores
from straggler.scoring.scorer import GPU_ROW, Scores
from straggler.settings import Thresholds

__all__ = ["Identification", "StragglerId", "Stragglers"]


@attrs.frozen(order=True)
class StragglerId:
    """A slow rank and where it runs.

    Args:
        rank: Global rank.
        node: Node name.
    """

    rank: int
    node: str


class Stragglers(TypedDict):
    """The slow ranks, by what says so; of sections by name, without empty ones."""

    straggler_gpus_relative: set[StragglerId]
    straggler_gpus_individual: set[StragglerId]
    straggler_sections_relative: dict[str, set[StragglerId]]
    straggler_sections_individual: dict[str, set[StragglerId]]


@attrs.frozen
class Identification:
    """Finds the slow ranks among the scores of one report.

    With robust scores and the default threshold, those in state SLOW in something that matters; a threshold that was
    given replaces the ratio floor and what matters, and persistence stays. With minimum scores, every score strictly
    below the threshold.

    Args:
        scores: The scores of all ranks.
        nodes: Node name of each rank.
        ranks: The ranks that the report is about; others are left out.
        row_name: From a row's number to its name.
        slow_cells: From robust scores to the cells that are SLOW and matter, shape ``(rows, ranks)``.
    """

    scores: Scores
    nodes: Sequence[str]
    ranks: Collection[int]
    row_name: Callable[[int], str]
    slow_cells: Callable[[RobustScores], npt.NDArray[np.bool_]]

    def gpus(
        self, scores: npt.NDArray[np.float64] | None, window: RobustScores | None, threshold: float
    ) -> set[StragglerId]:
        """Return the ranks whose GPU is slow.

        Args:
            scores: GPU scores, shape ``(ranks,)``; None: not computed.
            window: The robust scores behind them; None with minimum scoring.
            threshold: Score below which a rank is slow.
        """
        if scores is None:
            return set()
        if window is None:
            return self._ids(scores < threshold) if self.scores.against_peers is None else set()
        rows = np.flatnonzero(window.names == np.uint64(GPU_ROW))
        return self._ids(self._slow(window, threshold)[rows[0]]) if len(rows) else set()

    def sections(
        self, scores: npt.NDArray[np.float64] | None, window: RobustScores | None, threshold: float
    ) -> dict[str, set[StragglerId]]:
        """Return the slow ranks of each section, in the order of the names, without empty sets.

        Args:
            scores: Section scores, shape ``(rows, ranks)``; None: not computed.
            window: The robust scores behind them; None with minimum scoring.
            threshold: Score below which a rank is slow.
        """
        if scores is None:
            return {}
        if window is None:
            if self.scores.against_peers is not None:
                return {}
            names, slow = self.scores.names, scores < threshold
        else:
            names, slow = window.names, self._slow(window, threshold)
        found = {
            self.row_name(number): ids
            for row, number in enumerate(names.tolist())
            if number != GPU_ROW and (ids := self._ids(slow[row]))
        }
        return dict(sorted(found.items()))

    def _ids(self, slow: npt.NDArray[np.bool_]) -> set[StragglerId]:
        mine = set(self.ranks) if len(self.ranks) < len(self.nodes) else None
        ranks = (int(rank) for rank in np.flatnonzero(slow))
        return {StragglerId(r, self.nodes[r]) for r in ranks if mine is None or r in mine}

    def _slow(self, window: RobustScores, threshold: float) -> npt.NDArray[np.bool_]:
        return self.slow_cells(window) if Thresholds.is_default(threshold) else window.beyond(threshold)
