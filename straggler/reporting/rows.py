"""Rows of the picture of all ranks: a rank each in a small job, a node each in a large one."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from straggler.reporting.rank_lists import ranges

__all__ = ["Row", "rows_of"]

_RANK_ROWS = 128
"""So many ranks have a row each: they are readable, and a node's eight ranks are seen beside each other."""
_MAX_ROWS = 640


@attrs.frozen
class Row:
    """A row.

    Args:
        ranks: Whom it shows.
        node: Their node; of several nodes the first and the last.
    """

    ranks: tuple[int, ...]
    node: str

    @property
    def label(self) -> str:
        """Return the ranks in words."""
        return f"rank{'s' * (len(self.ranks) > 1)} {ranges(self.ranks)}"


def rows_of(ranks: int, node_of: Mapping[int, str]) -> list[Row]:
    """Return the rows, the ranks of a node beside each other.

    Args:
        ranks: How many there are.
        node_of: Rank to node; ranks whose node is not known are rows of their own.
    """
    nodes: dict[str, list[int]] = {}
    for rank in range(ranks):
        nodes.setdefault(node_of.get(rank, "") or f"/{rank}", []).append(rank)
    if ranks <= _RANK_ROWS:
        return [Row((rank,), node_of.get(rank, "")) for own in nodes.values() for rank in own]
    groups = list(nodes.items())
    per_row = -(-len(groups) // _MAX_ROWS)
    rows = []
    for first in range(0, len(groups), per_row):
        part = groups[first : first + per_row]
        names = [name for name, _ in part if not name.startswith("/")]
        between = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else ""
        rows.append(Row(tuple(rank for _, own in part for rank in own), between))
    return rows
