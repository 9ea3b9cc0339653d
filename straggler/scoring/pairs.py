"""Groups of two ranks, of which one waits for the other and no majority tells which."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust_scores import OK, SLOW, UNKNOWN, RobustScores
from straggler.scoring.waits import WHOLE_ROW

__all__ = ["settle_pairs"]

Names = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]


def settle_pairs(
    window: RobustScores, names: Names, seconds: Floats, peers: PeerGroups
) -> tuple[RobustScores, Floats, tuple[tuple[int, int], ...]]:
    """Make two peers UNKNOWN of which one waits for the other, but nothing tells which.

    From three ranks on the waiting ones are the majority, and so the reference. Of two ranks there is no majority:
    where each is slower than the other in some row, both are UNKNOWN, since one of the verdicts would be false.
    """
    place = {name: row for row, name in enumerate(names.tolist())}
    aligned = np.zeros((len(window.names), seconds.shape[1]))
    for row, name in enumerate(window.names.tolist()):
        if name in place:
            aligned[row] = seconds[place[name]]
    pairs: list[tuple[int, int]] = []
    sizes = np.bincount(peers.member, minlength=peers.count)
    for group in np.flatnonzero(sizes == 2).tolist():
        first, second = np.flatnonzero(peers.member == group).tolist()
        if not (window.state[:, [first, second]] == SLOW).any():
            continue
        if (waiting := _who_waits(window, first, second)) is not None:
            window.state[window.state[:, waiting] == SLOW, waiting] = OK
            continue
        over = np.nan_to_num(np.maximum(window.excess, 0.0))
        lost = [float((over[:, r] / (1.0 + over[:, r]) * aligned[:, r]).sum()) for r in (first, second)]
        if min(lost) > 0.5 * max(lost):
            pairs.append((first, second))
            for rank in (first, second):
                window.state[window.state[:, rank] == SLOW, rank] = UNKNOWN
    return window, aligned, tuple(pairs)


def _who_waits(window: RobustScores, first: int, second: int) -> int | None:
    """Return which of two ranks waits for the other by the own work of their iterations; None where that says nothing.

    What it is slow in then holds a wait that was not recognised as one.
    """
    for states in window.state[window.names == np.uint64(WHOLE_ROW)]:
        is_slow = states[[first, second]] == SLOW
        if is_slow.sum() == 1:
            return second if is_slow[0] else first
    return None
