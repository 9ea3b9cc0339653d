"""Robust scoring, the default: each rank against the median of its peers, over several windows.

For every row (a section, an arrival, the GPU as a whole) and rank, with ``x`` = own median / reference - 1:

**Reference**: the median of the peer group (the ranks that do the same work). No minority can move it: unlike a
minimum, one rank with a bogus clock makes no other rank SLOW. Of two or four ranks it is the *lower* of the middle
two, so that of two ranks the faster one is the reference. A bogus fast clock is believed of one of two ranks, and
not from three ranks on.

**Level test**, against the peers: ``x`` averaged over the last ``pool`` windows is at least
``max(ratio_floor, z x spread)``, where the spread is 1.4826 x MAD over the group (with a
prior of 2.5 % that counts as much as six ranks), and z grows with the number of
comparisons (1 % chance of one false alarm over all ranks and rows if the spread were normal). The more the
machines of a job differ, the higher is its bar. Once a rank's own past is known, the bar is half as high again.

**Change test**, against one's own past: each rank's usual ``x`` is learned (a running mean that stands still
while the rank is suspect, so that slowness does not become the norm), and a one-sided CUSUM of
``x - usual - allowance`` raises an alarm at ``limit``. Allowance and limit are the larger of a floor and 2, resp.
6, times the measured noise. This is what finds a 10 % slowdown in a fleet whose ranks differ by nature by 2 %:
without a past, the slowest of 10,000 healthy ranks looks like it. It needs ``learning_windows`` windows first. A
slowdown of the whole job moves the reference too and makes no rank SLOW.

**Persistence**: SLOW only if at least ``k`` of the last ``m`` windows were near or over the bar, each for itself,
and no two windows alone can raise the CUSUM to its limit; so one or two slow windows (a garbage collection, a
checkpoint) have no effect, and a steady straggler is SLOW in the third. **Hysteresis**: SLOW ends after
``release_windows`` windows in a row under half the bar.

**UNKNOWN**: no sample, fewer than ``min_samples`` of them, no peer, or ``implausible``: steadily below a share of
the peers' time that no healthy machine reaches. UNKNOWN has no score.

The matrices are float32 and held section-major; a window costs about a dozen passes over them and three
selections. Everything that is slow in numpy (gathers, where, boolean indexing) happens on the few suspects only.
"""

from __future__ import annotations

import collections
import statistics

import numpy as np
import numpy.typing as npt

from straggler.scoring.history import RowHistory
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust_scores import IMPLAUSIBLE, LEAST_NOISE, UNKNOWN, RobustScores
from straggler.settings import RobustSettings

__all__ = ["RobustScorer"]

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

_POPCOUNT = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint8)
_KNOWN_RANK_BAR = 1.5
_PRIOR_SPREAD = 0.025
_PRIOR_RANKS = np.float32(6.0)
_NEAR = 0.7
_CLIP = 0.45
_STEP = 1.5
_LONGEST_MEMORY = 512.0
"""Windows after which the usual forgets: so long that a slow drift cannot hide in it."""


class RobustScorer:
    """Scores window after window; holds every rank's past.

    Args:
        ranks: Ranks in the job.
        settings: What SLOW means.
    """

    def __init__(self, ranks: int, settings: RobustSettings | None = None) -> None:
        self.settings = settings or RobustSettings()
        self.ranks = ranks
        self.windows = 0
        self._history = RowHistory(ranks)
        self._recent: collections.deque[Float32] = collections.deque(maxlen=max(self.settings.m, self.settings.pool))
        self._all_known = False

    def update(
        self,
        names: npt.NDArray[np.uint64],
        medians_SR: npt.NDArray[np.floating],
        *,
        num_SR: npt.NDArray[np.floating] | None = None,
        groups: PeerGroups | None = None,
    ) -> RobustScores:
        """Score one window.

        Args:
            names: Name hash of each row.
            medians_SR: Median seconds, shape ``(rows, ranks)``, NaN where a rank has none.
            num_SR: Samples behind each median; None: enough.
            groups: Who is compared with whom; None: all with all.

        Raises:
            ValueError: The shape is not that, or a median is zero, negative or infinite.
        """
        history = self._history
        medians = history.align(names, medians_SR, num_SR, self.settings.min_samples)
        peers = groups or PeerGroups.everybody(self.ranks)
        history.set_groups(peers.count > 1)
        reference = self._reference(peers, medians)
        x = medians / reference
        x -= np.float32(1.0)
        missing = np.isnan(x)
        some_missing = bool(missing.any())
        self._recent.append(x)
        pooled = self._pooled(x, some_missing)
        bar, spread = self._bar(peers, pooled)
        drift, allowance, limit = self._change_test(peers, x, missing if some_missing else None)
        self._remember(x, drift, bar, allowance)
        self._judge(pooled, drift, bar, allowance, limit)
        self._learn(x, bar, allowance, limit, missing if some_missing else None)
        window = self._window(pooled, drift, reference, spread, missing if some_missing else None)
        self.windows += 1
        return window

    def _reference(self, peers: PeerGroups, medians: Float32) -> Float32:
        return peers.middle(medians, at_least=2)

    def _pooled(self, x: Float32, some_missing: bool) -> Float32:
        """Return ``x`` averaged over the last windows that have it."""
        last = [w for w in list(self._recent)[-self.settings.pool :] if w.shape == x.shape]
        pooled = last[0] + last[1] if len(last) > 1 else np.array(last[0])
        for window in last[2:]:
            pooled += window
        pooled *= np.float32(1.0 / len(last))
        holes = np.flatnonzero(np.isnan(pooled) & ~np.isnan(x)) if len(last) > 1 else np.zeros(0, dtype=np.intp)
        if len(holes):
            pooled.flat[holes] = np.nanmean([window.flat[holes] for window in last], axis=0)
        if some_missing:
            pooled[np.isnan(x)] = np.nan
        return pooled

    def _bar(self, peers: PeerGroups, pooled: Float32) -> tuple[Float32, Float32]:
        """Return the level test's bar and the spread it rests on; shape ``(rows, 1)`` or ``(rows, ranks)``."""
        comparisons = max(pooled.size, 1)
        z = statistics.NormalDist().inv_cdf(1.0 - min(self.settings.false_alarms / comparisons, 0.5))
        spread = np.float32(1.4826) * peers.middle(np.abs(pooled))
        # A few ranks do not show the spread well: a prior of what is usual counts as much as some more ranks.
        sizes = peers.sizes().astype(np.float32)
        spread = np.sqrt((sizes * spread**2 + _PRIOR_RANKS * np.float32(_PRIOR_SPREAD) ** 2) / (sizes + _PRIOR_RANKS))
        return np.fmax(np.float32(self.settings.ratio_floor), np.float32(z) * spread), spread

    def _change_test(
        self, peers: PeerGroups, x: Float32, missing: Bools | None
    ) -> tuple[Float32 | None, Float32, Float32]:
        """Advance the CUSUM; return the drift from the usual, and the CUSUM's allowance and limit."""
        history = self._history
        settings = self.settings
        ready = history.learnt >= settings.learning_windows
        if not ready.any():
            nothing = np.full_like(history.noise, np.inf)
            return None, nothing, nothing
        drift = x - history.usual
        every = bool(ready.all())
        self._all_known = every and missing is None
        if not every:
            drift[~ready] = np.nan
        now = np.float32(1.4826) * peers.middle(np.abs(drift), upper=True)
        before = history.noise
        # Smoothed, and slow to rise: a straggler in a small group must not raise its own bar.
        smoothed = np.where(before == 0.0, now, np.fmin(before + (now - before) / 4, before * np.float32(1.2)))
        np.copyto(history.noise, np.fmax(smoothed, np.float32(LEAST_NOISE)), where=~np.isnan(smoothed))
        noise = np.fmax(history.noise, np.float32(LEAST_NOISE))
        allowance = np.fmax(np.float32(settings.change_floor), 2 * noise)
        limit = np.fmax(np.float32(settings.change_limit), 6 * noise)
        held = None if missing is None else history.cusum[missing]
        was_zero = history.cusum == 0.0
        # Clipped, so that it takes three windows to reach the limit, however slow two of them are.
        history.cusum += np.minimum(drift, allowance + np.float32(_CLIP) * limit)
        history.cusum -= allowance
        np.fmax(history.cusum, np.float32(0.0), out=history.cusum)
        np.fmin(history.cusum, 4 * limit, out=history.cusum)
        if held is not None and missing is not None:
            history.cusum[missing] = held
        history.since_change.flat[np.flatnonzero(was_zero & (history.cusum > 0.0))] = self.windows
        return drift, allowance, limit

    def _remember(self, x: Float32, drift: Float32 | None, bar: Float32, allowance: Float32) -> None:
        """Shift this window's yes or no into each cell's history."""
        history = self._history
        exceeds = x > np.float32(_NEAR) * bar
        if drift is not None:
            if self._all_known:
                exceeds = x > np.float32(_NEAR * _KNOWN_RANK_BAR) * bar
            else:
                exceeds &= np.isnan(drift) | (x > np.float32(_NEAR * _KNOWN_RANK_BAR) * bar)
            exceeds |= drift > np.float32(_STEP) * allowance
        history.since_level.flat[np.flatnonzero(exceeds & (history.bits == 0))] = self.windows
        history.bits <<= 1
        history.bits |= exceeds
        history.bits &= (1 << self.settings.m) - 1

    def _judge(self, pooled: Float32, drift: Float32 | None, bar: Float32, allowance: Float32, limit: Float32) -> None:
        """Set and end SLOW. Works on the suspects only."""
        history = self._history
        level_bar = bar
        if drift is not None:
            # A rank whose usual is known is judged by the change in it; at every further window the level test
            # would only give the noise another chance. What is far over the bar is slow in any case.
            higher = np.float32(_KNOWN_RANK_BAR) * bar
            level_bar = higher if self._all_known else np.where(np.isnan(drift), bar, higher)
        suspects = np.flatnonzero((pooled >= level_bar) | (history.cusum >= limit))
        named = suspects[_POPCOUNT[history.bits.flat[suspects]] >= self.settings.k]
        history.slow.flat[named] = True
        slow = np.flatnonzero(history.slow)
        if not len(slow):
            return
        level = pooled.flat[slow]
        bars = np.broadcast_to(bar, pooled.shape).flat[slow]
        still = level >= np.float32(0.5) * bars
        if drift is not None:
            change, allowed = drift.flat[slow], np.broadcast_to(allowance, pooled.shape).flat[slow]
            usual_again = (change <= allowed) & (level < bars)
            still = (still & ~usual_again) | (change > allowed)
        # A missing window is neither slow nor healthy: the count does not change.
        calm = np.where(np.isnan(level), history.calm.flat[slow], np.where(still, 0, history.calm.flat[slow] + 1))
        history.calm.flat[slow] = np.minimum(calm, 255)
        well = slow[calm >= self.settings.release_windows]
        history.release(well)

    def _learn(self, x: Float32, bar: Float32, allowance: Float32, limit: Float32, missing: Bools | None) -> None:
        """Move the usual towards this window, except where it is suspect."""
        history = self._history
        sound = np.abs(x) < bar
        sound &= history.cusum < np.float32(0.5) * limit
        sound &= ~history.slow
        step = x - history.usual
        if np.isfinite(allowance).all():
            # Of what is known by now, not even the first window of a change may be learnt.
            usual_step = step < np.float32(_STEP) * allowance
            sound &= usual_step if self._all_known else usual_step | (history.learnt < self.settings.learning_windows)
        if missing is not None:
            step[missing] = 0.0
        step *= sound
        history.learnt += sound
        np.fmin(history.learnt, np.float32(_LONGEST_MEMORY), out=history.learnt)
        step /= np.fmax(history.learnt, np.float32(1.0))
        history.usual += step

    def _window(
        self, pooled: Float32, drift: Float32 | None, reference: Float32, spread: Float32, missing: Bools | None
    ) -> RobustScores:
        history = self._history
        state = history.slow.astype(np.uint8)
        settings = self.settings
        if self.windows + 1 >= settings.k and self.ranks > 2:
            state.flat[np.flatnonzero(pooled <= np.float32(settings.implausible - 1.0))] = IMPLAUSIBLE
        if missing is not None:
            state[missing] = UNKNOWN
        since = history.since_level.copy()
        by_change = np.flatnonzero(history.slow & (history.since_change > since))
        since.flat[by_change] = history.since_change.flat[by_change]
        return RobustScores(
            names=history.names,
            excess=pooled,
            drift=drift if drift is not None else np.full((1, 1), np.nan, dtype=np.float32),
            state=state,
            since=since,
            reference=reference,
            spread=spread,
            noise=history.noise.copy(),
            recent=tuple(self._recent)[-settings.m :],
            k=settings.k,
            number=self.windows,
        )
