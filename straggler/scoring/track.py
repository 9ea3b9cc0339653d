"""One statistic of every row and rank, tested at several scales: against the peers, and against the rank's own past."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.pacing import pace, paced
from straggler.scoring.alike_nodes import beyond_its_node
from straggler.scoring.cell_noise import CellNoise
from straggler.scoring.found import CHANGE, LEVEL, Floors, Found
from straggler.scoring.peers import PeerGroups
from straggler.scoring.pools import Pools, for_rows
from straggler.scoring.robust_scores import LEAST_NOISE
from straggler.scoring.spreads import TAIL_RANKS, Quantiles, Spread, spread_of, student_quantile

__all__ = ["Track"]

Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Cells = npt.NDArray[np.intp]

_SAMPLE = 512
"""Ranks of a group that a spread is measured on at most; of many groups a quarter of it."""
_SAMPLE_AT_FIRST = 2048
_PRIOR_NATURE = 0.025
_PRIOR_RANKS = 6.0
_FEWEST_WINDOWS, _UNSURE, _SIGMAS, _OF_A_GAP = 3, 8, 3.0, 4.0
_NATURE_DEGREES = 0.37
_CAUTION = ((1.06, 1.06), (1.5, 1.2))
"""What normal quantiles are multiplied with, of medians and of means, at the shortest scale and at others; measured."""
_STRUCK, _USUAL_NATURE = 1.2, 0.0155
_PRIOR_NOISE = 0.010
_LEAST_MOST = 0.4
_NEAR = 0.5


class Track:
    """Holds the pools and the spreads of one statistic.

    Args:
        ranks: Ranks in the job.
        scales: Windows of each pool, ascending.
        floors: The least that counts.
        learning: Windows of a cell's past before the change test.
        both_sides: Rare long durations are expected: the slow side counts in the spread too.
        has_level: There is a level test.
    """

    def __init__(
        self,
        ranks: int,
        scales: tuple[int, ...],
        floors: Floors,
        learning: int,
        *,
        both_sides: bool = False,
        has_level: bool = True,
    ) -> None:
        self.pools = Pools(ranks, scales)
        self._floors = floors
        self._learning = learning
        self._both_sides = both_sides
        self._caution = _CAUTION[both_sides]
        self._has_level = has_level
        self.noise = CellNoise(ranks)
        self._level = [Spread(scale, _PRIOR_NATURE, 0.0) for scale in scales]
        self._change = [
            Spread(s, _PRIOR_NOISE * (3.0 / s) ** 0.5, LEAST_NOISE * (3.0 / s) ** 0.5, follows=has_level)
            for s in scales
        ]
        self._later = 0.0
        self._most = np.full((1, 1), _LEAST_MOST, dtype=np.float32)
        self.near: Bools = np.zeros((0, ranks), dtype=bool)
        self.drift: Float32 | None = None
        self.above: Cells = np.zeros(0, dtype=np.intp)
        self.level_bars: list[Float32] = []
        self.change_bars: list[Float32] = []
        self.level_spread: Floats = np.zeros((0, 1))
        self.change_spread: Floats = np.zeros((0, 1))

    def advance(
        self,
        y: Float32,
        missing: Bools | None,
        peers: PeerGroups,
        frozen: Bools,
        slow: Bools,
        zs: Quantiles,
        errors: Float32 | None = None,
    ) -> list[Found]:
        """Take a window and return the cells over a bar, of each scale and kind.

        Args:
            y: Logarithm of the ratio to the reference; overwritten.
            missing: Where there is none; None: nowhere.
            peers: The groups.
            frozen: Cells that nothing is learned from.
            slow: Those of them that are SLOW already.
            zs: How far a healthy rank may be off.
            errors: Standard error of each logarithm; None: not known.
        """
        pools = self.pools
        pools.grow(y.shape[0])
        kept = np.flatnonzero(frozen)
        y = pools.add(y, missing, kept, for_rows(self._most, y.shape[0], _LEAST_MOST))
        self.noise.see(y, missing, errors, peers)
        self._later = zs.later
        columns, sampled = peers.sample(_SAMPLE if peers.count == 1 else _SAMPLE // 4)
        everybody = len(columns) == y.shape[1]
        sizes = peers.group_sizes()

        def few(values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
            return values if everybody else values[:, columns]

        found: list[Found] = []
        self.level_bars, self.change_bars = [], []
        unseen = pools.seen == 0
        some_unseen = bool(unseen.any())
        young = pools.seen < pools.scales[0] + self._learning
        self.drift = None
        if self.change_spread.shape != (y.shape[0], peers.count):
            self.change_spread = np.full((y.shape[0], peers.count), LEAST_NOISE)
            self.level_spread = np.full((y.shape[0], peers.count), np.nan)
        young_bars: Float32 = np.full((1, 1), np.inf, dtype=np.float32)
        for place, scale in enumerate(paced(pools.scales)):
            average = pools.average(place)
            if self._has_level:
                shown = few(average)
                group = sampled
                if place == 0 and not everybody and bool(young.any()):
                    # Who is slow from the beginning is judged by the far tail, which takes more ranks to see.
                    chosen, group = peers.sample(_SAMPLE_AT_FIRST)
                    shown = np.where(unseen[:, chosen], np.float32("nan"), average[:, chosen])
                elif some_unseen:
                    shown = np.where(few(unseen), np.float32("nan"), few(average))
                bars, youngs = self._level_bars(place, shown, group, zs)
                bars, youngs = peers.spread_out(bars), peers.spread_out(youngs)
                self.level_bars.append(bars)
                if place == 0 and bool(young.any()):
                    young_bars = youngs
                enough = pools.seen >= min(scale, max(_FEWEST_WINDOWS, scale // 2))
                if scale == pools.scales[-1]:
                    self.above = self._long_above(average, scale)
                cells = np.flatnonzero((average >= np.minimum(bars, youngs)) & enough)
                cells = cells[~slow.flat[cells]]
                if len(cells):
                    own = np.broadcast_to(bars, y.shape).flat[cells]
                    is_young = (place == 0) & young.flat[cells]
                    own = np.where(is_young, np.broadcast_to(youngs, y.shape).flat[cells], own)
                    values = average.flat[cells]
                    z = np.where(is_young, zs.noise, zs.later)
                    own = np.maximum(own, self.noise.bars(cells, z, np.minimum(pools.seen.flat[cells], scale)))
                    real = values >= own
                    real &= beyond_its_node(average, peers, cells, zs.later, self._floors.change)
                    found.append(Found(LEVEL, place, cells[real], values[real], own[real]))
            pace()
            usual = pools.before(place, self._learning)
            drift = average - usual
            drift.flat[kept] = np.nan
            if np.isnan(shown := few(drift)).all():
                self.change_bars.append(np.full((1, 1), np.inf, dtype=np.float32))
                continue
            pace()
            self._change[place].see(spread_of(shown, sampled, inner=True)[1 if self._both_sides else 0])
            deviation, degrees = self._change[place].deviation(sizes)
            if place == 0:
                self.change_spread = deviation
                self.drift = drift
            quantile = student_quantile(self._caution[place > 0] * zs.later, degrees)
            bars = peers.spread_out(np.maximum(quantile * deviation, self._floors.change).astype(np.float32))
            self.change_bars.append(bars)
            cells = np.flatnonzero(drift >= bars)
            # A cell that is frozen is compared with the past that was kept apart for it.
            of_kept = pools.average_of(place, kept) - pools.usual_of(kept, self._learning)
            for some, values in ((cells, drift.flat[cells]), (kept, of_kept)):
                if not len(some):
                    continue
                own = np.broadcast_to(bars, y.shape).flat[some]
                own = np.maximum(
                    own, self.noise.bars(some, zs.later, np.full(len(some), scale), pools.learnt.flat[some])
                )
                real = values >= own
                found.append(Found(CHANGE, place, some[real], values[real], own[real]))
        pace()
        self._set_near(y, kept, young_bars)
        return found

    def _level_bars(self, place: int, shown: Float32, sampled: PeerGroups, zs: Quantiles) -> tuple[Float32, Float32]:
        """Return the bars of cells whose past is known, and of others, shape ``(rows, groups)``."""
        later = zs.later * self._caution[place > 0]
        sizes = sampled.group_sizes()
        low, both = spread_of(shown, sampled, inner=False)
        self._level[place].see(both)
        prior = np.where(sizes >= TAIL_RANKS, 0.0, _PRIOR_RANKS)

        def with_prior(square: Floats) -> Floats:
            return np.asarray(np.sqrt((sizes * square + prior * _PRIOR_NATURE**2) / (sizes + prior)))

        square = np.nan_to_num(low.astype(np.float64)) ** 2
        # Of a few peers one window shows little: where they are alike by chance, one that differs would be named.
        square = np.maximum(square, np.where(sizes < TAIL_RANKS, self._level[place].squares(sizes), 0.0))
        first = np.maximum(with_prior(square), np.sqrt(square))
        if place == 0:
            self.level_spread = first
        floor = self._floors.level
        old = np.maximum(floor, later * with_prior(self._level[place].squares(sizes)))
        if place > 0 or self._both_sides:
            return old.astype(np.float32), old.astype(np.float32)
        student = student_quantile(zs.many, _NATURE_DEGREES * sizes.astype(np.float64))
        wider = np.nan_to_num(both.astype(np.float64))
        # Where the slow side is much wider, ranks are slow there; where the spread is large, the noise is uneven.
        wide = np.where((first > _USUAL_NATURE) | (wider < _STRUCK * first), np.maximum(wider, first), first)
        young = np.maximum(floor, np.where(sizes >= TAIL_RANKS, student * wide, zs.few * first))
        return old.astype(np.float32), young.astype(np.float32)

    def _long_above(self, average: Float32, scale: int) -> Cells:
        """Return the cells that have been over the floor for long, and not by their own noise."""
        cells = np.flatnonzero((average >= np.float32(self._floors.level)) & (self.pools.seen >= _UNSURE))
        noise = self.noise.bars(cells, _SIGMAS, np.minimum(self.pools.seen.flat[cells], scale))
        return cells[average.flat[cells] >= noise]

    def _set_near(self, y: Float32, kept: Cells, young_bars: Float32) -> None:
        """Note which cells are near a bar in this window."""
        if self._has_level:
            self.near = y > np.float32(_NEAR) * np.minimum(np.minimum.reduce(self.level_bars), young_bars)
            self._most = np.maximum(np.float32(_LEAST_MOST), np.float32(2.0) * self.level_bars[0])
        else:
            self.near = np.zeros(y.shape, dtype=bool)
            self._most = np.full((1, 1), 1.5, dtype=np.float32)
        known = [bars for bars in self.change_bars if np.isfinite(bars).any()]
        if known:
            change = np.minimum.reduce([np.broadcast_to(b, known[0].shape) for b in known])
            usual = self.pools.before(0, self._learning)
            if len(kept):
                usual.flat[kept] = self.pools.usual_of(kept, self._learning)
            self.near |= y - usual > np.float32(_NEAR) * change

    def level_of(self, row: int) -> tuple[Float32, float]:
        """Return a row's values at the shortest scale, NaN where nothing is known, and what noise explains of a gap."""
        cells = np.arange(row * self.pools.ranks, (row + 1) * self.pools.ranks)
        average, seen = self.pools.average_of(0, cells), self.pools.seen[row]
        average[seen == 0] = np.nan
        noise = self.noise.bars(cells, _OF_A_GAP, np.minimum(seen, self.pools.scales[0]))
        return average, float(noise.max(initial=0.0))

    def far_below(self, cells: Cells) -> Cells:
        """Return those of some cells that are below their peers by more than their noise explains."""
        noise = self.noise.bars(cells, _SIGMAS, np.minimum(self.pools.seen.flat[cells], self.pools.scales[0]))
        return cells[-self.pools.average_of(0, cells) >= noise]

    def changed(self, cells: Cells) -> Cells:
        """Return those of some cells that were set apart which had less than half of it before."""
        usual = self.pools.usual_of(cells, self._learning)
        return cells[usual < _NEAR * self.pools.average_of(0, cells)]

    def longest_bars(self, cells: Cells) -> Float32:
        """Return the bars at the longest scale, in some cells what their noise explains, where that is more."""
        if not self.level_bars:
            return np.full((1, 1), np.inf, dtype=np.float32)
        bars = self.level_bars[-1]
        if not len(cells):
            return bars
        bars = np.broadcast_to(bars, self.pools.seen.shape).copy()
        seen = np.minimum(self.pools.seen.flat[cells], self.pools.scales[-1])
        bars.flat[cells] = np.maximum(bars.flat[cells], self.noise.bars(cells, self._later, seen))
        return bars

    def value_of(self, kind: int, place: int, cells: Cells) -> Float32:
        """Return what is compared with a bar, of cells that are set apart."""
        level = self.pools.average_of(place, cells)
        return level if kind == LEVEL else level - self.pools.usual_of(cells, 1)

    def reset_row(self, row: int) -> None:
        """Forget a row."""
        self.pools.reset_row(row)
        self.noise.reset_row(row)
        for spread in (*self._level, *self._change):
            spread.reset_row(row)
