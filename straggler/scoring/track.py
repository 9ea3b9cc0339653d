"""One statistic of every row and rank, tested at several scales: against the peers, and against the rank's own past."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from straggler.pacing import pace, paced
from straggler.scoring.peers import PeerGroups
from straggler.scoring.pools import Pools, for_rows
from straggler.scoring.robust_scores import LEAST_NOISE
from straggler.scoring.spreads import TAIL_RANKS, Spread, spread_of, student_quantile

__all__ = ["CHANGE", "LEVEL", "Floors", "Found", "Track"]

Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Cells = npt.NDArray[np.intp]

LEVEL, CHANGE = 0, 1

_SAMPLE = 512
"""Ranks of a group that a spread is measured on at most; of many groups a quarter of it."""
_SAMPLE_AT_FIRST = 2048
_PRIOR_NATURE = 0.025
_PRIOR_RANKS = 6.0
_PRIOR_NODES = 0.02
_NODE_SIGMAS = 5.2
_ALIKE = 4.0
_FEWEST_WINDOWS, _UNSURE = 3, 8
_NATURE_DEGREES = 0.37
_CAUTION = ((1.06, 1.06), (1.5, 1.2))
"""What normal quantiles are multiplied with, of medians and of means, at the shortest scale and at others; measured."""
_STRUCK, _USUAL_NATURE = 1.2, 0.0155
_PRIOR_NOISE = 0.010
_LEAST_MOST = 0.4
_NEAR = 0.5


@attrs.frozen
class Floors:
    """The least that counts, as a logarithm.

    Args:
        level: Against the peers.
        change: Against the own past.
    """

    level: float
    change: float


@attrs.frozen
class Found:
    """Cells that are over a bar at one scale.

    Args:
        kind: :data:`LEVEL` or :data:`CHANGE`.
        place: Of the scale.
        cells: Flat indices.
        values: What was compared with the bar.
        bars: The bars.
    """

    kind: int
    place: int
    cells: Cells
    values: Float32
    bars: Float32


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
        self._level = [Spread(scale, _PRIOR_NATURE, 0.0) for scale in scales]
        self._change = [
            Spread(s, _PRIOR_NOISE * (3.0 / s) ** 0.5, LEAST_NOISE * (3.0 / s) ** 0.5, follows=has_level)
            for s in scales
        ]
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
        zs: tuple[float, float, float],
    ) -> list[Found]:
        """Take a window and return the cells over a bar, of each scale and kind.

        Args:
            y: Logarithm of the ratio to the reference; overwritten.
            missing: Where there is none; None: nowhere.
            peers: The groups.
            frozen: Cells that nothing is learned from.
            slow: Those of them that are SLOW already.
            zs: Normal quantiles: of the first windows in few peers, in many, and of all later windows.
        """
        pools = self.pools
        pools.grow(y.shape[0])
        kept = np.flatnonzero(frozen)
        y = pools.add(y, missing, kept, for_rows(self._most, y.shape[0], _LEAST_MOST))
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
                    self.above = np.flatnonzero((average >= np.float32(self._floors.level)) & (pools.seen >= _UNSURE))
                cells = np.flatnonzero((average >= np.minimum(bars, youngs)) & enough)
                cells = cells[~slow.flat[cells]]
                if len(cells):
                    own = np.broadcast_to(bars, y.shape).flat[cells]
                    if place == 0:
                        own = np.where(young.flat[cells], np.broadcast_to(youngs, y.shape).flat[cells], own)
                    values = average.flat[cells]
                    real = values >= own
                    real &= self._beyond_its_node(average, peers, cells, zs)
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
            quantile = student_quantile(self._caution[place > 0] * zs[2], degrees)
            bars = peers.spread_out(np.maximum(quantile * deviation, self._floors.change).astype(np.float32))
            self.change_bars.append(bars)
            cells = np.flatnonzero(drift >= bars)
            if len(cells):
                found.append(Found(CHANGE, place, cells, drift.flat[cells], np.broadcast_to(bars, y.shape).flat[cells]))
            if len(kept):
                again = pools.average_of(place, kept) - pools.usual_of(kept, self._learning)
                real = again >= (own := np.broadcast_to(bars, y.shape).flat[kept])
                found.append(Found(CHANGE, place, kept[real], again[real], own[real]))
        pace()
        self._set_near(y, kept, young_bars)
        return found

    def _beyond_its_node(
        self, average: Float32, peers: PeerGroups, cells: Cells, zs: tuple[float, float, float]
    ) -> Bools:
        """Return which cells are slow among all nodes, or in their own.

        Where ranks of a node are alike (analysis of variance, Fisher 1925), a job has only as many values as nodes.
        """
        alike = peers.node_means(average)
        if alike is None:
            return np.ones(len(cells), dtype=bool)
        means, nodes, node_of = alike
        rows, ranks = np.divmod(cells, average.shape[1])
        sizes = nodes.group_sizes()
        spread = np.nan_to_num(spread_of(means, nodes, inner=False)[0]).astype(np.float64)
        square = (sizes * spread**2 + _PRIOR_RANKS * _PRIOR_NODES**2) / (sizes + _PRIOR_RANKS)
        bars = np.broadcast_to(nodes.spread_out(_NODE_SIGMAS * np.sqrt(square)), means.shape)
        own = means[rows, node_of[ranks]]
        among_nodes = average.flat[cells] >= bars[rows, node_of[ranks]]
        within = average - means[:, node_of]
        some, place = np.unique(rows, return_inverse=True)
        inside = spread_of(within[some], PeerGroups.everybody(average.shape[1]), inner=True)[1][place, 0]
        beyond = among_nodes | (average.flat[cells] - own >= np.maximum(zs[2] * inside, self._floors.change))
        shared = np.nanvar(means[some], axis=1) * average.shape[1] / means.shape[1]
        return np.asarray(beyond | (shared < _ALIKE * np.nanvar(within[some], axis=1))[place])

    def _level_bars(
        self, place: int, shown: Float32, sampled: PeerGroups, zs: tuple[float, float, float]
    ) -> tuple[Float32, Float32]:
        """Return the bars of cells whose past is known, and of others, shape ``(rows, groups)``."""
        few, many, later = zs
        later *= self._caution[place > 0]
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
        student = student_quantile(many, _NATURE_DEGREES * sizes.astype(np.float64))
        wider = np.nan_to_num(both.astype(np.float64))
        # Where the slow side is much wider, ranks are slow there; where the spread is large, the noise is uneven.
        wide = np.where((first > _USUAL_NATURE) | (wider < _STRUCK * first), np.maximum(wider, first), first)
        young = np.maximum(floor, np.where(sizes >= TAIL_RANKS, student * wide, few * first))
        return old.astype(np.float32), young.astype(np.float32)

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

    def newest_level(self, row: int) -> Float32:
        """Return a row's values at the shortest scale, NaN where nothing is known."""
        ranks = self.pools.ranks
        average = self.pools.average_of(0, np.arange(row * ranks, (row + 1) * ranks))
        average[self.pools.seen[row] == 0] = np.nan
        return average

    def value_of(self, kind: int, place: int, cells: Cells) -> Float32:
        """Return what is compared with a bar, of cells that are set apart."""
        level = self.pools.average_of(place, cells)
        return level if kind == LEVEL else level - self.pools.usual_of(cells, 1)

    def reset_row(self, row: int) -> None:
        """Forget a row."""
        self.pools.reset_row(row)
        for spread in (*self._level, *self._change):
            spread.reset_row(row)
