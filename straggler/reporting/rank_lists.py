"""Ranks in words: compact ranges, and the nodes of which most ranks are meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

__all__ = ["mostly", "ranges"]

_MOST_RANGES = 12


def ranges(ranks: Iterable[int], most: int = _MOST_RANGES) -> str:
    """Return ranks as ``0-7, 16``; where there are more than ``most`` ranges, what is left out is counted."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:most])
    left_out = sum(b - a + 1 for a, b in runs[most:])
    return f"{text} and {left_out} more" if left_out else text


def mostly(ranks: Iterable[int], node_of: Mapping[int, str], sizes: Mapping[str, int]) -> list[str]:
    """Return the nodes of which more than half of the ranks, and more than one, are among ``ranks``.

    Args:
        ranks: Of which something is said, each once.
        node_of: Rank to node, ``""`` while unknown.
        sizes: Node to how many ranks it has.
    """
    among = Counter(node_of.get(rank, "") for rank in ranks)
    return [node for node, count in among.items() if node and count > 1 and 2 * count > sizes.get(node, count)]
