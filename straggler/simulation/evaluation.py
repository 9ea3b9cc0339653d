"""Evaluation of robust scoring against the simulator's truth."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from straggler.scoring.robust import RobustScorer
from straggler.scoring.robust_scores import SLOW
from straggler.settings import RobustSettings
from straggler.simulation.simulator import SimulatedJob, SimulatedSlowdown, Simulation, truth

__all__ = ["Confusion", "clean_windows", "evaluate", "with_stragglers"]


@attrs.frozen
class Confusion:
    """Counts of right and wrong verdicts, as in a confusion matrix.

    Args:
        tp: Stragglers that were named.
        fn: Stragglers that were not.
        fp: Healthy ranks that were named, in any window.
    """

    tp: int
    fn: int
    fp: int

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 1.0 when there was nothing to find and nothing was found."""
        found = 2 * self.tp
        total = found + self.fn + self.fp
        return found / total if total else 1.0

    def __add__(self, other: Confusion) -> Confusion:
        return Confusion(self.tp + other.tp, self.fn + other.fn, self.fp + other.fp)


def evaluate(job: SimulatedJob, settings: RobustSettings | None = None) -> Confusion:
    """Score a whole job.

    A straggler named at the last window counts as found, a healthy rank named in any window as a false positive.
    """
    scorer = RobustScorer(job.ranks, settings)
    names = np.arange(job.sections, dtype=np.uint64)
    slow = truth(job)
    named_wrongly: npt.NDArray[np.bool_] = np.zeros(job.ranks, dtype=bool)
    named = named_wrongly
    for medians in Simulation(job):
        named = (scorer.update(names, medians).state == SLOW).any(axis=0)
        named_wrongly |= named & ~slow
    return Confusion(int((named & slow).sum()), int((slow & ~named).sum()), int(named_wrongly.sum()))


def with_stragglers(job: SimulatedJob, share: float, slowdown: float, onset: int) -> SimulatedJob:
    """Return a job of which some ranks are slowed from one window on, and that ends three reports later.

    Args:
        job: Without them.
        share: Of the ranks that are slowed, one at least; 0: none.
        slowdown: 0.1 is 10 % longer.
        onset: The window in which it begins.
    """
    count = max(1, round(share * job.ranks)) if share > 0.0 else 0
    chosen = np.random.default_rng(job.seed + 1).choice(job.ranks, size=count, replace=False)
    slowdowns = tuple(SimulatedSlowdown(kind="slow_rank", rank=int(r), slowdown=slowdown, onset=onset) for r in chosen)
    return attrs.evolve(job, slowdowns=(*job.slowdowns, *slowdowns), windows=onset + 3)


def clean_windows(ranks: int, windows: int, jobs: int, **changes: object) -> int:
    """Count false verdicts (healthy ranks named) in so many clean windows, spread over so many jobs."""
    total = Confusion(0, 0, 0)
    for seed in range(jobs):
        total += evaluate(SimulatedJob(ranks=ranks, windows=windows // jobs, seed=1000 + seed, **changes))  # type: ignore[arg-type]
    return total.fp
