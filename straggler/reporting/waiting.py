"""What the job loses: the share of its time that each rank waits for the last to arrive.

The own work of iterations tells what the thread that trains waits. With NCCL that thread does not wait: a collective
returns at once, and the kernel of the collective waits on the GPU. Both are counted, and the larger of the two stands,
since the thread may wait for the same kernel later.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection

import attrs
import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import GatheredWindows
from straggler.measurement.measured import Family
from straggler.scoring.scorer import WHOLE_ROW, Scores

__all__ = ["Waiting", "share_waited", "waiting"]

Floats = npt.NDArray[np.float64]


@attrs.frozen
class Waiting:
    """How much the ranks wait that are not the last.

    Args:
        median: Of their shares of time, 0.66 for 66 %.
        most: The largest share.
        is_least: Whether they may wait more: iterations are not measured, or the waits are those of sampled kernels.
    """

    median: float
    most: float
    is_least: bool


def waiting(scores: Scores, gathered: GatheredWindows, slow: Collection[int]) -> Waiting | None:
    """Return what the ranks lose that are not slow; None where nothing tells.

    Args:
        scores: Of all ranks.
        gathered: What the ranks sent.
        slow: Ranks that the others wait for.
    """
    share = share_waited(scores, gathered)
    others = np.ones(len(share), dtype=bool)
    others[list(slow)] = False
    known = share[others & ~np.isnan(share)]
    if not known.size:
        return None
    by_threads = np.nan_to_num(scores.waited)[others].max(initial=0.0)
    most = float(known.max())
    return Waiting(float(np.median(known)), most, not _has_iterations(gathered) or most > float(by_threads))


def share_waited(scores: Scores, gathered: GatheredWindows) -> Floats:
    """Return the share of its time that each rank waited for the last to arrive, shape ``(ranks,)``, NaN unknown."""
    sections = gathered.blocks[Family.SECTION]
    kernels = _beyond_least(gathered.blocks[Family.WAIT].total)
    with np.errstate(invalid="ignore", divide="ignore"):
        by_kernels = np.where(gathered.elapsed > 0.0, np.minimum(kernels / gathered.elapsed, 1.0), np.nan)
    if not _has_iterations(gathered) and not sections.synchronous.any():
        return by_kernels  # the scores say 0 where they know of no wait
    return np.fmax(scores.waited, by_kernels)


def _has_iterations(gathered: GatheredWindows) -> bool:
    return bool((gathered.blocks[Family.OWN_WORK].names == np.uint64(WHOLE_ROW)).any())


def _beyond_least(total: Floats) -> Floats:
    """Return the seconds of each rank beyond the least of all ranks, which is the collective itself."""
    if not total.size:
        return np.full(total.shape[1], np.nan)
    known = np.where(total > 0.0, total, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a row that no rank has
        beyond = known - np.nanmin(known, axis=1, keepdims=True)
    return np.where(np.isnan(beyond).all(axis=0), np.nan, np.nansum(beyond, axis=0))
