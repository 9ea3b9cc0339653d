"""Scorer: from the gathered windows to one :class:`Scores`, the arrays behind a report.

Which rows are scored: sections that are a rank's own work, arrivals (a rank's own work before a synchronous
section), own work (an iteration, or a synchronous section, without the waits for others and for a core), and one row
``gpu``, the mean slowdown over kernels weighted by time spent. Of a rank that has no kernel to compare, it is that
over the GPU times of its sections. The two are never mixed in one rank, since one holds the other's time, and only
kernels are sampled. Durations of synchronous sections and of collective kernels are waits: a rank with long ones waits
for another. They are reported and never scored.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import GatheredWindows, RowMatrix
from straggler.measurement.measured import BATCHES_OF_WORKERS, Family
from straggler.measurement.name_table import hash_name
from straggler.pacing import pace
from straggler.scoring.core_work import CoreWorkScorer, own_rows
from straggler.scoring.individual import IndividualScorer
from straggler.scoring.minimum import MinimumScorer
from straggler.scoring.pairs import settle_pairs
from straggler.scoring.past import HasPast
from straggler.scoring.peers import PeerGroups
from straggler.scoring.processor_waits import ProcessorWaits
from straggler.scoring.robust import RobustScorer
from straggler.scoring.robust_scores import OK, SLOW, UNKNOWN, RobustScores
from straggler.scoring.waits import WHOLE_ROW, has_iterations, waited_shares
from straggler.settings import DetectorSettings

__all__ = ["ARRIVAL_SALT", "GPU_ROW", "WHOLE_ROW", "Scorer", "Scores"]

GPU_ROW = hash_name("gpu, all kernels")
ARRIVAL_SALT = 0x9E37_79B9_7F4A_7C15
"""Told apart from the section of the same name by this, in hashes."""

_GPU_FAMILIES = (Family.KERNEL, Family.GPU_SECTION)
"""What a GPU's score is made of: the first of them that a rank can be compared in."""

Floats = npt.NDArray[np.float64]
Names = npt.NDArray[np.uint64]
Errors = tuple[Floats, Floats]


@attrs.frozen
class Scores:
    """The scores behind a report, as arrays. Rows are sections and arrivals, in the order of ``names``.

    Args:
        names: Name hash of each row; an arrival's carries :data:`ARRIVAL_SALT`.
        arrival: Which rows are arrivals.
        relative: Scores in 0..1 against the peers, shape ``(rows, ranks)``, NaN unknown; None if not computed.
        individual: Scores against each rank's own past, same shape; None if not computed.
        gpu_relative: Shape ``(ranks,)``, NaN unknown; None if not computed.
        gpu_individual: The same against the past.
        against_peers: The robust scores of the rows and :data:`GPU_ROW`; None with ``scoring="minimum"``.
        against_past: The same against the past.
        seconds: Each rank's time in each row of ``against_peers``, shape ``(rows, ranks)``.
        measured: All the time that was measured on each rank, waits included, shape ``(ranks,)``.
        waited: Share of its time each rank spent waiting for the last to arrive, shape ``(ranks,)``, NaN unknown.
        job_wide: Rows (hashes) in which most ranks became slower together.
        ambiguous: Pairs of ranks of which one waits for the other, but nothing tells which.
        kept_waiting: Share of its time that each rank waited for a processor which is slow by that, NaN of the others;
            None with ``scoring="minimum"``.
    """

    names: Names
    arrival: npt.NDArray[np.bool_]
    relative: Floats | None
    individual: Floats | None
    gpu_relative: Floats | None
    gpu_individual: Floats | None
    against_peers: RobustScores | None
    against_past: RobustScores | None
    seconds: Floats
    measured: Floats
    waited: Floats
    job_wide: tuple[int, ...] = ()
    ambiguous: tuple[tuple[int, int], ...] = ()
    kept_waiting: Floats | None = None


class Scorer:
    """Runs the scorers, which hold every rank's past. Lives on the rank that makes reports."""

    def __init__(self, ranks: int, settings: DetectorSettings) -> None:
        self.ranks = ranks
        self._is_minimum = settings.scoring == "minimum"
        self._relative = settings.has_relative_scores
        self._individual = settings.has_individual_scores
        self._minimum = MinimumScorer()
        self._node_names: list[str] = []
        self._nodes: npt.NDArray[np.int64] = np.zeros(ranks, dtype=np.int64)
        self._robust = RobustScorer(ranks, settings.robust)
        self._individual_scorer = IndividualScorer(ranks, settings.robust)
        self._core_work = CoreWorkScorer(RobustScorer(ranks, settings.robust))
        self._processor_waits = ProcessorWaits(ranks, GPU_ROW, hash_name(BATCHES_OF_WORKERS))

    @property
    def own_past(self) -> HasPast:
        """What compares each rank with its own past."""
        return self._minimum if self._is_minimum else self._individual_scorer

    def score(self, gathered: GatheredWindows) -> Scores:
        """Score one report's windows."""
        return self._score_minimum(gathered) if self._is_minimum else self._score_robust(gathered)

    def _score_minimum(self, gathered: GatheredWindows) -> Scores:
        sections = gathered.blocks[Family.SECTION]
        scorer = self._minimum

        def relative(block: RowMatrix) -> Floats:
            return scorer.relative_gpu(block.med, block.total)

        def individual(block: RowMatrix) -> Floats:
            return scorer.individual_gpu(block.names, block.med, block.total)

        return Scores(
            names=sections.names,
            arrival=np.zeros(len(sections.names), dtype=bool),
            relative=scorer.relative_sections(sections.med) if self._relative else None,
            individual=scorer.individual_sections(sections.names, sections.med) if self._individual else None,
            gpu_relative=_by_kernels_or_sections(gathered, relative) if self._relative else None,
            gpu_individual=_by_kernels_or_sections(gathered, individual) if self._individual else None,
            against_peers=None,
            against_past=None,
            seconds=sections.total,
            measured=sections.total.sum(axis=0),
            waited=waited_shares(gathered),
        )

    def _score_robust(self, gathered: GatheredWindows) -> Scores:
        if self._node_names != gathered.nodes:
            self._node_names = list(gathered.nodes)
            self._nodes = np.unique(self._node_names, return_inverse=True)[1].astype(np.int64)
        peers = PeerGroups(gathered.peer_groups, self._nodes)
        sections, arrivals = (gathered.blocks[family] for family in (Family.SECTION, Family.ARRIVAL))
        pace()
        own, is_on_core = own_rows(gathered)
        work = ~sections.synchronous
        parts = [
            (sections.names[work], *(of[work] for of in _statistics(sections))),
            (arrivals.names ^ np.uint64(ARRIVAL_SALT), *_statistics(arrivals)),
            (own.names, *_statistics(own)),
        ]
        gpu = _gpu_row(gathered, peers)
        if gpu is not None:
            unknown = np.full(gpu[1].shape, np.nan)
            parts.append((*gpu, gpu[1], unknown, unknown))  # a slowness over many kernels, without other statistics
        names = np.concatenate([p[0] for p in parts])
        med, num, seconds, means, *both = (np.concatenate([p[i] for p in parts]) for i in range(1, 7))
        errors = both[0], both[1]
        window = self._robust.update(names, med, num_SR=num, means_SR=means, errors_SR=errors, groups=peers)
        window, seconds, ambiguous = settle_pairs(window, names, seconds, peers)
        core = self._core_work.compare(window, seconds, gathered, own, is_on_core, peers)
        pace()
        kept_waiting = self._processor_waits.settle(window, gathered, peers, self._nodes, core)
        past = self._score_against_past(names, med, num, errors, peers, window) if self._individual else (None, ())
        against_past, job_wide = past
        is_gpu = (listed := window.names) == np.uint64(GPU_ROW)
        unknown = window.state == UNKNOWN
        scores = np.where(unknown, np.nan, 1.0 / (1.0 + np.maximum(window.excess.astype(np.float64), 0.0)))
        individual = None
        if against_past is not None:
            usual = self._individual_scorer.usual_seconds().astype(np.float64)
            latest = against_past.recent[-1].astype(np.float64) + 1.0
            individual = np.minimum(usual / (against_past.reference.astype(np.float64) * latest), 1.0)
        pace()
        return Scores(
            names=listed[~is_gpu],
            arrival=np.isin(listed[~is_gpu], arrivals.names ^ np.uint64(ARRIVAL_SALT)),
            relative=scores[~is_gpu] if self._relative else None,
            individual=None if individual is None else individual[~is_gpu],
            gpu_relative=_only(scores, is_gpu, self.ranks) if self._relative else None,
            gpu_individual=None if individual is None else _only(individual, is_gpu, self.ranks),
            against_peers=window,
            against_past=against_past,
            seconds=seconds,
            measured=np.maximum.reduce(
                [
                    sections.total.sum(axis=0),
                    sections.total[sections.synchronous].sum(axis=0) + arrivals.total.sum(axis=0),
                    # Where iterations are measured, all of the time is.
                    np.where(has_iterations(own), np.nan_to_num(gathered.elapsed), 0.0),
                ]
            ),
            waited=waited_shares(gathered),
            job_wide=job_wide,
            ambiguous=ambiguous,
            kept_waiting=kept_waiting,
        )

    def _score_against_past(
        self, names: Names, med: Floats, num: Floats, errors: Errors, peers: PeerGroups, window: RobustScores
    ) -> tuple[RobustScores, tuple[int, ...]]:
        against_past = self._individual_scorer.update(names, med, num_SR=num, errors_SR=errors, groups=peers)
        if self.ranks < 3:
            _settle_past(against_past, window)
            return against_past, ()
        slow = (against_past.state == SLOW).sum(axis=1)
        rows = np.flatnonzero(2 * slow > (against_past.state != UNKNOWN).sum(axis=1))
        for row in rows.tolist():
            self._individual_scorer.reset_row(row)
            against_past.state[row][against_past.state[row] == SLOW] = OK
        _settle_past(against_past, window)
        return against_past, tuple(against_past.names[rows].tolist())


def _settle_past(against_past: RobustScores, against_peers: RobustScores) -> None:
    """Let one answer stand where a rank has peers.

    What all ranks share, such as longer data, is a change in every rank's own time; against the peers it is none. The
    scores against the peers judge each rank's change, too, so a rank is SLOW against its past only where it is there.
    """
    decided = against_peers.state != UNKNOWN
    against_past.state[decided & (against_past.state == SLOW) & (against_peers.state != SLOW)] = OK


def _statistics(block: RowMatrix) -> tuple[Floats, ...]:
    return block.med, block.num, block.total, block.mean, block.med_error, block.mean_error


def _by_kernels_or_sections(gathered: GatheredWindows, score: Callable[[RowMatrix], Floats]) -> Floats:
    """Return each rank's score by the first family in which another rank has one of its rows, else by any it has."""
    found, alone = list[Floats](), list[Floats]()
    for family in _GPU_FAMILIES:
        block = gathered.blocks[family]
        has = block.num > 0
        shared = (has & (has.sum(axis=1, keepdims=True) > 1)).any(axis=0)
        alone.append(score(block))
        found.append(np.where(shared, alone[-1], np.nan))
    scores = np.stack([*found, *alone])
    return np.asarray(scores[np.argmax(~np.isnan(scores), axis=0), np.arange(gathered.world_size)])


def _only(rows: Floats, chosen: npt.NDArray[np.bool_], ranks: int) -> Floats:
    return np.asarray(rows[chosen][0]) if chosen.any() else np.full(ranks, np.nan)


def _gpu_row(gathered: GatheredWindows, peers: PeerGroups) -> tuple[Names, Floats, Floats, Floats] | None:
    """Return name, slowness, samples and seconds of the row of all GPUs; None where no rank knows anything of one."""
    blocks = [block for family in _GPU_FAMILIES if len((block := gathered.blocks[family]).names)]
    if not blocks:
        return None
    slowness = np.stack([_gpu_slowness(block, peers) for block in blocks])
    # Slowness, samples and seconds of one rank are all of the one family that it is compared in.
    cells = (np.argmax(~np.isnan(slowness), axis=0), np.arange(gathered.world_size))
    num = np.stack([block.num.sum(axis=0) for block in blocks])
    seconds = np.stack([block.total.sum(axis=0) for block in blocks])
    return np.array([GPU_ROW], dtype=np.uint64), slowness[cells][None], num[cells][None], seconds[cells][None]


def _gpu_slowness(kernels: RowMatrix, peers: PeerGroups) -> Floats:
    """Return 1 / GPU score of each rank, against the middle of its peers; NaN without a kernel that a peer has too."""
    reference = peers.middle(kernels.med.astype(np.float32), at_least=2).astype(np.float64)
    ratios = reference / kernels.med
    weights = np.where(np.isnan(ratios), 0.0, kernels.total)
    spent = weights.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.nansum(weights * ratios, axis=0) / spent
        return np.asarray(np.where(spent > 0.0, 1.0 / score, np.nan))
