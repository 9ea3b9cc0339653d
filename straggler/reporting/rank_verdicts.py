"""Verdicts on the ranks of one report, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import GatheredWindows
from straggler.measurement.measured import BATCHES_OF_WORKERS, STATE_FIELDS
from straggler.measurement.name_table import hash_name
from straggler.measurement.section import IN_EVALUATION
from straggler.pacing import paced
from straggler.reporting.verdict import MATERIAL_SHARE, State, Verdict, core_wait, device_reasons
from straggler.scoring.robust_scores import IMPLAUSIBLE, SLOW, UNKNOWN, UNSURE, WAITED, RobustScores
from straggler.scoring.scorer import GPU_ROW, WHOLE_ROW, Scores

__all__ = ["RankVerdicts"]

_SHARE_EXPLAINED = 0.7
_LEAST_SAID = 0.08
_A_CORE = "it waited for a core"
_WORKERS = "it waited for its data loader's workers"
_BATCHES = hash_name(BATCHES_OF_WORKERS)
_LOADER = STATE_FIELDS.index("loader_waited")


@attrs.frozen
class RankVerdicts:
    """Makes the verdicts of one report.

    Args:
        scores: The scores of all ranks.
        gathered: What the ranks sent.
        row_name: From a row's number to its name.
        sequence: Number of the report.
        report_seconds: Seconds that each of the last reports covers, this one last.
    """

    scores: Scores
    gathered: GatheredWindows
    row_name: Callable[[int], str]
    sequence: int
    report_seconds: Sequence[float]

    def of(self, rank: int) -> Verdict:
        """Return the verdict on one rank of the job."""
        node, scores = self.gathered.nodes[rank], self.scores
        if not self.gathered.present[rank]:
            why = self.gathered.refused.get(rank, "no answer in time: it hangs, is dead or is very late")
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=why)
        if any(rank in pair for pair in scores.ambiguous):
            why = (
                "of two ranks each is longer where the other is shorter, so one waits for the other, and it is not "
                'known which; in a loop of your own, mark the collective with detection_section(name, kind="wait")'
            )
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=why)
        window = scores.against_peers
        if window is None and not self._is_told:
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because="rank 0 has told this rank nothing")
        if window is None:
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because='scoring="minimum" gives scores only')
        return self._robust_verdict(rank, node, window)

    def _robust_verdict(self, rank: int, node: str, window: RobustScores) -> Verdict:
        states, excess = window.state[:, rank], window.excess[:, rank]
        known = ~np.isnan(excess)
        past = self.scores.against_past
        if not known.any() and past is not None and (past.state[:, rank] == SLOW).any():
            return self._slow(rank, node, past) or Verdict(rank=rank, node=node)
        if not known.any():
            why = "no timings in this window"
            if self.gathered.world_size == 1:
                why = "one rank only: nothing to compare with"
            elif self._has_peers(rank):
                why = "too few samples in this window: give a longer report_time_interval, or a smaller min_samples"
            elif self.scores.seconds[:, rank].any():
                why = "no other rank of its peer group has timings of the same in this window"
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=why)
        slow = self._slow(rank, node, window)
        if slow is not None:
            return slow
        lost, weight = self._lost(window, rank)
        share = weight / max(float(weight.sum()), 1e-12)
        if float(share[states == IMPLAUSIBLE].sum()) > 0.5:
            why = "implausibly fast: its clock is wrong, it skips work, or it does other work (set a peer group)"
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=why)
        row = int(np.argmax(np.where(states == WAITED, lost, -1.0)))
        if states[row] == WAITED and lost[row] >= MATERIAL_SHARE:
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=self._waited(rank))
        row = int(np.argmax(np.where(states == UNSURE, lost, -1.0)))
        if states[row] == UNSURE and lost[row] >= MATERIAL_SHARE:
            return Verdict(rank=rank, node=node, state=State.UNKNOWN, because=self._unsure(window, row, rank))
        worst = int(np.nanargmax(np.where(known, share * excess, -np.inf)))
        return Verdict(
            rank=rank, node=node, slowdown=float(excess[worst]), section=self.row_name(int(window.names[worst]))
        )

    @property
    def _is_told(self) -> bool:
        """Return whether there are any scores: a rank that has no answer of rank 0's has none."""
        scores = self.scores
        return any(known is not None for known in (scores.against_peers, scores.relative, scores.individual))

    def _has_peers(self, rank: int) -> bool:
        """Return whether another rank of the peer group has measured something that this rank has."""
        peers = self.gathered.peer_groups == self.gathered.peer_groups[rank]
        return any(
            bool((block.num[block.num[:, rank] > 0][:, peers] > 0).sum(axis=1).max(initial=0) > 1)
            for block in self.gathered.blocks.values()
        )

    def _slow(self, rank: int, node: str, window: RobustScores) -> Verdict | None:
        """Return the verdict on a rank that is slow in something that matters; None on another."""
        states, excess = window.state[:, rank], window.excess[:, rank]
        lost = self._lost(window, rank)[0]
        whole = window.names == np.uint64(WHOLE_ROW)
        # An iteration holds its sections: one of them that explains most of it says more.
        row = int(np.argmax(np.where(states == SLOW, np.where(whole, _SHARE_EXPLAINED, 1.0) * lost, -1.0)))
        if states[row] != SLOW or lost[row] < MATERIAL_SHARE:
            return None
        since = int(window.since[row, rank])
        device, others = self.gathered.device[rank], np.delete(self.gathered.device, rank, axis=0)
        reasons, beside = [device_reasons(device, others)], ""
        if (share := self._kept_waiting(rank) - self._loading(rank)) >= _LEAST_SAID:
            reasons.append(f"{_A_CORE} {100 * share:.0f} % of the time")
        else:
            beside = core_wait(device, others)
        if window.in_means[row, rank] and self._median_excess(window, row, rank) < 0.5 * excess[row]:
            reasons.insert(0, "some of its steps take much longer, and most do not")
        return Verdict(
            rank=rank,
            node=node,
            state=State.SLOW,
            slowdown=float(excess[row]),
            section=self.row_name(int(window.names[row])),
            since_report=since + self.sequence - window.number,
            since_seconds=float(sum(self.report_seconds[since - window.number - 1 :])),
            confidence=window.confidence(row, rank),
            because=", ".join(reason for reason in reasons if reason),
            beside=beside,
        )

    def _median_excess(self, window: RobustScores, row: int, rank: int) -> float:
        """Return by how much the median of a rank's last windows is over its peers'."""
        last = [float(x[row, rank]) for x in window.recent if row < len(x)]
        known = [value for value in last if value == value]
        return sum(known) / len(known) if known else 0.0

    def slow_cells(self, window: RobustScores) -> npt.NDArray[np.bool_]:
        """Return the cells that are SLOW and matter, shape ``(rows, ranks)``."""
        cells = np.asarray(window.state == SLOW)
        for rank in paced(np.flatnonzero(cells.any(axis=0)).tolist()):
            cells[:, rank] &= self._lost(window, rank)[0] >= MATERIAL_SHARE
        return cells

    def _kept_waiting(self, rank: int) -> float:
        """Return the share of its time that a rank waited for a processor, if it is slow by that; else NaN."""
        waits = self.scores.kept_waiting
        return float("nan") if waits is None else float(waits[rank])

    def _waited(self, rank: int) -> str:
        # In tens, so that the table has few lines where many ranks are slow by that.
        waited, loading = self._kept_waiting(rank), self._loading(rank)
        is_of_workers = loading > 0.5 * waited
        share = 100.0 * (loading if is_of_workers else waited)
        much = (
            f"about {10 * round(share / 10) if share >= 9.5 else max(round(share), 1)} %" if share == share else "much"
        )
        if not is_of_workers:
            return (
                f"it is slower, and {_A_CORE} {much} of the time, which may be why: see what else runs on its machine"
            )
        return f"it is slower, and {_WORKERS} {much} of the time, {self._of_workers(rank)}"

    def _loading(self, rank: int) -> float:
        """Return the share of its time that a rank waited for workers of a data loader in this report."""
        return float(np.nan_to_num(self.gathered.device[rank, _LOADER]))

    def _of_workers(self, rank: int) -> str:
        """Return what is known of how fast the workers of a rank's data loaders are."""
        window = self.scores.against_peers
        known = np.zeros(0) if window is None else window.excess[window.names == np.uint64(_BATCHES), rank]
        slower = float(np.nanmax(known)) if (~np.isnan(known)).any() else float("nan")
        if slower >= MATERIAL_SHARE:
            return f"and these take {100 * slower:.0f} % longer for a batch than those of the others, which is no proof"
        if slower < MATERIAL_SHARE:
            return "and these are as fast as those of the others: which rank waits for them is chance"
        return "and whether these are slow is not known: they are no forks that were started after the detector"

    def _unsure(self, window: RobustScores, row: int, rank: int) -> str:
        name = self.row_name(int(window.names[row]))
        for number, count, apart in window.groups:
            if number == int(window.names[row]):
                return (
                    f"in {name!r} the ranks fall into {count} groups, {100 * apart:.0f} % apart, as pipeline stages "
                    "do; set peer_group to compare each with its like"
                )
        bar = window.level_bar[row, rank if window.level_bar.shape[1] > 1 else 0]
        return (
            f"long slower than its peers in {name!r}, but healthy ranks of this job differ so much that "
            f"less than {100 * bar:.0f} % is no proof"
        )

    def _lost(self, window: RobustScores, rank: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the share of a rank's time that each row costs it against its peers, and the seconds spent in each."""
        excess = window.excess[:, rank].astype(np.float64)
        weight = np.where(np.isnan(excess), 0.0, self.scores.seconds[:, rank])
        over = np.maximum(np.nan_to_num(excess), 0.0)
        lost = over / (1.0 + over) * weight / max(float(self.scores.measured[rank]), 1e-12)
        whole = excess[window.names == np.uint64(WHOLE_ROW)]
        if (whole < MATERIAL_SHARE).any():
            of_iterations = [not self.row_name(int(name)).endswith(IN_EVALUATION) for name in window.names]
            lost[of_iterations] = 0.0  # what it loses in one place it gains in another, so nobody waits for it
        elif (whole >= MATERIAL_SHARE).any():
            # The own work of iterations holds what lies before a collective, and is not made up of short gaps.
            lost[np.isin(window.names, self.scores.names[self.scores.arrival])] = 0.0
        # Kernels are sampled, so their seconds do not tell their share of the time: count the GPU in full.
        return np.where(window.names == np.uint64(GPU_ROW), over, lost), weight

    def lost_share(self, rank: int) -> float:
        """Return the share of its time a rank loses against its peers, in its worst row; 0.0 when unknown."""
        window, scores = self.scores.against_peers, self.scores
        if window is not None:
            return float(self._lost(window, rank)[0].max(initial=0.0))
        if scores.relative is None:
            return 0.0
        behind = 1.0 - np.nan_to_num(scores.relative[:, rank], nan=1.0)
        return float((behind * scores.seconds[:, rank]).max(initial=0.0) / max(float(scores.measured[rank]), 1e-12))

    def candidates(self, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks whose verdict may not be OK, without making all verdicts."""
        suspect = ~self.gathered.present
        if not self._is_told:
            suspect[:] = True
        window = self.scores.against_peers
        if window is not None:
            states = window.state
            suspect |= np.isin(states, (SLOW, IMPLAUSIBLE, UNSURE, WAITED)).any(axis=0) | (states == UNKNOWN).all(
                axis=0
            )
        suspect[[rank for pair in self.scores.ambiguous for rank in pair]] = True
        return [rank for rank in ranks if suspect[rank]]
