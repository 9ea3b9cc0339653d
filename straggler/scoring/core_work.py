"""Own work without what a rank waited for a core, and with it.

Own work is scored without these waits where the kernel tells them for each sample (``Family.ON_CORE``): other
processes of a machine then change neither a rank's score nor the spread that it is compared with, and who computes
longer is found beside them as on a quiet machine. With the waits the same rows are scored apart, since a rank that is
kept from running for long makes the others wait, too; :mod:`straggler.scoring.processor_waits` says when.

What the quota of its own control group took from a rank is a fault of that rank, and the kernel counts it as a wait
for a core in part, so of a rank that was throttled all of its own work counts.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import GatheredWindows, RowMatrix
from straggler.measurement.measured import STATE_FIELDS, Family
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust import RobustScorer
from straggler.scoring.robust_scores import SLOW, RobustScores
from straggler.scoring.waits import WHOLE_ROW

__all__ = ["CoreWork", "CoreWorkScorer", "own_rows"]

_THROTTLED = STATE_FIELDS.index("cpu_throttled")
_LEAST_THROTTLED = 0.005
"""Share of its time from which on a rank's quota counts."""

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def own_rows(gathered: GatheredWindows) -> tuple[RowMatrix, Bools]:
    """Return the own work that is scored, and where it is without waits for a core, shape ``(rows, ranks)``."""
    own, core = gathered.blocks[Family.OWN_WORK], gathered.blocks[Family.ON_CORE]
    rows = np.flatnonzero(np.isin(own.names, core.names))
    places = np.searchsorted(core.names, own.names[rows])
    known = np.zeros(own.med.shape, dtype=bool)
    known[rows] = (core.num[places] > 0) & (own.num[rows] > 0)
    known[(known != (own.num > 0)).any(axis=1)] = False  # with and without, ranks could not be compared
    known &= ~(gathered.device[:, _THROTTLED] >= _LEAST_THROTTLED)

    def without(own_values: Floats, core_values: Floats) -> Floats:
        values = own_values.copy()
        values[rows] = np.where(known[rows], core_values[places], values[rows])
        return values

    med, mean = without(own.med, core.med), without(own.mean, core.mean)
    num, total = without(own.num, core.num), without(own.total, core.total)
    errors = without(own.med_error, core.med_error), without(own.mean_error, core.mean_error)
    return attrs.evolve(own, med=med, mean=mean, num=num, total=total, med_error=errors[0], mean_error=errors[1]), known


@attrs.frozen
class CoreWork:
    """What waits for a core have to do with each rank's time.

    Args:
        waited: Share of its time that a rank's own work waited for a core, shape ``(ranks,)``, NaN where not known.
        ran: Share of its time that its own work took without these waits, alike.
        with_waits: Seconds of each row of the scores, shape ``(rows, ranks)``.
        on_core: The same without these waits, NaN where not known.
        by_waits: Cells that are slow with these waits alone.
    """

    waited: Floats
    ran: Floats
    with_waits: Floats
    on_core: Floats
    by_waits: Bools


class CoreWorkScorer:
    """Scores own work with the waits for a core in it, and compares.

    Args:
        scorer: Holds every rank's past of these rows.
    """

    def __init__(self, scorer: RobustScorer) -> None:
        self._scorer = scorer

    def compare(
        self,
        window: RobustScores,
        seconds: Floats,
        gathered: GatheredWindows,
        own: RowMatrix,
        known: Bools,
        peers: PeerGroups,
    ) -> CoreWork:
        """Find what is slow with these waits alone; of such cells ``window`` and ``seconds`` show it from now on.

        Args:
            window: The scores without; what is shown of the cells is changed, and their state is not.
            seconds: Each rank's time in each row of ``window``, shape ``(rows, ranks)``.
            gathered: What the ranks sent.
            own: From :func:`own_rows`, as ``known``.
            known: Where own work is without these waits.
            peers: Who is compared with whom.
        """
        all_own = gathered.blocks[Family.OWN_WORK]
        scores = self._scorer.update(
            all_own.names,
            all_own.med,
            num_SR=all_own.num,
            means_SR=all_own.mean,
            errors_SR=(all_own.med_error, all_own.mean_error),
            groups=peers,
        )
        with_waits, on_core = seconds.copy(), np.full(seconds.shape, np.nan)
        waited, ran = np.full(gathered.world_size, np.nan), np.full(gathered.world_size, np.nan)
        by_waits = np.zeros(window.state.shape, dtype=bool)
        places = {name: row for row, name in enumerate(window.names.tolist())}
        for row, name in enumerate(all_own.names.tolist()):
            place, total = places[name], all_own.total[row]
            with_waits[place] = total
            on_core[place] = np.where(known[row], own.total[row], np.nan)
            if name == WHOLE_ROW:
                with np.errstate(invalid="ignore", divide="ignore"):
                    waited = np.where(gathered.elapsed > 0.0, (total - on_core[place]) / gathered.elapsed, np.nan)
                    ran = np.where(gathered.elapsed > 0.0, on_core[place] / gathered.elapsed, np.nan)
        for row, name in enumerate(scores.names.tolist()):
            place = places[name]
            cells = (scores.state[row] == SLOW) & (window.state[place] != SLOW) & ~np.isnan(on_core[place])
            by_waits[place] = cells
            for shown in ("excess", "strength", "bar", "since", "in_means"):
                getattr(window, shown)[place, cells] = getattr(scores, shown)[row, cells]
            seconds[place, cells] = with_waits[place, cells]
        return CoreWork(waited, ran, with_waits, on_core, by_waits)
