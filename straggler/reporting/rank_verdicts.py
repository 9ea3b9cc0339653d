"""From the scores of one report to a verdict on each rank; made for the ranks that are asked for only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import Gathered
from straggler.reporting.verdict import MATERIAL_SHARE, State, Verdict, device_reasons
from straggler.scoring.robust_scores import IMPLAUSIBLE, SLOW, UNKNOWN, Window
from straggler.scoring.scorer import GPU_ROW, Outcome

__all__ = ["RankVerdicts"]


@attrs.frozen
class RankVerdicts:
    """Makes the verdicts of one report.

    Args:
        outcome: The scores of all ranks.
        gathered: What the ranks sent.
        row_name: From a row's number to its name.
        sequence: Number of the report.
        report_seconds: Seconds that each of the last reports covers, this one last.
    """

    outcome: Outcome
    gathered: Gathered
    row_name: Callable[[int], str]
    sequence: int
    report_seconds: Sequence[float]

    def of(self, rank: int) -> Verdict:
        """Return the verdict on one rank.

        Raises:
            ValueError: There is no such rank.
        """
        if not 0 <= rank < self.gathered.world_size:
            raise ValueError(f"rank {rank} is not in 0..{self.gathered.world_size - 1}")
        node, outcome = self.gathered.nodes[rank], self.outcome
        if not self.gathered.present[rank]:
            why = self.gathered.refused.get(rank, "no answer within the bound: it hangs, is dead or is very late")
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=why)
        if any(rank in pair for pair in outcome.ambiguous):
            why = 'of two ranks each is longer where the other is shorter; mark the collective with kind="wait"'
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=why)
        window = outcome.window
        if window is None:
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because='scoring="minimum" gives scores only')
        return self._robust_verdict(rank, node, window)

    def _robust_verdict(self, rank: int, node: str, window: Window) -> Verdict:
        states, excess = window.state[:, rank], window.excess[:, rank]
        known = ~np.isnan(excess)
        if not known.any():
            why = (
                "one rank only: nothing to compare with"
                if self.gathered.world_size == 1
                else "no timings in this window"
            )
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=why)
        lost_everywhere, weight = self._lost(window, rank)
        share = weight / max(float(weight.sum()), 1e-12)
        lost = np.where(states == SLOW, lost_everywhere, -1.0)
        row = int(np.argmax(lost))
        if states[row] == SLOW and lost[row] >= MATERIAL_SHARE:
            since = int(window.since[row, rank])
            peers = np.delete(self.gathered.device, rank, axis=0)
            return Verdict(
                rank=rank,
                node=node,
                state=State.SLOW,
                slowdown=float(excess[row]),
                section=self.row_name(int(window.names[row])),
                since_report=since + self.sequence - window.number,
                since_seconds=float(sum(self.report_seconds[since - window.number - 1 :])),
                confidence=window.confidence(row, rank),
                because=device_reasons(self.gathered.device[rank], peers),
            )
        if float(share[states == IMPLAUSIBLE].sum()) > 0.5:
            why = "implausibly fast: its clock is wrong, it skips work, or it does other work (set a peer group)"
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=why)
        worst = int(np.nanargmax(np.where(known, share * excess, -np.inf)))
        return Verdict(
            rank=rank, node=node, slowdown=float(excess[worst]), section=self.row_name(int(window.names[worst]))
        )

    def _lost(self, window: Window, rank: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the share of a rank's time that each row costs it against its peers, and the seconds spent in each."""
        excess = window.excess[:, rank].astype(np.float64)
        weight = np.where(np.isnan(excess), 0.0, self.outcome.seconds[:, rank])
        over = np.maximum(np.nan_to_num(excess), 0.0)
        lost = over / (1.0 + over) * weight / max(float(self.outcome.measured[rank]), 1e-12)
        # Kernels are sampled, so their seconds are no measure of their weight; all of the GPU is.
        return np.where(window.names == np.uint64(GPU_ROW), over, lost), weight

    def lost_share(self, rank: int) -> float:
        """Return the share of its time a rank loses against its peers, in its worst row; 0.0 when unknown."""
        window, outcome = self.outcome.window, self.outcome
        if window is not None:
            return float(self._lost(window, rank)[0].max(initial=0.0))
        if outcome.relative is None:
            return 0.0
        behind = 1.0 - np.nan_to_num(outcome.relative[:, rank], nan=1.0)
        return float((behind * outcome.seconds[:, rank]).max(initial=0.0) / max(float(outcome.measured[rank]), 1e-12))

    def candidates(self, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks whose verdict may not be OK, without making all verdicts."""
        suspect = ~self.gathered.present
        window = self.outcome.window
        if window is not None:
            states = window.state
            suspect |= ((states == SLOW) | (states == IMPLAUSIBLE)).any(axis=0) | (states == UNKNOWN).all(axis=0)
        suspect[[rank for pair in self.outcome.ambiguous for rank in pair]] = True
        return [rank for rank in ranks if suspect[rank]]
