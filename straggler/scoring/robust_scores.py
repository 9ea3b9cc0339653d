"""Robust scores of one window."""

from __future__ import annotations

import statistics

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["IMPLAUSIBLE", "LEAST_NOISE", "OK", "SLOW", "UNKNOWN", "RobustScores"]

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

OK, SLOW, UNKNOWN, IMPLAUSIBLE = 0, 1, 2, 3

LEAST_NOISE = 0.005
"""No timing repeats better than this from window to window, whatever two ranks seem to say."""


@attrs.frozen
class RobustScores:
    """The robust scores of one window. Arrays have shape ``(rows, ranks)`` or are broadcastable to it.

    Args:
        names: Name hash of each row.
        excess: ``x`` averaged over the last windows; 0.1 is 10 % slower than the peers. NaN unknown.
        drift: ``x`` minus the rank's usual; NaN while that is not known.
        state: OK, SLOW, UNKNOWN or IMPLAUSIBLE.
        since: Number of the window in which a SLOW cell began to be slow.
        reference: Median seconds of each rank's peer group.
        spread: Robust standard deviation of ``excess`` within the group.
        noise: Robust standard deviation of ``drift``.
        recent: ``x`` of the last windows, oldest first.
        k: Windows over a threshold before it counts.
        number: Counts windows from 0.
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

    def beyond(self, threshold: float) -> npt.NDArray[np.bool_]:
        """Return who scored below ``threshold`` in at least ``k`` of the last windows; UNKNOWN never."""
        bar = np.float32(1.0 / threshold - 1.0) if threshold > 0.0 else np.float32(np.inf)
        count = np.zeros(self.state.shape, dtype=np.uint8)
        for x in self.recent:
            count[: x.shape[0]] += x > bar
        return np.asarray((count >= self.k) & (self.state != UNKNOWN) & (self.state != IMPLAUSIBLE))

    def confidence(self, row: int, rank: int) -> float:
        """Return one minus the chance that any of so many healthy cells had looked like this one."""
        spread = max(float(_at(self.spread, row, rank)), 2 * LEAST_NOISE)
        sigmas = float(self.excess[row, rank]) / spread
        drift = float(self.drift[row, rank]) if self.drift.shape == self.excess.shape else float("nan")
        if np.isfinite(drift):
            sigmas = max(sigmas, drift / max(float(_at(self.noise, row, rank)), LEAST_NOISE))
        chance = self.state.size * (1.0 - statistics.NormalDist().cdf(max(sigmas, 0.0)))
        return 1.0 - min(max(chance, 1e-6), 1.0)


def _at(values: Float32, row: int, rank: int) -> float:
    return float(values[row, rank if values.shape[1] > 1 else 0])
