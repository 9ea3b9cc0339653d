"""Waits for a processor: a rank that other processes keep from running is not called slow for it in a few reports.

**What happens.** Own work is wall time. Where more threads are ready than the machine has cores, it holds the time that
the thread which trains was ready to run and did not. Chance gives one rank more of that than the others for some
reports, more often than the spread of a few peers tells, so a healthy rank was named.

**What is known.** For each sample of own work, what the thread waited for a processor meanwhile (``Family.ON_CORE``):
own work is scored without it (``core_work``), and what is slow only with it is WAITED. Sections of user code have no
such samples, since a reading would double what a section costs. Of a kernel that does not tell this for each sample,
and of every rank, the share of its time that the thread waited is known (``measured.STATE_FIELDS``), of which what its
CPU quota took is left out, since a quota is a fault of that rank.

**Rule.** Of a cell that is SLOW, the row's time and the rank's waits are each compared with the middle of the peers,
and summed over the windows since it began to be slow, ``_AVERAGED`` at most. The rest is what the row took longer
without the waits: of own work it was measured, of a section it is what the iterations took longer without theirs, else
it is the difference. The cell becomes WAITED if the rank waited more by 3 % of its time and by half of what the row
took longer, and the rest is under half of the cell's bar or under a fifth of all. Half, since a slow rank waits more,
too: it has more to do.

A thread that shares a core runs slower than one that has it, since others have used its caches meanwhile. So where
waits were measured for each sample, a rest of up to 12 % of the waits themselves is explained, too, and one of up to
25 % until the cell has been slow for 30 s.

What a cell was found to be holds until ``_CONTRARY`` windows in a row say otherwise. A window in which a WAITED cell is
under its bar says nothing, since an average falls later than the waits end. The row of the GPU is never explained.

The constants were chosen on live runs of four gloo ranks beside two busy processes on two cores;
``python -m benchmarks.straggler_jobs --only equal --minutes 4`` shows what is left. The price is that on such a machine
a rank that computes longer is named up to half a minute later.

**Data loaders.** Waits for workers of a data loader are told apart in the same way, and are waits here
(:mod:`straggler.measurement.loaders`). What the workers take for a batch is a row of its own, so they never last.

**Lasting waits.** A machine that is crowded for good makes a straggler that has to be told. A rank that was explained
in ``MOST_EXPLAINED`` of the last ``PERIODS`` periods, and has waited in all of them for 5 % of its time more than the
middle of its peers, stays SLOW; its verdict has the wait as the reason. A period is a window, or as many as come to
``PERIOD_SECONDS``, of which most were explained: with a report every 0.4 s, twelve windows are over in 5 s, in which
chance keeps a healthy rank waiting.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from straggler.exchange.gathered import GatheredWindows
from straggler.measurement.measured import STATE_FIELDS
from straggler.pacing import pace
from straggler.scoring.core_work import CoreWork
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust_scores import SLOW, WAITED, RobustScores

__all__ = ["MOST_EXPLAINED", "PERIODS", "PERIOD_SECONDS", "ProcessorWaits"]

PERIODS = 20
"""So many are looked back on."""
MOST_EXPLAINED = 12

PERIOD_SECONDS = 15.0

_LEAST_WAIT, _LEAST_LASTING = 0.03, 0.05
_LEAST_SHARE = 0.5
_ALL_SHARE = 0.8
_COLD_SHARE, _COLD_AT_FIRST, _COLD_SECONDS = 0.12, 0.25, 30.0
_NEAR = 0.5
_AVERAGED = 8
_CONTRARY = 3
_WAITED, _THROTTLED = STATE_FIELDS.index("cpu_waited"), STATE_FIELDS.index("cpu_throttled")
_LOADER = STATE_FIELDS.index("loader_waited")

Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class ProcessorWaits:
    """Remembers how long each rank waited for a processor, and what each of its rows took.

    Args:
        ranks: Ranks in the job.
        gpu_row: Name of the row that no such wait explains.
        batches_row: Name of that of the workers of data loaders, which wait for cores of their own.
    """

    def __init__(self, ranks: int, gpu_row: int, batches_row: int) -> None:
        self._ranks, self._gpu_row, self._batches_row = ranks, gpu_row, batches_row
        self._waits: collections.deque[Float32] = collections.deque(maxlen=_AVERAGED)
        self._shares: collections.deque[Float32] = collections.deque(maxlen=_AVERAGED)
        self._loads: collections.deque[Float32] = collections.deque(maxlen=_AVERAGED)
        self._on_core: collections.deque[Float32] = collections.deque(maxlen=_AVERAGED)
        self._ran: collections.deque[Float32] = collections.deque(maxlen=_AVERAGED)
        self._explained: collections.deque[Bools] = collections.deque(maxlen=PERIODS)
        self._period = np.zeros(ranks, dtype=int)
        """In how many windows of the period that goes on each rank was explained."""
        self._period_waits = np.zeros(ranks, dtype=np.float32)
        self._waits_of_periods: collections.deque[Float32] = collections.deque(maxlen=PERIODS)
        self._period_windows, self._period_seconds = 0, 0.0
        self._nodes = np.zeros(ranks, dtype=np.int64)
        self._causes: dict[tuple[int, int], tuple[bool, int]] = {}
        """Of each cell that is SLOW or WAITED: whether it is by waits, and the windows in a row that said otherwise."""

    def settle(
        self,
        window: RobustScores,
        gathered: GatheredWindows,
        peers: PeerGroups,
        nodes: npt.NDArray[np.int64],
        core: CoreWork,
    ) -> Floats:
        """Make those cells WAITED that are SLOW for a wait which does not last.

        Args:
            window: The scores against the peers; its states are changed.
            gathered: What the ranks sent.
            peers: Who is compared with whom.
            nodes: Number of each rank's node.
            core: What is known of the own work without such waits.

        Returns:
            The share of its time that each rank waited which waits explain, shape ``(ranks,)``, NaN of the others.
        """
        waits = gathered.device[:, _WAITED] - np.nan_to_num(gathered.device[:, _THROTTLED])
        waits = np.where(np.isnan(core.waited), waits, core.waited)
        self._nodes = nodes
        pace()
        self._loads.append(np.nan_to_num(gathered.device[:, _LOADER]).astype(np.float32))
        self._waits.append(np.where(waits < 0.0, 0.0, waits).astype(np.float32))
        self._ran.append(core.ran.astype(np.float32))
        pace()
        for kept, spent in ((self._shares, core.with_waits), (self._on_core, core.on_core)):
            with np.errstate(invalid="ignore", divide="ignore"):
                shares = np.where((spent > 0.0) & (gathered.elapsed > 0.0), spent / gathered.elapsed, np.nan)
            kept.append(shares.astype(np.float32))
        pace()
        told = np.full(self._ranks, np.nan)
        explained = np.zeros(self._ranks, dtype=bool)
        before, self._causes = self._causes, {}
        known = gathered.elapsed[gathered.elapsed > 0.0]
        length = float(np.median(known)) if len(known) else 0.0
        for row, rank in np.argwhere(core.by_waits).tolist():
            explained[rank] = True
            self._causes[row, rank] = (True, 0)
        for row in np.flatnonzero((window.state == SLOW).any(axis=1)).tolist():
            if int(window.names[row]) == self._gpu_row:
                continue
            explains = self._explains(window, row, peers, length)
            for rank in np.flatnonzero(window.state[row] == SLOW).tolist():
                says = bool(explains[rank])
                explained[rank] |= says
                cause, contrary = before.get((row, rank), (says, 0))
                if says == cause:
                    contrary = 0
                elif cause is False or window.excess[row, rank] >= window.bar[row, rank]:
                    contrary += 1
                self._causes[row, rank] = (cause, contrary) if contrary < _CONTRARY else (says, 0)
        pace()
        self._end_of_window(explained, length)
        pace()
        lasting = self._lasting(peers)
        for (row, rank), (cause, _) in self._causes.items():
            if cause:
                window.state[row, rank] = SLOW if lasting[rank] else WAITED
                heard = [share for each in self._waits if (share := float(each[rank])) == share]
                told[rank] = sum(heard) / len(heard) if heard else np.nan
        pace()
        return told

    def _lasting(self, peers: PeerGroups) -> Bools:
        """Return which ranks have been explained for so long that they are to be named, shape ``(ranks,)``."""
        lasting = np.asarray(sum(self._explained, np.zeros(self._ranks, dtype=int)) >= MOST_EXPLAINED)
        if lasting.any():
            # Chance keeps each rank waiting now and then. Over all of the periods it is the same for equal ranks.
            waits = np.stack(self._waits_of_periods).mean(axis=0, keepdims=True, dtype=np.float32)
            lasting &= (waits - peers.middle(waits, at_least=2))[0] >= _LEAST_LASTING
        return lasting

    def _end_of_window(self, explained: Bools, seconds: float) -> None:
        """Add a window to the period that goes on, and end that if it is long enough."""
        self._period += explained
        self._period_windows += 1
        self._period_seconds += seconds
        self._period_waits += np.nan_to_num(np.maximum(self._waits[-1] - self._loads[-1], 0.0))
        if self._period_seconds >= PERIOD_SECONDS:
            self._explained.append(2 * self._period > self._period_windows)
            self._waits_of_periods.append((self._period_waits / self._period_windows).astype(np.float32))
            self._period, self._period_waits = np.zeros_like(self._period), np.zeros_like(self._period_waits)
            self._period_windows, self._period_seconds = 0, 0.0

    def _is_busy(self, windows: Sequence[int]) -> Bools:
        """Return on which ranks' nodes some rank has waited for a core, shape ``(ranks,)``."""
        core = [np.nan_to_num(self._waits[number] - self._loads[number]) for number in windows]
        most = np.zeros(int(self._nodes.max(initial=0)) + 1)
        np.maximum.at(most, self._nodes, np.stack(core).mean(axis=0))
        return np.asarray(most[self._nodes] >= _LEAST_WAIT)

    def _explains(self, window: RobustScores, row: int, peers: PeerGroups, seconds_of_a_window: float) -> Bools:
        """Return which ranks are slow in a row by what they waited for a processor, shape ``(ranks,)``."""
        known = [number for number, shares in enumerate(self._shares) if row < len(shares)]
        waits = np.stack([self._waits[number] for number in known])
        shares = np.stack([self._shares[number][row] for number in known])
        of_row = np.stack([self._on_core[number][row] for number in known])
        ran = np.stack([self._ran[number] for number in known])
        loads = np.stack([self._loads[number] for number in known])
        if int(window.names[row]) == self._batches_row:
            loads = np.zeros_like(loads)  # it is the workers that have worked and waited
        # Of own work the waits of just this row are known; elsewhere all that the rank waited may have been here.
        all_waits = np.where(np.isnan(of_row), waits, shares - of_row)
        # It is scored without waits for workers, which therefore explain nothing of it.
        waits = np.where(np.isnan(of_row), waits, all_waits - loads)
        usual = np.broadcast_to(peers.middle(shares, at_least=2), shares.shape)
        more_waits, costs = waits - peers.middle(waits, at_least=2), shares - usual
        ages = np.arange(len(waits), 0, -1)[:, None]
        counts = ~np.isnan(more_waits + costs) & (ages <= window.number - window.since[row] + 1)
        more_wait, cost, of_peers = (np.where(counts, v, 0.0).sum(axis=0) for v in (more_waits, costs, usual))
        is_much = (more_wait >= _LEAST_WAIT * np.maximum(counts.sum(axis=0), 1)) & (more_wait >= _LEAST_SHARE * cost)
        # What a section takes longer without waits makes the iteration longer by as much.
        runs = np.where(np.isnan(of_row), ran, of_row)
        more_run = runs - peers.middle(runs, at_least=2)
        rest = np.where(counts, np.where(np.isnan(more_run), costs - more_waits, more_run), 0.0).sum(axis=0)
        is_little = rest < _NEAR * window.bar[row] * of_peers
        # On a busy machine others use the caches while a thread sleeps, whatever it waits for.
        cold = np.where(self._is_busy(known), all_waits, all_waits - loads)
        wait = np.where(counts & ~np.isnan(runs), np.maximum(cold, 0.0), 0.0).sum(axis=0)
        age = (window.number - window.since[row] + 1) * seconds_of_a_window
        share = np.where(age < _COLD_SECONDS, _COLD_AT_FIRST, _COLD_SHARE)
        is_cold = (wait >= _LEAST_WAIT * np.maximum(counts.sum(axis=0), 1)) & (rest <= share * wait)
        return np.asarray((is_much & ((rest <= (1.0 - _ALL_SHARE) * cost) | is_little)) | is_cold)
