"""Report: the scores and verdicts of one window, built from arrays when they are asked for.

At 10,000 ranks and 16 sections the dictionaries of nvidia-resiliency-ext have 160,000 entries; they are built only
when they are read.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import GatheredWindows
from straggler.measurement.summary import Summary
from straggler.pacing import paced
from straggler.reporting.identification import Identification, Stragglers
from straggler.reporting.rank_verdicts import RankVerdicts
from straggler.reporting.row_names import RowNames
from straggler.reporting.table import render
from straggler.reporting.verdict import State, Verdict
from straggler.scoring.scorer import Scores
from straggler.settings import DEFAULT_THRESHOLD, Thresholds

__all__ = ["Report"]


class Report:
    """The scores and verdicts of one window: of all ranks on the gathering rank, elsewhere of this one.

    Scores are 0..1: 1.0 is as fast as the reference, 0.5 twice as slow. What is unknown has no entry; no score is
    NaN. With ``scoring="robust"`` the reference is the middle of the peers and a score is the average of the last
    windows; with ``"minimum"`` see :mod:`straggler.scoring.minimum`.

    Attributes:
        local_section_summaries: CPU wall time of this rank's sections, by name, in milliseconds.
        local_kernel_summaries: This rank's kernels in the sampled entries, by name, in microseconds; where none are
            known, the GPU times of its sections instead, as ``cuda:<section>``. Never both, since one holds the other's
            time.
        local_gpu_section_summaries: The GPU times of its sections in every measured entry, as ``cuda:<section>``, in
            microseconds.
    """

    def __init__(
        self,
        *,
        scores: Scores,
        gathered: GatheredWindows,
        name_of: Callable[[int], str],
        sequence: int,
        rank: int,
        gather_on_rank0: bool = True,
        report_seconds: Sequence[float] = (),
        wall_time: float = 0.0,
        elapsed_seconds: float = 0.0,
        local_section_summaries: Mapping[str, Summary] | None = None,
        local_kernel_summaries: Mapping[str, Summary] | None = None,
        local_gpu_section_summaries: Mapping[str, Summary] | None = None,
        notes: Sequence[str] = (),
        missing: Sequence[int] | None = None,
    ) -> None:
        self.scores = scores
        self.gathered = gathered
        self.sequence = sequence
        self.rank = rank
        self.gather_on_rank0 = gather_on_rank0
        self.wall_time = wall_time
        self.generate_report_elapsed_time = elapsed_seconds
        self.local_section_summaries = dict(local_section_summaries or {})
        self.local_kernel_summaries = dict(local_kernel_summaries or {})
        self.local_gpu_section_summaries = dict(local_gpu_section_summaries or {})
        self.notes = tuple(notes)
        self._missing = np.flatnonzero(~gathered.present).tolist() if missing is None else list(missing)
        self._row_name = RowNames(name_of)
        self._only: Sequence[int] = range(gathered.world_size)
        self._verdicts = RankVerdicts(scores, gathered, self._row_name, sequence, list(report_seconds))

    @property
    def world_size(self) -> int:
        """Ranks in the job."""
        return self.gathered.world_size

    @property
    def coverage(self) -> float:
        """Share of the ranks that answered in time."""
        return 1.0 - len(self._missing) / self.world_size if self.world_size else 0.0

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks that did not answer rank 0, or not in time; all others where this one has no answer of rank 0's."""
        return list(self._missing)

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that the report is about: all, or without gathering this one."""
        return self._only

    @functools.cached_property
    def rank_to_node(self) -> dict[int, str]:
        """Node of each rank that has ever answered."""
        return {rank: self.gathered.nodes[rank] for rank in self._only if self.gathered.nodes[rank]}

    @functools.cached_property
    def gpu_relative_perf_scores(self) -> dict[int, float]:
        """Rank to GPU score against its peers; empty without kernels."""
        return self._per_rank(self.scores.gpu_relative)

    @functools.cached_property
    def gpu_individual_perf_scores(self) -> dict[int, float]:
        """Rank to GPU score against its own past; empty without kernels."""
        return self._per_rank(self.scores.gpu_individual)

    @functools.cached_property
    def section_relative_perf_scores(self) -> dict[str, dict[int, float]]:
        """Section to rank to score against its peers. An arrival is called ``before <section>``."""
        return self._per_section(self.scores.relative)

    @functools.cached_property
    def section_individual_perf_scores(self) -> dict[str, dict[int, float]]:
        """Section to rank to score against its own past."""
        return self._per_section(self.scores.individual)

    def slow_cells(self) -> npt.NDArray[np.bool_]:
        """Return where a rank is SLOW in something that matters, shape ``(rows, ranks)``; without scores no rows."""
        window = self.scores.against_peers
        return np.zeros((0, self.world_size), dtype=bool) if window is None else self._verdicts.slow_cells(window)

    def of_rank(self, rank: int) -> Report:
        """Return the same report of one rank only.

        Raises:
            ValueError: There is no such rank.
        """
        report = copy.copy(self)
        report._only = [self._checked(rank)]
        for name, kind in vars(Report).items():
            if isinstance(kind, functools.cached_property):
                vars(report).pop(name, None)
        return report

    def row_name(self, number: int) -> str:
        """Return the name of a row; an arrival is called ``before <section>``."""
        return self._row_name(number)

    def _per_rank(self, scores: npt.NDArray[np.float64] | None) -> dict[int, float]:
        if scores is None:
            return {}
        return {rank: float(scores[rank]) for rank in self._only if not math.isnan(scores[rank])}

    def _per_section(self, scores: npt.NDArray[np.float64] | None) -> dict[str, dict[int, float]]:
        if scores is None:
            return {}
        named = ((self.row_name(number), scores[row]) for row, number in enumerate(self.scores.names.tolist()))
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
        changed against their past, persistently, in something that matters. A threshold that is given replaces the
        ratio floor and what matters; persistence stays. With ``scoring="minimum"``, every score of this report
        strictly below its threshold.

        Returns:
            ``straggler_gpus_relative`` and ``straggler_gpus_individual``: sets; ``straggler_sections_relative``
            and ``straggler_sections_individual``: section to set, without empty ones.

        Raises:
            ValueError: A threshold is not between 0 and 1.
        """
        return self.find_stragglers(
            Thresholds(
                gpu_rel_threshold=gpu_rel_threshold,
                section_rel_threshold=section_rel_threshold,
                gpu_indiv_threshold=gpu_indiv_threshold,
                section_indiv_threshold=section_indiv_threshold,
            )
        )

    def find_stragglers(self, thresholds: Thresholds) -> Stragglers:
        """Name the slow ranks as :meth:`identify_stragglers` does, by thresholds that are checked already.

        Args:
            thresholds: Scores below which a rank is slow.
        """
        scores = self.scores
        slow = Identification(scores, self.gathered.nodes, self._only, self._row_name, self._verdicts.slow_cells)
        relative = scores.against_peers if scores.relative is not None else None
        past = scores.against_past
        return {
            "straggler_gpus_relative": slow.gpus(scores.gpu_relative, relative, thresholds.gpu_rel_threshold),
            "straggler_gpus_individual": slow.gpus(scores.gpu_individual, past, thresholds.gpu_indiv_threshold),
            "straggler_sections_relative": slow.sections(scores.relative, relative, thresholds.section_rel_threshold),
            "straggler_sections_individual": slow.sections(scores.individual, past, thresholds.section_indiv_threshold),
        }

    def verdict(self, rank: int) -> Verdict:
        """Return the verdict on one rank; UNKNOWN with ``scoring="minimum"``, which gives scores only.

        Raises:
            ValueError: There is no such rank.
        """
        return self._verdicts.of(self._checked(rank))

    def lost_share(self, rank: int) -> float:
        """Return the share of its time a rank loses against its peers, in its worst row; 0.0 when unknown.

        Raises:
            ValueError: There is no such rank.
        """
        return self._verdicts.lost_share(self._checked(rank))

    def verdicts(self) -> list[Verdict]:
        """Return every verdict that is not OK, the slowest first; with ``scoring="minimum"`` there is none."""
        found = [self.verdict(rank) for rank in paced(self._verdicts.candidates(self._only))]
        wrong = [verdict for verdict in found if verdict.state is not State.OK]
        return sorted(
            wrong, key=lambda v: (v.state is not State.SLOW, -(v.slowdown if v.slowdown == v.slowdown else 0.0))
        )

    def stragglers(self) -> list[Verdict]:
        """Return the verdicts that are SLOW, the slowest first."""
        return [verdict for verdict in self.verdicts() if verdict.state is State.SLOW]

    def has_stragglers(self) -> bool:
        """Return whether any rank is SLOW."""
        return bool(self.stragglers())

    def table(self, rows: int = 10) -> str:
        """Return the short table for people, see :func:`straggler.reporting.table.render`.

        Raises:
            ValueError: ``rows`` is no whole number from 0.
        """
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
            raise ValueError(f"rows is {rows!r}; expected a whole number from 0")
        return render(self, rows)

    def _checked(self, rank: int) -> int:
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < self.world_size:
            raise ValueError(f"rank is {rank!r}; expected a whole number from 0 to {self.world_size - 1}")
        return int(rank)
