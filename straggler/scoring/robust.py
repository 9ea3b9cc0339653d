"""Robust scoring, the default: each rank against the median of its peers, over several windows.

For every row (a section, an arrival, the GPU as a whole) and rank two statistics are judged: the median of a window,
and its mean, which alone shows a rank of which some steps are slow. Of each, ``y`` = log(own / reference):

**Reference**: the median of the peer group (the ranks that do the same work). No minority can move it: unlike a
minimum, one rank with a bogus clock makes no other rank SLOW. Of two or four ranks it is the *lower* of the middle
two, so that of two ranks the faster one is the reference. A bogus fast clock is believed of one of two ranks, and
not from three ranks on.

**Scales**: ``y`` is averaged over the last 3, 8 and 20 windows (``pools``; moving averages, Roberts 1959), means over
8 and 20 only. A large slowness shows in three reports, a small one in much noise in twenty.

**Level test**, against the peers: the average is at least ``max(ratio_floor, z x spread)``, and more than the rank's
own noise explains (``cell_noise``). The spread (``spreads``) is measured over the ranks at the same scale, so that it
holds what lasts, too: noise that is correlated over windows makes averages vary more. In a rank's first windows ``z``
is for one false name in a job (``false_alarms``; a hundredth of it, of Student's t, from 48 peers on), later for one in
``1 / false_alarms_per_day`` days. Where ranks of a node are alike, a rank is far over the other nodes or over its own.

**Change test**, against one's own past: the average, less what the rank has shown before the pool. Bar:
``max(change_floor, t x spread)`` with the t quantile of as many degrees as the spread rests on (Smyth 2004, Wallace
1959). The past never holds the pool, and nothing of a rank that is SLOW, so that slowness does not become the norm. It
needs ``learning_windows`` windows before the pool. A slowdown of the whole job moves the reference too.

**Persistence**: SLOW only if at least ``k`` of the last ``m`` windows, and 60 % of those of a longer pool, were over
half the bar, each for itself, and a window counts for two bars at most (Winsor's rule, Tukey 1962). So a garbage
collection or a checkpoint has no effect, and a steady straggler is SLOW in the third report. **Hysteresis**: SLOW ends
after ``release_windows`` windows in a row that are not near a bar themselves, and in which the average at the same
scale is under half of the bar it was over.

**UNKNOWN**: no sample, fewer than ``min_samples`` of them, no peer, or ``implausible``: steadily below a share of
the peers' time that no healthy machine reaches. UNKNOWN has no score. UNSURE, which a report calls UNKNOWN with its
reason: over the floor for long and not over the bar, or slow as a whole group that nobody declared (``modes``).

Another shape, a CUSUM per rank with limits from its own noise (Page 1954), finds 5 % sooner, but is wrong for noise
that lasts: of an AR(1) healthy ranks were named several times a day. Peers show that noise.
"""

from __future__ import annotations

import collections
import math

import numpy as np
import numpy.typing as npt

from straggler.pacing import pace
from straggler.scoring.found import LEVEL, Floors, Found
from straggler.scoring.history import RowHistory, average_of_last, began, lasts
from straggler.scoring.modes import UndeclaredGroups, is_of_a_node
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust_scores import IMPLAUSIBLE, OF_MEANS, OK, UNKNOWN, UNSURE, RobustScores
from straggler.scoring.spreads import Quantiles
from straggler.scoring.track import Track
from straggler.settings import RobustSettings

__all__ = ["RobustScorer"]

Float32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Cells = npt.NDArray[np.intp]
Errors = tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]

_LONGER_SCALES = (8, 20)
_MEAN_LEVEL = 0.07
_MEAN_CHANGE = 0.05


class RobustScorer:
    """Scores window after window; holds every rank's past.

    Args:
        ranks: Ranks in the job.
        settings: What SLOW means.
    """

    _has_level = True
    _longer: tuple[int, ...] = _LONGER_SCALES

    def __init__(self, ranks: int, settings: RobustSettings | None = None) -> None:
        self.settings = settings = settings or RobustSettings()
        self.ranks = ranks
        self.windows = 0
        self._history = RowHistory(ranks, 2)
        self._recent: collections.deque[Float32] = collections.deque(maxlen=max(settings.m, settings.pool))
        self._scales = (settings.pool, *(s for s in self._longer if s > settings.pool))
        level, change = math.log1p(settings.ratio_floor), math.log1p(settings.change_floor)
        self._tracks = [
            Track(
                ranks,
                self._scales[place:] or self._scales[-1:],
                floors,
                settings.learning_windows,
                both_sides=place == 1,
                has_level=self._has_level,
            )
            for place, floors in enumerate(
                (Floors(level, change), Floors(max(level, _MEAN_LEVEL), max(change, _MEAN_CHANGE)))
            )
        ]
        self._statistics = 1
        self._missing: Bools | None = None
        self._groups = UndeclaredGroups(ranks)

    def update(
        self,
        names: npt.NDArray[np.uint64],
        medians_SR: npt.NDArray[np.floating],
        *,
        num_SR: npt.NDArray[np.floating] | None = None,
        means_SR: npt.NDArray[np.floating] | None = None,
        errors_SR: Errors | None = None,
        groups: PeerGroups | None = None,
    ) -> RobustScores:
        """Score one window.

        Args:
            names: Name hash of each row.
            medians_SR: Median seconds, shape ``(rows, ranks)``, NaN where a rank has none.
            num_SR: Samples behind each median; None: enough.
            means_SR: Mean seconds; None: only medians are judged.
            errors_SR: Standard errors of the medians and of the means, by themselves: 0.02 is 2 %; None: not known.
            groups: Who is compared with whom; None: all with all.

        Raises:
            ValueError: The shape is not that, or a median is zero, negative or infinite.
        """
        history = self._history
        medians = history.align(names, medians_SR, num_SR, self.settings.min_samples)
        peers = groups or PeerGroups.everybody(self.ranks)
        pace()
        reference = self._reference(peers, medians)
        x = medians / reference
        y = [np.log(x)]
        x -= np.float32(1.0)
        missing = np.isnan(x)
        self._statistics, self._missing = 1 + (means_SR is not None), missing if missing.any() else None
        self._recent.append(x)
        if means_SR is not None:
            means_SR = np.where(np.isnan(medians_SR), np.nan, means_SR)
            means = history.align(names, means_SR, num_SR, self.settings.min_samples)
            y.append(np.log(means / self._reference(peers, means)))
        pace()
        pooled = average_of_last(list(self._recent)[-self.settings.pool :], self._missing is not None)
        errors = [history.place(names, of) for of in errors_SR or ()]
        found = self._test(y, errors, self._missing, peers)
        pace()
        self._judge(found)
        self._show(pooled)
        pace()
        window = self._window(pooled, peers, reference, self._missing)
        self.windows += 1
        return window

    def _reference(self, peers: PeerGroups, medians: Float32) -> Float32:
        return peers.middle(medians, at_least=2)

    def _test(
        self, y: list[Float32], errors: list[Float32], missing: Bools | None, peers: PeerGroups
    ) -> list[tuple[int, Found]]:
        """Advance each statistic; return what is over a bar."""
        history = self._history
        zs = Quantiles.of(self.settings, max(y[0].size, 1))
        frozen = history.slow | (history.held > 0)
        found: list[tuple[int, Found]] = []
        for number, (values, track) in enumerate(zip(y, self._tracks, strict=False)):
            known = errors[number] if errors else None
            found += [(number, one) for one in track.advance(values, missing, peers, frozen, history.slow, zs, known)]
            bits = history.bits[number]
            kept = bits[missing] if missing is not None else bits[:0]
            bits <<= np.uint32(1)
            bits |= track.near
            if missing is not None:
                bits[missing] = kept
        return found

    def _judge(self, found: list[tuple[int, Found]]) -> None:
        """Set and end SLOW. Works on the suspects only."""
        history = self._history
        for number, one in sorted(found, key=lambda pair: self._tracks[pair[0]].pools.scales[pair[1].place]):
            scale = self._tracks[number].pools.scales[one.place]
            seen = self._tracks[number].pools.seen.flat[one.cells]
            enough = lasts(history.bits[number].flat[one.cells], scale, seen, self.settings)
            new = enough & ~history.slow.flat[one.cells]
            if not len(cells := one.cells[new]):
                continue
            bars = one.bars[new]
            history.slow.flat[cells] = True
            history.test.flat[cells] = (number * 2 + one.kind) * 8 + one.place
            history.bar.flat[cells] = bars
            history.calm.flat[cells] = 0
            history.strength.flat[cells] = one.values[new] / bars
            history.since.flat[cells] = self.windows - began(history.bits[number].flat[cells], max(scale, 8))
            fresh = cells[history.held.flat[cells] == 0]
            history.held.flat[cells] = 0
            for track in self._tracks[: self._statistics]:
                track.pools.set_apart(scale, fresh)
        self._release()

    def _release(self) -> None:
        history = self._history
        held = np.flatnonzero(history.held)
        if len(held):
            history.held.flat[held] -= np.uint8(1)
            over = held[history.held.flat[held] == 0]
            for track in self._tracks[: self._statistics]:
                track.pools.take_back(over)
        slow = np.flatnonzero(history.slow)
        if not len(slow):
            return
        tests, values = history.test.flat[slow], np.zeros(len(slow), dtype=np.float32)
        near = np.zeros(len(slow), dtype=bool)
        for test in np.unique(tests).tolist():
            which, place = divmod(test, 8)
            number, kind = divmod(which, 2)
            same = tests == test
            values[same] = self._tracks[number].value_of(kind, place, slow[same])
            near[same] = history.bits[number].flat[slow[same]] & np.uint32(1) > 0
        history.strength.flat[slow] = np.maximum(history.strength.flat[slow], values / history.bar.flat[slow])
        still = (values >= np.float32(0.5) * history.bar.flat[slow]) | near
        calm = np.where(still, 0, history.calm.flat[slow] + 1)
        if self._missing is not None:
            # A missing window is neither slow nor healthy: the count does not change.
            calm = np.where(self._missing.flat[slow], history.calm.flat[slow], calm)
        history.calm.flat[slow] = np.minimum(calm, 255)
        history.release(slow[calm >= self.settings.release_windows], self._scales[-1])

    def _unsure(self, pooled: Float32) -> Cells:
        """Return which cells have been over the floor for long, though under their bar; show by how much."""
        history, scale, found = self._history, self._scales[-1], [np.zeros(0, dtype=np.intp)]
        for bits, track in zip(history.bits, self._tracks[: self._statistics], strict=False):
            cells = track.above[~history.slow.flat[track.above]]
            # Of a few peers it is known that this is no noise; of many, the bars say what is usual.
            is_so = lasts(bits.flat[cells], scale, track.pools.seen.flat[cells], self.settings)
            is_so |= track.noise.is_known(cells)
            found.append(cells := cells[is_so])
            shown = np.expm1(track.pools.average_of(len(track.pools.scales) - 1, cells))
            pooled.flat[cells] = np.maximum(pooled.flat[cells], shown)  # NaN stays
        return np.concatenate(found)

    def _find_groups(self, peers: PeerGroups, state: Bytes) -> None:
        """Look for undeclared groups of ranks, and name none of them as slow for what it has always been."""
        history, track = self._history, self._tracks[0]
        if peers.count > 1 or not self._has_level or self.windows + 1 < self.settings.k:
            self._groups.clear()
            return
        always = history.slow & ((history.test >> np.uint8(3)) % 2 == LEVEL)
        always.flat[track.changed(np.flatnonzero(always))] = False
        self._groups.look(self.windows, history.names, track.level_of, track.level_spread[:, 0], always)
        for row, splits in self._groups.splits.items():
            if not is_of_a_node(splits[-1], peers.nodes):
                state[row, always[row] & splits[0]] = UNSURE

    def _show(self, pooled: Float32) -> None:
        """Of what is SLOW, show the excess over the peers in the statistic and at the scale that it is slow in."""
        history = self._history
        slow = np.flatnonzero(history.slow)
        for test in np.unique(history.test.flat[slow]).tolist():
            which, place = divmod(test, 8)
            cells = slow[history.test.flat[slow] == test]
            if which // 2 or place:
                shown = np.expm1(self._tracks[which // 2].pools.average_of(place, cells))
                pooled.flat[cells] = np.where(np.isnan(pooled.flat[cells]), pooled.flat[cells], shown)

    def _window(self, pooled: Float32, peers: PeerGroups, reference: Float32, missing: Bools | None) -> RobustScores:
        history = self._history
        state, settings = history.slow.astype(np.uint8), self.settings
        if self.windows + 1 >= settings.k and self.ranks > 2:
            state.flat[self._tracks[0].far_below(np.flatnonzero(pooled <= settings.implausible - 1.0))] = IMPLAUSIBLE
        unsure = self._unsure(pooled)
        state.flat[unsure] = np.where(state.flat[unsure] == OK, UNSURE, state.flat[unsure])
        pace()
        self._find_groups(peers, state)
        pace()
        if missing is not None:
            state[missing] = UNKNOWN
        track = self._tracks[0]
        return RobustScores(
            names=history.names,
            excess=pooled,
            drift=track.drift if track.drift is not None else np.full((1, 1), np.nan, dtype=np.float32),
            state=state,
            since=history.since.copy(),
            reference=reference,
            spread=peers.spread_out(track.level_spread),
            noise=peers.spread_out(track.change_spread),
            recent=tuple(self._recent)[-settings.m :],
            k=settings.k,
            number=self.windows,
            strength=np.where(history.slow, history.strength, np.float32(0.0)),
            level_bar=np.expm1(np.maximum.reduce([t.longest_bars(unsure) for t in self._tracks[: self._statistics]])),
            in_means=history.slow & (history.test >= OF_MEANS),
            bar=np.expm1(np.where(history.slow, history.bar, np.float32(0.0))),
            groups=self._groups.told(),
        )
