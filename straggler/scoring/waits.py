"""The share of its time that each rank waits for others, by the threads that train."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import GatheredWindows, RowMatrix
from straggler.measurement.measured import OWN_WORK_OF_AN_ITERATION, Family
from straggler.measurement.name_table import hash_name

__all__ = ["WHOLE_ROW", "has_iterations", "waited_shares"]

WHOLE_ROW = hash_name(OWN_WORK_OF_AN_ITERATION)

Floats = npt.NDArray[np.float64]


def has_iterations(own: RowMatrix) -> npt.NDArray[np.bool_]:
    """Return of which ranks the own work of iterations is known, shape ``(ranks,)``."""
    return np.asarray((own.num[own.names == np.uint64(WHOLE_ROW)] > 0).any(axis=0))


def waited_shares(gathered: GatheredWindows) -> Floats:
    """Return the share of its time each rank spent waiting for the last to arrive, shape ``(ranks,)``, NaN unknown."""
    sections, gpu = gathered.blocks[Family.SECTION], gathered.blocks[Family.WAIT]
    own = gathered.blocks[Family.OWN_WORK]
    present = gathered.present
    waits = np.zeros(gathered.world_size)
    whole = own.names == np.uint64(WHOLE_ROW)
    if whole.any():
        # What the iterations took beyond the rank's own work; the least of all ranks is the collectives themselves.
        beyond = np.where(has_iterations(own), np.maximum(gathered.elapsed - own.total[whole][0], 0.0), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((beyond - np.nanmin(beyond)) / gathered.elapsed)
    for total in (*sections.total[sections.synchronous], *gpu.total):
        # The least of all ranks is the collective itself; what exceeds it is waiting for the last rank to arrive.
        waits[present] += total[present] - total[present].min()
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(gathered.elapsed > 0.0, np.minimum(waits / gathered.elapsed, 1.0), np.nan))
