"""Robust scores of one window."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["IMPLAUSIBLE", "LEAST_NOISE", "OK", "OF_MEANS", "SLOW", "UNKNOWN", "UNSURE", "WAITED", "RobustScores"]

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

OK, SLOW, UNKNOWN, IMPLAUSIBLE, UNSURE, WAITED = 0, 1, 2, 3, 4, 5

OF_MEANS = 16
"""From this number on a test is one of means."""

_STRONG = 1.3
"""How far over its bar a cell was whose verdict is the surer one."""

LEAST_NOISE = 0.005
"""No timing repeats better than this from window to window, whatever two ranks seem to say."""


@attrs.frozen
class RobustScores:
    """The robust scores of one window. Arrays have shape ``(rows, ranks)`` or are broadcastable to it.

    Args:
        names: Name hash of each row.
        excess: ``x`` averaged over the last windows; 0.1 is 10 % slower than the peers. NaN unknown.
        drift: ``x`` minus the rank's usual; NaN while that is not known.
        state: OK, SLOW, UNKNOWN, IMPLAUSIBLE; UNSURE: over the floor for long, but healthy ranks differ by as much; or
            WAITED: slow by what the rank waited for a processor, see :mod:`straggler.scoring.processor_waits`.
        since: Number of the window in which a SLOW cell began to be slow.
        reference: Median seconds of each rank's peer group.
        spread: Robust standard deviation of ``excess`` within the group.
        noise: Robust standard deviation of ``drift``.
        recent: ``x`` of the last windows, oldest first.
        k: Windows over a threshold before it counts.
        number: Counts windows from 0.
        strength: Of SLOW cells, the largest multiple of its bar that the excess had; else 0.
        level_bar: Excess over the peers from which on a cell would be SLOW, were its past not known.
        in_means: SLOW cells whose mean is slow and whose median is not: some of their steps are.
        bar: Excess from which on a SLOW cell was slow, over its peers or its past; else 0.
        groups: Rows whose ranks fall into groups that nobody declared: name, how many groups, and by how much the
            slowest takes longer than the fastest.
    """

    names: npt.NDArray[np.uint64]
    excess: Float32
    drift: Float32
    state: Bytes
    since: npt.NDArray[np.int32]
    reference: Float32
    spread: Float32
    noise: Float32
    recent: tuple[Float32, ...]
    k: int
    number: int
    strength: Float32
    level_bar: Float32
    in_means: npt.NDArray[np.bool_]
    bar: Float32
    groups: tuple[tuple[int, int, float], ...] = ()

    def beyond(self, threshold: float) -> npt.NDArray[np.bool_]:
        """Return who scored below ``threshold`` in at least ``k`` of the last windows; UNKNOWN and WAITED never."""
        bar = np.float32(1.0 / threshold - 1.0) if threshold > 0.0 else np.float32(np.inf)
        count = np.zeros(self.state.shape, dtype=np.uint8)
        for x in self.recent:
            count[: x.shape[0]] += x > bar
        return np.asarray((count >= self.k) & ~np.isin(self.state, (UNKNOWN, IMPLAUSIBLE, WAITED)))

    def confidence(self, row: int, rank: int) -> float:
        """Return the share of such verdicts that were right at least, on simulated jobs of many kinds (0 if not SLOW).

        Only two classes are told apart, by how far over its bar the cell was. A chance computed from the spread would
        claim more than that: it holds for one kind of noise each.
        """
        strength = float(self.strength[row, rank])
        return 0.0 if strength <= 0.0 else 0.99 if strength >= _STRONG else 0.95
