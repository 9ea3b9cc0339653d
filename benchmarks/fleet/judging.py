"""The judge: from who was named in which window to what a rule found, missed and invented.

- found: a slowed rank that is named in the last window, or, where the fault ends, in any window of it and of the
  ``GRACE`` windows after its end;
- missed: every other slowed rank;
- false: a rank that is named though it is healthy: one that is never slowed, in any window; one that is slowed, before
  its onset, or later than ``RECOVERY`` windows after the end. Each rank counts once per job, so that a slowed rank can
  be both found and false.

``F1 = 2 found / (2 found + missed + false)``. The same is counted at the end alone, where only the last window's
names are false: a rule without a memory invents somebody else in each window, which the first count holds against it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from benchmarks.fleet.faults import Struck

__all__ = ["GRACE", "RECOVERY", "REPORTS_A_DAY", "Tally", "bins", "judge"]

Mask = npt.NDArray[np.bool_]

GRACE = 3
"""Windows after the end of a fault in which to name a rank is still right."""
RECOVERY = 10
"""Windows after the end of a fault from which on to name the rank is wrong."""
REPORTS_A_DAY = 1440
"""One every 60 seconds."""


@attrs.define
class Tally:
    """What a rule did in some jobs.

    Args:
        found: Slowed ranks that were found.
        missed: Slowed ranks that were not.
        noticed: Slowed ranks that were named at some time, though perhaps not to the end.
        false: Healthy ranks that were ever named.
        false_at_end: Healthy ranks that were named in the last window.
        episodes: How often a healthy rank came to be named, not having been before.
        delays: Windows from the onset to the name, of each slowed rank that was found.
        jobs: Jobs.
        reports: Windows.
        stated: Of each rank at its first name: the stated confidence, and whether it was right.
    """

    found: int = 0
    missed: int = 0
    noticed: int = 0
    false: int = 0
    false_at_end: int = 0
    episodes: int = 0
    delays: list[int] = attrs.field(factory=list)
    jobs: int = 0
    reports: int = 0
    stated: list[tuple[float, bool]] = attrs.field(factory=list)

    def add(self, other: Tally) -> None:
        """Add what it did in other jobs."""
        for field in attrs.fields(Tally):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def precision(self) -> float:
        """Share of the names that are right; NaN where nobody was named."""
        return _share(self.found, self.found + self.false)

    @property
    def recall(self) -> float:
        """Share of the slowed ranks that were found; NaN where there is none."""
        return _share(self.found, self.found + self.missed)

    @property
    def noticed_share(self) -> float:
        """Share of the slowed ranks that were named at some time; NaN where there is none."""
        return _share(self.noticed, self.found + self.missed)

    @property
    def f1(self) -> float:
        """The harmonic mean of both; NaN where nobody was slowed or named."""
        return _share(2 * self.found, 2 * self.found + self.missed + self.false)

    @property
    def f1_at_end(self) -> float:
        """The same, of the names of the last window."""
        return _share(2 * self.found, 2 * self.found + self.missed + self.false_at_end)

    @property
    def delay(self) -> float:
        """Median windows until a slowed rank was named; NaN where none was."""
        return float(np.median(self.delays)) if self.delays else float("nan")

    @property
    def false_per_job(self) -> float:
        """Healthy ranks named per job."""
        return _share(self.false, self.jobs)

    @property
    def per_1000_job_days(self) -> float:
        """How often a healthy rank came to be named, per 1,000 days of a job with a report every 60 seconds."""
        return _share(1000 * REPORTS_A_DAY * self.episodes, self.reports)

    def as_json(self) -> dict[str, Any]:
        """Return everything, as JSON has it; null for what is not known."""
        derived = (
            "precision",
            "recall",
            "noticed_share",
            "f1",
            "f1_at_end",
            "delay",
            "false_per_job",
            "per_1000_job_days",
        )
        numbers = {name: getattr(self, name) for name in derived}
        known = {name: None if value != value else value for name, value in numbers.items()}
        return {**attrs.asdict(self), **known}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def judge(named: Sequence[Mask], fault: Struck, stated: Sequence[dict[int, float]] = ()) -> Tally:
    """Judge one rule in one job.

    Args:
        named: For each window, which ranks were named, shape ``(ranks,)``.
        fault: The truth.
        stated: For each window, the stated confidence of the ranks that were named; empty: none.
    """
    table = np.array(named, dtype=bool)
    windows, ranks = table.shape
    number = np.arange(windows)[:, None]
    end = windows if fault.end is None else fault.end
    last = windows if fault.end is None else min(windows, fault.end + GRACE)
    during = fault.slow & (number >= fault.onset) & (number < last)
    forgiven = during if fault.end is None else fault.slow & (number >= fault.onset) & (number < end + RECOVERY)
    wrong = table & ~forgiven
    right = table & during
    found = right[-1] if fault.end is None else right.any(axis=0)
    starts = wrong & ~np.vstack([np.zeros((1, ranks), dtype=bool), table[:-1]])
    first = np.argmax(right, axis=0)
    tally = Tally(
        found=int(found.sum()),
        missed=int((fault.slow & ~found).sum()),
        noticed=int(right.any(axis=0).sum()),
        false=int(wrong.any(axis=0).sum()),
        false_at_end=int(wrong[-1].sum()),
        episodes=int(starts.sum()),
        delays=[int(first[rank] - fault.onset) for rank in np.flatnonzero(found)],
        jobs=1,
        reports=windows,
    )
    seen: set[int] = set()
    for window, confidences in enumerate(stated):
        for rank, confidence in confidences.items():
            if rank not in seen:
                seen.add(rank)
                tally.stated.append((confidence, bool(forgiven[window, rank])))
    return tally


def bins(stated: Iterable[tuple[float, bool]], edges: Sequence[float]) -> list[tuple[float, float, int, float, float]]:
    """Compare stated confidences with what was right.

    Args:
        stated: Confidence, and whether it was right.
        edges: Ascending; a bin is from one edge, included, to the next.

    Returns:
        Of each bin that is not empty: its edges, how many, the mean confidence, the share that was right.
    """
    pairs = list(stated)
    found = []
    for low, high in itertools.pairwise(edges):
        inside = [pair for pair in pairs if low <= pair[0] < high]
        if inside:
            count = len(inside)
            found.append((low, high, count, sum(p[0] for p in inside) / count, sum(p[1] for p in inside) / count))
    return found
