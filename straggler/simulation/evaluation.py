"""The exam: robust scoring against the simulator's truth."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from straggler.scoring.robust import RobustScorer
from straggler.scoring.robust_scores import SLOW
from straggler.settings import RobustSettings
from straggler.simulation.simulator import Fault, Job, simulate, truth

__all__ = ["Marks", "clean_windows", "examine", "with_stragglers"]


@attrs.frozen
class Marks:
    """How the judgement did.

    Args:
        hits: Stragglers that were named.
        misses: Stragglers that were not.
        wronged: Healthy ranks that were named, in any window.
    """

    hits: int
    misses: int
    wronged: int

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 1.0 when there was nothing to find and nothing was found."""
        found = 2 * self.hits
        total = found + self.misses + self.wronged
        return found / total if total else 1.0

    def __add__(self, other: Marks) -> Marks:
        return Marks(self.hits + other.hits, self.misses + other.misses, self.wronged + other.wronged)


def examine(job: Job, settings: RobustSettings | None = None) -> Marks:
    """Score a whole job: named at its last window counts as found, a healthy rank named in any window as wronged."""
    scorer = RobustScorer(job.ranks, settings)
    names = np.arange(job.sections, dtype=np.uint64)
    slow = truth(job)
    wronged: npt.NDArray[np.bool_] = np.zeros(job.ranks, dtype=bool)
    named = wronged
    for medians in simulate(job):
        named = (scorer.update(names, medians).state == SLOW).any(axis=0)
        wronged |= named & ~slow
    return Marks(int((named & slow).sum()), int((slow & ~named).sum()), int(wronged.sum()))


def with_stragglers(job: Job, share: float, slowdown: float, onset: int) -> Job:
    """The same job with so many of its ranks slowed from one window on, and ended after three reports of it."""
    count = max(1, round(share * job.ranks))
    chosen = np.random.default_rng(job.seed + 1).choice(job.ranks, size=count, replace=False)
    faults = tuple(Fault(kind="slow_rank", rank=int(r), slowdown=slowdown, onset=onset) for r in chosen)
    return attrs.evolve(job, faults=(*job.faults, *faults), windows=onset + 3)


def clean_windows(ranks: int, windows: int, jobs: int, **changes: object) -> int:
    """False verdicts (healthy ranks named) in so many clean windows, spread over so many jobs."""
    total = Marks(0, 0, 0)
    for seed in range(jobs):
        total += examine(Job(ranks=ranks, windows=windows // jobs, seed=1000 + seed, **changes))  # type: ignore[arg-type]
    return total.wronged
