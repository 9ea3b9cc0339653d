"""Identification of stragglers: which ranks of a report are slow, by the robust state or by a score threshold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from typing import TypedDict

import attrs
import numpy as np
import numpy.typing as npt

from straggler.scoring.robust_settings import SLOW, Window
from straggler.scoring.scorer import GPU_ROW, Outcome

__all__ = ["DEFAULT_THRESHOLD", "Identification", "StragglerId", "Stragglers", "check_threshold"]


class _Default(float):
    """A threshold of 0.75 that nobody asked for, told apart by its type from one that was given."""

    def __repr__(self) -> str:
        return f"{float(self):g}"


DEFAULT_THRESHOLD = _Default(0.75)


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


def check_threshold(name: str, value: float) -> float:
    """Check a score threshold and return it.

    Args:
        name: The parameter's name, for the message.
        value: The threshold.

    Raises:
        ValueError: It is not a number from 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value!r}; a score is between 0 (slowest) and 1, for example 0.75")
    return value


@attrs.frozen
class Identification:
    """Finds the slow ranks among the scores of one report.

    With robust scores and :data:`DEFAULT_THRESHOLD`, those in state SLOW; a threshold that was given replaces the
    ratio floor, and persistence stays. With minimum scores, every score strictly below the threshold.

    Args:
        outcome: The scores of all ranks.
        nodes: Node name of each rank.
        ranks: The ranks that the report is about; others are left out.
        row_name: From a row's number to its name.
    """

    outcome: Outcome
    nodes: Sequence[str]
    ranks: Collection[int]
    row_name: Callable[[int], str]

    def gpus(self, scores: npt.NDArray[np.float64] | None, window: Window | None, threshold: float) -> set[StragglerId]:
        """Return the ranks whose GPU is slow.

        Args:
            scores: GPU scores, shape ``(ranks,)``; None: not computed.
            window: The robust scores behind them; None with minimum scoring.
            threshold: Score below which a rank is slow.
        """
        if scores is None:
            return set()
        if window is None:
            return self._ids(scores < threshold) if self.outcome.window is None else set()
        rows = np.flatnonzero(window.names == np.uint64(GPU_ROW))
        return self._ids(_slow(window, threshold)[rows[0]]) if len(rows) else set()

    def sections(
        self, scores: npt.NDArray[np.float64] | None, window: Window | None, threshold: float
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
            if self.outcome.window is not None:
                return {}
            names, slow = self.outcome.names, scores < threshold
        else:
            names, slow = window.names, _slow(window, threshold)
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


def _slow(window: Window, threshold: float) -> npt.NDArray[np.bool_]:
    if isinstance(threshold, _Default):
        return np.asarray(window.state == SLOW)
    return window.beyond(threshold)
