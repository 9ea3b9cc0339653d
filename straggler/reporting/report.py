"""Report: the scores and verdicts of one window, built from arrays only when they are asked for.

At 10,000 ranks and 16 sections the dictionaries of the model system are 160,000 entries; a report that nobody
reads should not cost them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import attrs
import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import Gathered
from straggler.measurement.summary import Summary
from straggler.reporting.verdict import MATERIAL_SHARE, State, Verdict, device_reasons
from straggler.scoring.robust_settings import IMPLAUSIBLE, SLOW, UNKNOWN, Window
from straggler.scoring.scorer import ARRIVAL_SALT, GPU_ROW, Outcome

__all__ = ["DEFAULT_THRESHOLD", "Report", "StragglerId", "Stragglers", "check_threshold"]


class _Default(float):
    """0.75, and the knowledge that nobody asked for it."""

    def __repr__(self) -> str:
        return f"{float(self):g}"


DEFAULT_THRESHOLD = _Default(0.75)

_SECTIONS = tuple[str, npt.NDArray[np.float64]]


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
    """A score threshold.

    Raises:
        ValueError: It is not a number from 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value!r}; a score is between 0 (slowest) and 1, for example 0.75")
    return value


class Report:
    """One report. On the gathering rank it holds all ranks, elsewhere this one.

    Scores are 0..1: 1.0 is as fast as the reference, 0.5 twice as slow. What is unknown has no entry; no score is
    NaN. With ``scoring="robust"`` the reference is the middle of the peers and a score is the average of the last
    windows; with ``"minimum"`` see :mod:`straggler.scoring.minimum`.
    """

    def __init__(
        self,
        *,
        outcome: Outcome,
        gathered: Gathered,
        name_of: Callable[[int], str],
        sequence: int,
        rank: int,
        only: Sequence[int] | None = None,
        gather_on_rank0: bool = True,
        report_seconds: Sequence[float] = (),
        wall_time: float = 0.0,
        elapsed_seconds: float = 0.0,
        local_section_summaries: Mapping[str, Summary] | None = None,
        local_kernel_summaries: Mapping[str, Summary] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.outcome = outcome
        self.gathered = gathered
        self.sequence = sequence
        self.rank = rank
        self.gather_on_rank0 = gather_on_rank0
        self.wall_time = wall_time
        self.generate_report_elapsed_time = elapsed_seconds
        self.local_section_summaries = dict(local_section_summaries or {})
        self.local_kernel_summaries = dict(local_kernel_summaries or {})
        self.notes = tuple(notes)
        self._name_of = name_of
        self._only = range(gathered.world_size) if only is None else list(only)
        self._report_seconds = list(report_seconds)

    @property
    def world_size(self) -> int:
        """Ranks in the job."""
        return self.gathered.world_size

    @property
    def coverage(self) -> float:
        """Share of the ranks that answered in time."""
        return float(self.gathered.present.mean()) if self.gathered.world_size else 0.0

    @property
    def missing_ranks(self) -> list[int]:
        """Who did not answer, or not in time."""
        return [int(rank) for rank in np.flatnonzero(~self.gathered.present)]

    @functools.cached_property
    def rank_to_node(self) -> dict[int, str]:
        """Node of each rank that has ever answered."""
        return {rank: self.gathered.nodes[rank] for rank in self._only if self.gathered.nodes[rank]}

    @functools.cached_property
    def gpu_relative_perf_scores(self) -> dict[int, float]:
        """Rank to GPU score against its peers; empty without kernels."""
        return self._per_rank(self.outcome.gpu_relative)

    @functools.cached_property
    def gpu_individual_perf_scores(self) -> dict[int, float]:
        """Rank to GPU score against its own past; empty without kernels."""
        return self._per_rank(self.outcome.gpu_individual)

    @functools.cached_property
    def section_relative_perf_scores(self) -> dict[str, dict[int, float]]:
        """Section to rank to score against its peers. An arrival is called ``before <section>``."""
        return self._per_section(self.outcome.relative)

    @functools.cached_property
    def section_individual_perf_scores(self) -> dict[str, dict[int, float]]:
        """Section to rank to score against its own past."""
        return self._per_section(self.outcome.individual)

    def row_name(self, number: int) -> str:
        """What a row is called."""
        if number == GPU_ROW:
            return "gpu"
        known = self._name_of(number)
        if known.startswith("unnamed-"):
            arrival = self._name_of(number ^ ARRIVAL_SALT)
            if not arrival.startswith("unnamed-"):
                return f"before {arrival}"
        return known

    def _per_rank(self, scores: npt.NDArray[np.float64] | None) -> dict[int, float]:
        if scores is None:
            return {}
        return {rank: float(scores[rank]) for rank in self._only if not math.isnan(scores[rank])}

    def _per_section(self, scores: npt.NDArray[np.float64] | None) -> dict[str, dict[int, float]]:
        if scores is None:
            return {}
        named = ((self.row_name(number), scores[row]) for row, number in enumerate(self.outcome.names.tolist()))
        return {name: found for name, row in named if (found := self._per_rank(row))}

    def identify_stragglers(
        self,
        gpu_rel_threshold: float = DEFAULT_THRESHOLD,
        section_rel_threshold: float = DEFAULT_THRESHOLD,
        gpu_indiv_threshold: float = DEFAULT_THRESHOLD,
        section_indiv_threshold: float = DEFAULT_THRESHOLD,
    ) -> Stragglers:
        """Name the slow ranks.

        With robust scoring and no threshold given, those whose verdict is SLOW: beyond the ratio floor or
        changed against their past, persistently. A threshold that is given replaces the ratio floor; persistence
        stays. With ``scoring="minimum"``, every score of this report strictly below its threshold.

        Returns:
            ``straggler_gpus_relative`` and ``straggler_gpus_individual``: sets; ``straggler_sections_relative``
            and ``straggler_sections_individual``: section to set, without empty ones.

        Raises:
            ValueError: A threshold is not between 0 and 1.
        """
        check_threshold("gpu_rel_threshold", gpu_rel_threshold)
        check_threshold("section_rel_threshold", section_rel_threshold)
        check_threshold("gpu_indiv_threshold", gpu_indiv_threshold)
        check_threshold("section_indiv_threshold", section_indiv_threshold)
        outcome = self.outcome
        relative = outcome.window if outcome.relative is not None else None
        return {
            "straggler_gpus_relative": self._gpus(outcome.gpu_relative, relative, gpu_rel_threshold),
            "straggler_gpus_individual": self._gpus(outcome.gpu_individual, outcome.own_past, gpu_indiv_threshold),
            "straggler_sections_relative": self._sections(outcome.relative, relative, section_rel_threshold),
            "straggler_sections_individual": self._sections(
                outcome.individual, outcome.own_past, section_indiv_threshold
            ),
        }

    def _gpus(
        self, scores: npt.NDArray[np.float64] | None, window: Window | None, threshold: float
    ) -> set[StragglerId]:
        if scores is None:
            return set()
        if window is None:
            return self._ids(scores < threshold) if self.outcome.window is None else set()
        rows = np.flatnonzero(window.names == np.uint64(GPU_ROW))
        return self._ids(_slow(window, threshold)[rows[0]]) if len(rows) else set()

    def _sections(
        self, scores: npt.NDArray[np.float64] | None, window: Window | None, threshold: float
    ) -> dict[str, set[StragglerId]]:
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
        mine = set(self._only) if len(self._only) < self.world_size else None
        ranks = (int(rank) for rank in np.flatnonzero(slow))
        return {StragglerId(r, self.gathered.nodes[r]) for r in ranks if mine is None or r in mine}

    def verdict(self, rank: int) -> Verdict:
        """What is said of one rank.

        Raises:
            ValueError: There is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not in 0..{self.world_size - 1}")
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
            why = "one rank only: nothing to compare with" if self.world_size == 1 else "no timings in this window"
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
                since_seconds=float(sum(self._report_seconds[since - window.number - 1 :])),
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
        """Share of a rank's time that each row costs it against its peers, and the seconds it spends in each."""
        excess = window.excess[:, rank].astype(np.float64)
        weight = np.where(np.isnan(excess), 0.0, self.outcome.seconds[:, rank])
        over = np.maximum(np.nan_to_num(excess), 0.0)
        lost = over / (1.0 + over) * weight / max(float(self.outcome.measured[rank]), 1e-12)
        # Kernels are sampled, so their seconds are no measure of their weight; all of the GPU is.
        return np.where(window.names == np.uint64(GPU_ROW), over, lost), weight

    def lost_share(self, rank: int) -> float:
        """How much of its time a rank loses against its peers, in the row where that is most; 0.0 when unknown."""
        window, outcome = self.outcome.window, self.outcome
        if window is not None:
            return float(self._lost(window, rank)[0].max(initial=0.0))
        if outcome.relative is None:
            return 0.0
        behind = 1.0 - np.nan_to_num(outcome.relative[:, rank], nan=1.0)
        return float((behind * outcome.seconds[:, rank]).max(initial=0.0) / max(float(outcome.measured[rank]), 1e-12))

    def verdicts(self) -> list[Verdict]:
        """Every verdict that is not OK, the slowest first. One of OK is left out: nothing wrong, nothing said."""
        found = [self.verdict(rank) for rank in self._candidates()]
        wrong = [verdict for verdict in found if verdict.state is not State.OK]
        return sorted(
            wrong, key=lambda v: (v.state is not State.SLOW, -(v.slowdown if v.slowdown == v.slowdown else 0.0))
        )

    def _candidates(self) -> list[int]:
        """Ranks whose verdict may not be OK, found without making all of them."""
        suspect = ~self.gathered.present
        window = self.outcome.window
        if window is not None:
            states = window.state
            suspect |= ((states == SLOW) | (states == IMPLAUSIBLE)).any(axis=0) | (states == UNKNOWN).all(axis=0)
        suspect[[rank for pair in self.outcome.ambiguous for rank in pair]] = True
        return [rank for rank in self._only if suspect[rank]]

    def stragglers(self) -> list[Verdict]:
        """The verdicts that are SLOW, the slowest first."""
        return [verdict for verdict in self.verdicts() if verdict.state is State.SLOW]

    def has_stragglers(self) -> bool:
        """Whether any rank is SLOW."""
        return bool(self.stragglers())

    def table(self, rows: int = 10) -> str:
        """The short table for people, see :func:`straggler.reporting.table.render`."""
        from straggler.reporting.table import render

        return render(self, rows)


def _slow(window: Window, threshold: float) -> npt.NDArray[np.bool_]:
    if isinstance(threshold, _Default):
        return np.asarray((window.state == SLOW) & (window.state != UNKNOWN))
    return window.beyond(threshold)
