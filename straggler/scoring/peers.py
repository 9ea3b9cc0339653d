"""Peer groups: the ranks that do the same work, and the middle of each group.

A pipeline's first stage is not slow because its last stage is faster: who is compared with whom is a key that
the user can set (pipeline stage, GPU model). The middle is a selection, not a mean; ``np.partition`` puts NaN
last, so missing cells need no copy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from straggler.pacing import pace, paced

__all__ = ["PeerGroups"]

_FEW = 4
"""Up to so many peers the two middle values of an even number are not averaged: half of them may be slow."""

_FEWEST_NODES = 3

_MANY = 4096
"""From so many peers on, the middle is looked for between two values of a sample."""

Float32 = npt.NDArray[np.float32]


class PeerGroups:
    """The ranks of each peer group.

    Args:
        keys: One integer per rank; equal keys are peers.
        nodes: One integer per rank: its node; None: not known.
    """

    def __init__(self, keys: npt.NDArray[np.int64], nodes: npt.NDArray[np.int64] | None = None) -> None:
        self.keys = keys
        self.nodes = nodes
        self.ranks = len(keys)
        _, self.member, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        self.count = len(sizes)
        self._order = np.argsort(self.member, kind="stable")
        self._sizes = sizes
        self._equal = self.count > 0 and bool((sizes == sizes[0]).all())
        self._ends = np.cumsum(sizes)

    @classmethod
    def everybody(cls, ranks: int) -> PeerGroups:
        """Return one group of all ranks."""
        return cls(np.zeros(ranks, dtype=np.int64))

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the ranks in each rank's group, shape ``(1,)`` with one group, else ``(ranks,)``."""
        return np.asarray(self._sizes if self.count == 1 else self._sizes[self.member])

    def group_sizes(self) -> npt.NDArray[np.int64]:
        """Return the ranks in each group, shape ``(groups,)``."""
        return np.asarray(self._sizes)

    def members(self) -> list[npt.NDArray[np.intp]]:
        """Return the ranks of each group."""
        return np.split(self._order, self._ends[:-1])

    def sample(self, most: int) -> tuple[npt.NDArray[np.intp], PeerGroups]:
        """Return at most so many ranks of each group, evenly chosen, and their groups.

        The step between them is odd, so that every place of a node is met: ranks of equal place may be alike.
        """
        chosen = [ranks[:: -(-len(ranks) // most) | 1] if len(ranks) > most else ranks for ranks in self.members()]
        columns = np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.intp)
        return columns, PeerGroups(self.keys[columns], None if self.nodes is None else self.nodes[columns])

    def node_means(self, values_SR: Float32) -> tuple[Float32, PeerGroups, npt.NDArray[np.intp]] | None:
        """Return the mean of each node's ranks, shape ``(rows, nodes)``, the nodes' groups, and each rank's node.

        A node whose ranks are in several groups counts once in each.

        None where nodes are not known, or hold one rank each, or are fewer than three in some group.
        """
        if self.nodes is None:
            return None
        pairs = self.member * (int(self.nodes.max(initial=0)) + 1) + self.nodes
        order = np.argsort(pairs, kind="stable")
        _, starts, inverse, sizes = np.unique(pairs[order], return_index=True, return_inverse=True, return_counts=True)
        nodes = PeerGroups(np.asarray(self.member[order][starts], dtype=np.int64))
        if len(starts) == self.ranks or int(min(nodes.group_sizes(), default=0)) < _FEWEST_NODES:
            return None
        means = np.add.reduceat(values_SR[:, order], starts, axis=1) / sizes.astype(np.float32)
        node_of = np.empty(self.ranks, dtype=np.intp)
        node_of[order] = inverse
        return np.asarray(means, dtype=np.float32), nodes, node_of

    def spread_out(self, values_SG: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Give each rank its group's value; of one group there is one column, as in :meth:`middle`."""
        return values_SG if self.count == 1 else np.asarray(values_SG.take(self.member, axis=1))

    def middle(self, values_SR: Float32, *, upper: bool = False, at_least: int = 1) -> Float32:
        """Return the median of each group; of up to four peers the lower (or upper) one.

        Args:
            values_SR: Shape ``(rows, ranks)``; NaN is left out.
            upper: Of an even number, the larger of the two middle values.
            at_least: Values a group needs; with fewer its middle is NaN.

        Returns:
            Shape ``(rows, 1)`` with one group, else ``(rows, ranks)``: each rank's own group's.
        """
        pace()
        if self.count == 1:
            return _middle(values_SR, upper, at_least)[:, None]
        grouped = values_SR.take(self._order, axis=1)
        rows = values_SR.shape[0]
        if self._equal:
            size = int(self._sizes[0])
            flat = _middle(grouped.reshape(rows * self.count, size), upper, at_least)
            middles = flat.reshape(rows, self.count)
        else:
            middles = np.empty((rows, self.count), dtype=values_SR.dtype)
            start = 0
            for group, end in enumerate(self._ends.tolist()):
                middles[:, group] = _middle(grouped[:, start:end], upper, at_least)
                start = end
        return np.asarray(middles.take(self.member, axis=1))


def _middle(values: Float32, upper: bool, at_least: int) -> Float32:
    """Return the middle of each row; NaN left out."""
    rows, size = values.shape
    counts = size - np.count_nonzero(np.isnan(values), axis=1)
    found = np.full(rows, np.nan, dtype=values.dtype)
    for count in np.unique(counts).tolist():
        if count < max(1, at_least):
            continue
        same = counts == count
        chosen = values if bool(same.all()) else values[same]
        low, high = (count - 1) // 2, count // 2
        if count <= _FEW:
            low = high = high if upper else low
        if size >= _MANY and chosen is values and count == size:
            pairs = np.array([_neighbours(row, low) for row in paced(values)], dtype=values.dtype)
            found = pairs[:, 0] if low == high else (pairs[:, 0] + pairs[:, 1]) * np.float32(0.5)
            continue
        # Selecting one place and taking the largest before it costs half of selecting two.
        middle = np.partition(chosen, high, axis=1)
        found[same] = (
            middle[:, high] if low == high else (middle[:, :high].max(axis=1) + middle[:, high]) * np.float32(0.5)
        )
    return found


def _neighbours(values: Float32, low: int) -> tuple[np.float32, np.float32]:
    """Return the values that sorting would put at ``low`` and ``low + 1``; no NaN among them.

    Selection after Floyd and Rivest: two values of a sample enclose the wanted ones nearly always, and what lies
    between is few. A quarter of the time of ``np.partition``, which serves when the sample was not like the rest.
    """
    size = len(values)
    # Odd, so that it meets every place of a node: ranks of equal place may be alike.
    sample = values[:: size // (1024 if size < 4 * _MANY else 4096) | 1].copy()
    count = len(sample)
    middle, margin = low * count // size, int(1.5 * count**0.5) + 1
    first, last = max(middle - margin, 0), min(middle + margin + 1, count - 1)
    sample.partition((first, last))
    between = values >= sample[first]
    place = low - (size - int(np.count_nonzero(between)))
    between &= values <= sample[last]
    few = values[between]
    if not 0 <= place < len(few) - 1:
        few, place = values.copy(), low
    few.partition(place + 1)
    return few[: place + 1].max(), few[place + 1]
