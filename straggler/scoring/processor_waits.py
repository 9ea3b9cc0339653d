"""Waits for a processor: a rank that other processes keep from running is not called slow for it in a few reports.

**What happens.** Own work is wall time. Where more threads are ready than the machine has cores, it holds the time that
the thread which trains was ready to run and did not. Chance gives one rank more of that than the others for some
reports, more often than the spread of a few peers tells, so a healthy rank was named.

**What is known.** One number a report: the share of its time that the thread waited for a processor
(``measured.STATE_FIELDS``), of which what its CPU quota took is left out, since a quota is a fault of that rank. Of the
two cures that this allows,

* the wait could be taken out of the own work before that is scored. Nothing tells in which iterations and sections the
  wait was, so a median cannot be corrected. A rank whose collective has ended waits for a processor, too, so the most
  would be taken from ranks that have waited for others: where three quarters of the own work are such waits, what is
  left of a fast rank's would be too little, and it would be the reference.
* Built is the other: judge as before, and ask only of what is SLOW whether the wait explains it. No reference and no
  spread moves, and without waits every verdict is what it was.

**Rule.** Of a cell that is SLOW, the row's time and the rank's waits are each compared with the middle of the peers,
and summed over the windows since it began to be slow, ``_AVERAGED`` at most. It becomes WAITED if the rank waited more
by 3 % of its time and by half of what the row took longer, and the rest is under half of the cell's bar or under a
fifth of all. Half, since a slow rank waits more, too: it has more to do. What a cell was found to be holds until
``_CONTRARY`` windows in a row say otherwise. A window in which a WAITED cell is under its bar says nothing, since an
average falls later than the waits end. The row of the GPU is never explained.

The constants were chosen on windows recorded on 2026-11-27, which are not kept, of four gloo ranks beside three busy
processes on two cores. ``python -m benchmarks.straggler_jobs --only "equal, nothing marked, 4" --minutes 2`` names
nobody in 281 reports on that day. The price is that a slow rank on such a machine is named some reports later.

**Lasting waits.** A machine that is crowded for good makes a straggler that has to be told. A rank that was explained
in ``MOST_EXPLAINED`` of the last ``PERIODS`` periods stays SLOW; its verdict has the wait as the reason. A period is a
window, or as many as come to ``PERIOD_SECONDS``, of which most were explained: with a report every 0.4 s, twelve
windows are over in 5 s, in which chance keeps a healthy rank waiting.
"""

from __future__ import annotations

import collections

import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import GatheredWindows
from straggler.measurement.measured import STATE_FIELDS
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust_scores import SLOW, WAITED, RobustScores

__all__ = ["MOST_EXPLAINED", "PERIODS", "PERIOD_SECONDS", "ProcessorWaits"]

PERIODS = 20
"""So many are looked back on."""
MOST_EXPLAINED = 12

PERIOD_SECONDS = 15.0

_LEAST_WAIT = 0.03
_LEAST_SHARE = 0.5
_ALL_SHARE = 0.8
_NEAR = 0.5
_AVERAGED = 8
_CONTRARY = 3
_WAITED, _THROTTLED = STATE_FIELDS.index("cpu_waited"), STATE_FIELDS.index("cpu_throttled")

Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class ProcessorWaits:
    """Remembers how long each rank waited for a processor, and what each of its rows took.

    Args:
        ranks: Ranks in the job.
        gpu_row: Name of the row that no such wait explains.
    """

    def __init__(self, ranks: int, gpu_row: int) -> None:
        self._ranks, self._gpu_row = ranks, gpu_row
        self._waits: collections.deque[Float32] = collections.deque(maxlen=_AVERAGED)
        self._shares: collections.deque[Float32] = collections.deque(maxlen=_AVERAGED)
        self._explained: collections.deque[Bools] = collections.deque(maxlen=PERIODS)
        self._period = np.zeros(ranks, dtype=int)
        """In how many windows of the period that goes on each rank was explained."""
        self._period_windows, self._period_seconds = 0, 0.0
        self._causes: dict[tuple[int, int], tuple[bool, int]] = {}
        """Of each cell that is SLOW or WAITED: whether it is by waits, and the windows in a row that said otherwise."""

    def settle(self, window: RobustScores, gathered: GatheredWindows, seconds: Floats, peers: PeerGroups) -> Floats:
        """Make those cells WAITED that are SLOW for a wait which does not last.

        Args:
            window: The scores against the peers; its states are changed.
            gathered: What the ranks sent.
            seconds: Each rank's time in each row of ``window``, shape ``(rows, ranks)``.
            peers: Who is compared with whom.

        Returns:
            The share of its time that each rank waited which waits explain, shape ``(ranks,)``, NaN of the others.
        """
        waits = gathered.device[:, _WAITED] - np.nan_to_num(gathered.device[:, _THROTTLED])
        self._waits.append(np.where(waits < 0.0, 0.0, waits).astype(np.float32))
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.where((seconds > 0.0) & (gathered.elapsed > 0.0), seconds / gathered.elapsed, np.nan)
        self._shares.append(shares.astype(np.float32))
        told = np.full(self._ranks, np.nan)
        explained = np.zeros(self._ranks, dtype=bool)
        before, self._causes = self._causes, {}
        for row in np.flatnonzero((window.state == SLOW).any(axis=1)).tolist():
            if int(window.names[row]) == self._gpu_row:
                continue
            by_waits = self._by_waits(window, row, peers)
            for rank in np.flatnonzero(window.state[row] == SLOW).tolist():
                says = bool(by_waits[rank])
                explained[rank] |= says
                cause, contrary = before.get((row, rank), (says, 0))
                if says == cause:
                    contrary = 0
                elif cause is False or window.excess[row, rank] >= window.bar[row, rank]:
                    contrary += 1
                self._causes[row, rank] = (cause, contrary) if contrary < _CONTRARY else (says, 0)
        self._end_of_window(explained, gathered)
        lasting = sum(self._explained, np.zeros(self._ranks, dtype=int)) >= MOST_EXPLAINED
        for (row, rank), (cause, _) in self._causes.items():
            if cause:
                window.state[row, rank] = SLOW if lasting[rank] else WAITED
                known = [share for each in self._waits if (share := float(each[rank])) == share]
                told[rank] = sum(known) / len(known) if known else np.nan
        return told

    def _end_of_window(self, explained: Bools, gathered: GatheredWindows) -> None:
        """Add a window to the period that goes on, and end that if it is long enough."""
        known = gathered.elapsed[gathered.elapsed > 0.0]
        self._period += explained
        self._period_windows += 1
        self._period_seconds += float(np.median(known)) if len(known) else 0.0
        if self._period_seconds >= PERIOD_SECONDS:
            self._explained.append(2 * self._period > self._period_windows)
            self._period, self._period_windows, self._period_seconds = np.zeros_like(self._period), 0, 0.0

    def _by_waits(self, window: RobustScores, row: int, peers: PeerGroups) -> Bools:
        """Return which ranks are slow in a row by what they waited for a processor, shape ``(ranks,)``."""
        known = [number for number, shares in enumerate(self._shares) if row < len(shares)]
        waits = np.stack([self._waits[number] for number in known])
        shares = np.stack([self._shares[number][row] for number in known])
        usual = np.broadcast_to(peers.middle(shares, at_least=2), shares.shape)
        more_waits, costs = waits - peers.middle(waits, at_least=2), shares - usual
        ages = np.arange(len(waits), 0, -1)[:, None]
        counts = ~np.isnan(more_waits + costs) & (ages <= window.number - window.since[row] + 1)
        more_wait, cost, of_peers = (np.where(counts, v, 0.0).sum(axis=0) for v in (more_waits, costs, usual))
        is_much = (more_wait >= _LEAST_WAIT * np.maximum(counts.sum(axis=0), 1)) & (more_wait >= _LEAST_SHARE * cost)
        is_rest_near = cost - more_wait >= _NEAR * window.bar[row] * of_peers
        return np.asarray(is_much & ((more_wait >= _ALL_SHARE * cost) | ~is_rest_near))
