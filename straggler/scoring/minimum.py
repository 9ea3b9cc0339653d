"""``scoring="minimum"``: the formulas of nvidia-resiliency-ext, each in one place.

* section score = reference median / own median;
* GPU score = mean over a rank's kernels of (reference median / own median), weighted by the time spent in each
  (AVG x NUM of this rank in this window);
* relative reference = the minimum over the ranks that have the section or kernel;
  individual reference = the smallest median the rank itself has shown so far, this window included;
* a straggler has a score strictly below the threshold;
* kernels whose name contains ``ncclDev`` are left out: they last as long as the slowest rank takes to come.

Where data is missing: a rank that lacks a section has no score in it, and is no reference for it. A rank that
lacks a kernel is scored over the kernels it has; it is no reference for the one it lacks, and a kernel that one
rank alone has scores 1.0 there. A rank with no kernel has no GPU score. No score is ever NaN in a report: absent
means unknown.

Known weakness, and why it is not the default: a minimum is an extreme value. With no straggler at all the median
score sinks as ranks are added, and one rank with a bogus fast clock makes every other rank a straggler.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.scoring.past import Past

__all__ = ["MinimumScorer", "gpu_scores", "section_scores"]


Floats = npt.NDArray[np.float64]


def section_scores(medians_SR: Floats, reference: Floats) -> Floats:
    """Score sections.

    Args:
        medians_SR: Median seconds, shape ``(sections, ranks)``, NaN where a rank lacks the section.
        reference: Reference medians, broadcastable to it.

    Returns:
        Scores, same shape; 1.0 is as fast as the reference, 0.5 twice as slow, NaN unknown.

    Raises:
        ValueError: A median is zero, negative or infinite.
    """
    _check(medians_SR)
    return np.asarray(reference / medians_SR, dtype=np.float64)


def gpu_scores(medians_KR: Floats, totals_KR: Floats, reference: Floats) -> Floats:
    """Score GPUs over their kernels.

    Args:
        medians_KR: Median seconds, shape ``(kernels, ranks)``, NaN where a rank lacks the kernel.
        totals_KR: Seconds spent (AVG x NUM), same shape.
        reference: Reference medians, broadcastable to it.

    Returns:
        Scores, shape ``(ranks,)``; NaN for a rank without kernels.

    Raises:
        ValueError: A median is zero, negative or infinite.
    """
    _check(medians_KR)
    have = ~np.isnan(medians_KR)
    weights = np.where(have, totals_KR, 0.0)
    ratios = np.where(have, reference / medians_KR, 0.0)
    spent = weights.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(spent > 0.0, (weights * ratios).sum(axis=0) / spent, np.nan))


def _check(medians: Floats) -> None:
    bad = (medians <= 0.0) | np.isinf(medians)
    if bad.any():
        row, rank = (int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"median of row {row}, rank {rank} is {medians[row, rank]}; a duration is above 0 s")


def _minimum_over_ranks(medians: Floats) -> Floats:
    if medians.shape[1] == 0:
        return np.full((medians.shape[0], 1), np.nan)
    return np.asarray(np.fmin.reduce(medians, axis=1, keepdims=True))


class MinimumScorer:
    """Scores by minima; holds the best median of each rank so far."""

    def __init__(self) -> None:
        self._best: dict[str, dict[int, Floats]] = {}

    def relative_sections(self, medians_SR: Floats) -> Floats:
        """Score sections against the fastest rank."""
        return section_scores(medians_SR, _minimum_over_ranks(medians_SR))

    def relative_gpu(self, medians_KR: Floats, totals_KR: Floats) -> Floats:
        """Score GPUs against the fastest rank, kernel by kernel."""
        return gpu_scores(medians_KR, totals_KR, _minimum_over_ranks(medians_KR))

    def individual_sections(self, names: npt.NDArray[np.uint64], medians_SR: Floats) -> Floats:
        """Score sections against each rank's own best."""
        return section_scores(medians_SR, self._own_best("section", names, medians_SR))

    def individual_gpu(self, names: npt.NDArray[np.uint64], medians_KR: Floats, totals_KR: Floats) -> Floats:
        """Score GPUs against each rank's own best, kernel by kernel."""
        return gpu_scores(medians_KR, totals_KR, self._own_best("kernel", names, medians_KR))

    def _own_best(self, kind: str, names: npt.NDArray[np.uint64], medians: Floats) -> Floats:
        best = self._best.setdefault(kind, {})
        rows: list[Floats] = []
        for row, name in enumerate(names.tolist()):
            before = best.get(name)
            now = medians[row] if before is None else np.fmin(before, medians[row])
            best[name] = np.array(now)
            rows.append(best[name])
        return np.stack(rows) if rows else np.zeros((0, medians.shape[1]))

    def past(self) -> dict[str, Past]:
        """Return the best of each rank so far, of sections and of kernels."""
        found: dict[str, Past] = {}
        for kind, best in self._best.items():
            if best:
                seconds = np.stack(list(best.values())).astype(np.float32)
                found[kind] = Past(np.array(list(best), dtype=np.uint64), seconds, np.ones_like(seconds))
        return found

    def take_past(self, past: dict[str, Past]) -> None:
        """Begin with the best of each rank so far."""
        self._best = {
            kind: dict(zip(of.names.tolist(), of.seconds.astype(np.float64), strict=True)) for kind, of in past.items()
        }
