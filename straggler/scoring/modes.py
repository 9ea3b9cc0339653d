"""Undeclared peer groups: ranks that fall into groups by nature, such as pipeline stages, and not for a fault.

The ranks of a row are sorted. A gap between neighbours is between two modes where it is much larger than the spread
inside the modes on both sides, and each side holds a tenth of the ranks or more. Ranks that a fault struck lie
anywhere; stages and the like are regular in the number of the rank: a few blocks of neighbours (few runs, in the
sense of Wald and Wolfowitz 1940), or every n-th rank. Only such modes are said to be groups.

Where as many ranks are slow from the beginning as not, there is no majority, and so nobody is slow: the one half may do
more work than the other, as of two stages. The gap is also larger than what the noise of the ranks explains, since
the spread of two ranks is small by chance.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["UndeclaredGroups", "is_of_a_node", "slow_groups"]

Bools = npt.NDArray[np.bool_]

_LEAST_SHARE = 0.1
_LEAST_RANKS = 2
_LEAST_GAP = 0.05
_GAP_SPREADS = 6.0
_MOST_PERIOD = 64
_ALIKE = 0.98
_WHOLE_MODE = 0.1
_FEWEST_RANKS = 4
_WIDE = 0.04
_LOOK_AGAIN, _FIRST_LOOK = 8, 2


class UndeclaredGroups:
    """The rows whose ranks fall into groups.

    A row is looked at when a tenth of its ranks is slow from the beginning, and now and then while its ranks differ
    much.

    Attributes:
        splits: Of each such row, who is on the slow side of each split, see :func:`slow_groups`.

    Args:
        ranks: Ranks in the job; of a few nothing is said.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.splits: dict[int, list[Bools]] = {}
        self._told: dict[int, tuple[int, int, float]] = {}

    def clear(self) -> None:
        """Forget all."""
        self.splits.clear()
        self._told.clear()

    def told(self) -> tuple[tuple[int, int, float], ...]:
        """Return the name of each row, how many groups it has, and how much longer the slowest takes."""
        return tuple(self._told[row] for row in sorted(self._told))

    def look(
        self,
        window: int,
        names: npt.NDArray[np.uint64],
        level: Callable[[int], tuple[npt.NDArray[np.float32], float]],
        spread: npt.NDArray[np.float64],
        slow: Bools,
    ) -> None:
        """Look at the rows that may have groups.

        Args:
            window: Number of the window.
            names: Of each row.
            level: Gives the logarithms of a row's ranks, and what their noise explains of a difference.
            spread: Of each row.
            slow: Cells that are slow by their level, and always were.
        """
        if self._ranks < _FEWEST_RANKS:
            return
        again = window % _LOOK_AGAIN == _FIRST_LOOK
        rows = set(np.flatnonzero(slow.sum(axis=1) >= _WHOLE_MODE * self._ranks).tolist())
        if again:
            rows |= {*np.flatnonzero(spread > _WIDE).tolist(), *self.splits}
        for row in rows:
            values, noise = level(row)
            splits = slow_groups(values, noise)
            if not splits and 2 * int(slow[row].sum()) >= int((~np.isnan(values)).sum()):
                splits = [slow[row]]
            if not splits:
                self.splits.pop(row, None)
                self._told.pop(row, None)
                continue
            apart = float(np.expm1(np.nanmedian(values[splits[-1]]) - np.nanmedian(values[~splits[0]])))
            self.splits[row] = splits
            self._told[row] = (int(names[row]), len(splits) + 1, apart)


def is_of_a_node(slow: Bools, nodes: npt.NDArray[np.int64] | None) -> bool:
    """Return whether ranks are of one node of several, and fewer than half of all: then the node is slow.

    Args:
        slow: The ranks.
        nodes: Of each rank; None: not known.
    """
    if nodes is None or 2 * int(slow.sum()) >= len(slow):
        return False
    return len(np.unique(nodes[slow])) == 1 < len(np.unique(nodes))


def slow_groups(values: npt.NDArray[np.float32], noise: float = 0.0) -> list[Bools]:
    """Return, of each regular split of the ranks, who is on its slow side; from the fastest split to the slowest.

    Args:
        values: Logarithms of the ratio to the reference, one per rank, NaN where unknown.
        noise: A gap is larger than this.
    """
    known = ~np.isnan(values)
    ordered = np.sort(values[known])
    least = max(_LEAST_RANKS, int(np.ceil(_LEAST_SHARE * len(ordered))))
    if len(ordered) < 2 * least:
        return []
    gaps = np.diff(ordered)
    cuts = [0]
    candidates = np.flatnonzero(gaps > max(_LEAST_GAP, noise))
    for place in candidates.tolist():
        if place + 1 - cuts[-1] >= least and len(ordered) - place - 1 >= least:
            cuts.append(place + 1)
    cuts.append(len(ordered))
    found: list[Bools] = []
    for number in range(1, len(cuts) - 1):
        below, above = ordered[cuts[number - 1] : cuts[number]], ordered[cuts[number] : cuts[number + 1]]
        inside = 1.4826 * max(float(np.median(np.abs(side - np.median(side)))) for side in (below, above))
        if gaps[cuts[number] - 1] > _GAP_SPREADS * inside:
            slow = known & (values >= above[0])
            if _is_regular(slow[known]):
                found.append(slow)
    return found


def _is_regular(slow: Bools) -> bool:
    """Return whether the ranks are in a few blocks, or in every n-th place."""
    count, members = len(slow), int(slow.sum())
    runs = 1 + int(np.count_nonzero(slow[1:] != slow[:-1]))
    expected = 1.0 + 2.0 * members * (count - members) / count
    if runs <= max(2.0, 0.25 * expected) and runs <= 1 + min(count, 16):
        return True
    if min(members, count - members) < 4:
        return False
    periods = range(2, min(_MOST_PERIOD, count // 3) + 1)
    return any(float(np.mean(slow[period:] == slow[:-period])) >= _ALIKE for period in periods)
