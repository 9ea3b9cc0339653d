"""Rules to compare with, each written from its published or usual definition.

All rules see the rows that are a rank's own work (sections without a collective, arrival gaps) and never those that are
a wait, which most of the published rules would be misled by. A rank is named if any row names it. Where ranks tell
their group, each group is judged by itself. What a rank has not reported is NaN, and names nobody.

Each rule can be made stricter by a factor on what it compares with, and is played with all of :data:`FACTORS` at the
same time. As published, or as is usual, the factor is 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.fleet.jobs import Window
from benchmarks.fleet.noise import Floats

__all__ = ["FACTORS", "RULES", "Cusum", "Mad", "Minimum", "Pooled", "Rule", "ZScore"]

Mask = npt.NDArray[np.bool_]
Groups = npt.NDArray[np.int64]

_TO_MODIFIED_Z = 0.6745
_MODIFIED_Z_LIMIT = 3.5

FACTORS = np.append(1.1 ** np.arange(100), np.inf)
"""By which rules are made stricter: from 1 to 12,528, and infinity, with which no rule names anybody."""


class Rule(Protocol):
    """A rule that judges one job, window by window."""

    def see(self, window: Window) -> Mask:
        """Return which ranks it names after this window with each factor, shape ``(factors, ranks)``."""


def _values(window: Window, of: str) -> Floats:
    statistics = window.statistics
    return np.asarray((statistics.med if of == "med" else statistics.avg)[window.work])


def _by_group(values: Floats, groups: Groups, function: Callable[[Floats], Floats]) -> Floats:
    """Apply a function of ``(rows, ranks that have reported)`` to each group; NaN where nothing is known."""
    result = np.full_like(values, np.nan)
    reported = ~np.isnan(values).any(axis=0)
    for group in set(groups.tolist()):
        known = (groups == group) & reported
        if known.sum() >= 2:
            result[:, known] = function(values[:, known])
    return result


def _any_row(times: Floats) -> Mask:
    """Return who is over which factor, where values are given in times of what the rule compares with."""
    highest = np.nan_to_num(times, nan=0.0).max(axis=0, initial=0.0)
    return np.asarray(highest > FACTORS[:, None])


def modified_z(values: Floats) -> Floats:
    """Return 0.6745 x (value - median) / MAD of each row; 0 where the MAD is."""
    away = values - np.median(values, axis=1, keepdims=True)
    mad = np.median(np.abs(away), axis=1, keepdims=True)
    return np.where(mad > 0.0, _TO_MODIFIED_Z * away / np.where(mad > 0.0, mad, 1.0), 0.0)


def _mad(ratios: Floats) -> Floats:
    known = ~np.isnan(ratios).any(axis=0)
    return np.asarray(np.median(np.abs(ratios[:, known] - 1.0), axis=1, keepdims=True))


def _z(values: Floats) -> Floats:
    away = values - np.mean(values, axis=1, keepdims=True)
    deviation = np.std(values, axis=1, keepdims=True)
    return np.where(deviation > 0.0, away / np.where(deviation > 0.0, deviation, 1.0), 0.0)


def _ratio(values: Floats) -> Floats:
    return values / np.median(values, axis=1, keepdims=True)


class Minimum:
    """The relative scores of nvidia-resiliency-ext: the fastest rank's median over the rank's own, slow below 0.75.

    Source: nvidia-resiliency-ext, straggler detection, "Relative performance scores"; thresholds of
    ``Report.identify_stragglers``. It has no memory. Stricter: below 0.75 over the factor.
    """

    def see(self, window: Window) -> Mask:
        """Judge a window."""
        medians = window.statistics.med[window.work]
        scores = _by_group(medians, window.groups, lambda some: np.min(some, axis=1, keepdims=True) / some)
        return _any_row(0.75 / scores)


class ZScore:
    """The three-sigma rule: more than three standard deviations over the mean of the ranks' means in this window.

    Source: the Shewhart chart (Shewhart, Economic Control of Quality of Manufactured Product, 1931), one-sided.
    """

    def see(self, window: Window) -> Mask:
        """Judge a window."""
        return _any_row(_by_group(window.statistics.avg[window.work], window.groups, _z) / 3.0)


class Mad:
    """The modified z score over 3.5, of the ranks' means in this window.

    Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
    """

    def see(self, window: Window) -> Mask:
        """Judge a window."""
        return _any_row(_by_group(window.statistics.avg[window.work], window.groups, modified_z) / _MODIFIED_Z_LIMIT)


class Pooled:
    """Plain pooling: the mean of the last windows' means, as a ratio to the median rank, over a share.

    The moving average chart with a least effect, as dashboards have it: the average step time of the last minutes, and
    an alert when a rank is 5 % over the median. It needs three windows.

    Args:
        by_spread: The modified z score of the ratio must be over 3.5, too, as in :class:`Mad`.
        of: ``"avg"`` or ``"med"``: which statistic of a window is averaged.
        over: The share.
        windows: How many are averaged.
    """

    def __init__(self, *, by_spread: bool, of: str = "avg", over: float = 0.05, windows: int = 8) -> None:
        self._by_spread = by_spread
        self._of = of
        self._over = over
        self._last: deque[Floats] = deque(maxlen=windows)

    def see(self, window: Window) -> Mask:
        """Judge a window."""
        self._last.append(_values(window, self._of))
        stacked = np.stack(self._last)
        known = (~np.isnan(stacked)).sum(axis=0)
        pooled = np.where(known >= 3, np.nansum(stacked, axis=0) / np.maximum(known, 1), np.nan)
        found = (_by_group(pooled, window.groups, _ratio) - 1.0) / self._over
        if self._by_spread:
            found = np.minimum(found, _by_group(pooled, window.groups, modified_z) / _MODIFIED_Z_LIMIT)
        return _any_row(found)


class Cusum:
    """Page's CUSUM of each rank's ratio to the median rank of the window.

    Source: Page, Continuous Inspection Schemes, Biometrika 41, 1954, one-sided: S = max(0, S + x - target - k), slow
    while S > h. The target is 1 and the shift to find 7 %, so that k is half of that; h is five standard deviations of
    the ratios of healthy ranks (1.4826 MAD over the ranks, averaged over the windows) and at least the shift. S is kept
    below 2 h, so that a rank that has recovered is not named for ever.

    Args:
        of: ``"avg"`` or ``"med"``: which statistic of a window.
        shift: The shift to find.
    """

    def __init__(self, *, of: str = "avg", shift: float = 0.07) -> None:
        self._of = of
        self._shift = shift
        self._sum: Floats | None = None
        self._deviations: list[Floats] = []

    def see(self, window: Window) -> Mask:
        """Judge a window."""
        ratios = _by_group(_values(window, self._of), window.groups, _ratio)
        if self._sum is None:
            self._sum = np.zeros((len(FACTORS), *ratios.shape))
        self._deviations.append(1.4826 * _mad(ratios))
        limit = np.maximum(5.0 * np.mean(self._deviations, axis=0), self._shift) * FACTORS[:, None, None]
        step = np.nan_to_num(ratios - 1.0 - self._shift / 2.0, nan=0.0)
        self._sum = np.clip(self._sum + step, 0.0, 2.0 * limit)
        return np.asarray((self._sum > limit).any(axis=1))


RULES: dict[str, Callable[[], Rule]] = {
    "min<0.75": Minimum,
    "z>3": ZScore,
    "MAD 3.5": Mad,
    "pool8 both": lambda: Pooled(by_spread=True),
    "pool8 5%": lambda: Pooled(by_spread=False),
    "pool8 med": lambda: Pooled(by_spread=True, of="med"),
    "CUSUM": Cusum,
    "CUSUM med": lambda: Cusum(of="med"),
}
"""Makes each rule, by the word that the tables have for it."""
