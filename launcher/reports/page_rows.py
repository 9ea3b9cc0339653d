"""Fold the ranks of a timeline into rows: neighbours that did the same share one, and a culprit has one of its own.

A thousand ranks do the same nearly all the time. A row each would be one pixel, in which nobody finds the rank that
matters; folded, the culprit's row stands between two bands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.reports.model import SECTION, Incident, Rank, Report, Suspect
from launcher.reports.page_colours import Palette

__all__ = ["Row", "folded", "is_culprit"]

_SHOWN_EACH = 16
"""Up to so many ranks have a row each."""
_MOST_BANDS = 40
"""The most rows beside those of culprits, as long as there is something to fold between these."""
_SAMPLES = 240
"""At how many moments two ranks are compared."""
_ALIKE = 0.02
"""The share of the moments at which two ranks of a band may do something else."""
_MOST_NODES_APART = 16
"""Up to so many nodes, no band holds ranks of two of them."""


class Row(NamedTuple):
    """Ranks that are shown as one."""

    ranks: tuple[Rank, ...]
    """Neighbours by number."""
    incidents: tuple[Incident, ...]
    """Those whose culprit this rank is, or whose lost node these ranks were on, in the order of time."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of its ranks, in their order."""
        return tuple(dict.fromkeys(rank.node for rank in self.ranks))


def folded(report: Report, palette: Palette) -> list[Row]:
    """Return the rows of a timeline, in the order of the ranks."""
    ranks = report.ranks
    marks = dict(enumerate(_incidents_of_each(report)))
    samples = [_sampled(rank, report.seconds, palette) for rank in ranks]
    keeps_nodes_apart = len({rank.node for rank in ranks}) <= _MOST_NODES_APART
    bands: list[list[int]] = []
    for index, rank in enumerate(ranks):
        before = ranks[index - 1]
        if index and marks[index] == marks[index - 1]:
            is_same_place = rank.node == before.node or not keeps_nodes_apart
            may_fold = len(ranks) > _SHOWN_EACH and is_same_place
            if marks[index] or (may_fold and _difference(samples[bands[-1][0]], samples[index]) <= _ALIKE):
                bands[-1].append(index)
                continue
        bands.append([index])
    rows: list[list[int]] = []
    for is_own, group in itertools.groupby(bands, lambda band: bool(marks[band[0]])):
        stretch = list(group)
        share = max(1, _MOST_BANDS * sum(map(len, stretch)) // len(ranks))
        rows += stretch if is_own else _merged(stretch, samples, share)
    numbers = {incident.number: incident for incident in report.incidents}
    return [
        Row(
            tuple(ranks[index] for index in band),
            tuple(numbers[number] for number in marks[band[0]]),
        )
        for band in rows
    ]


def is_culprit(rank: Rank, suspect: Suspect) -> bool:
    """Return whether a row's rank is one that is to blame: another node may have had that number at another time."""
    return rank.rank == suspect.rank and suspect.node in ("", rank.node)


def _incidents_of_each(report: Report) -> list[tuple[int, ...]]:
    """Return for each rank the numbers of the incidents of which it is to blame, or the node that it was on as a whole.

    A node is marked with the ranks that it had in the generation which that has ended.
    """
    ranks, marks = report.ranks, [list[int]() for _ in report.ranks]
    indices: dict[int, list[int]] = {}
    on_node: dict[str, list[int]] = {}
    for index, rank in enumerate(ranks):
        indices.setdefault(rank.rank, []).append(index)
        on_node.setdefault(rank.node, []).append(index)
    numbers = {(each.run, each.number): index for index, each in enumerate(report.generations)}
    for incident in report.incidents:
        generation = numbers.get((incident.run, incident.generation))
        found = {i for s in incident.culprits for i in indices.get(s.rank, ()) if is_culprit(ranks[i], s)}
        for node in () if incident.culprits else incident.nodes_to_blame:
            found |= {i for i in on_node.get(node, ()) if any(s.generation == generation for s in ranks[i].spans)}
        for index in found:
            marks[index].append(incident.number)
    return [tuple(each) for each in marks]


def _sampled(rank: Rank, seconds: float, palette: Palette) -> bytes:
    """Return what a rank mostly did at evenly spaced moments: one byte, the index of the layer, for each."""
    sampled = bytearray(b"\xff" * _SAMPLES)
    scale = _SAMPLES / seconds if seconds > 0 else 0.0
    for span in rank.spans:
        first, end = round(span.start * scale), round(span.end * scale)
        if end > first:
            is_section = span.kind == SECTION and span.section is not None
            layer = palette.by_section[span.section or ""] if is_section else palette.by_kind.get(span.kind, 254)
            sampled[first:end] = bytes([min(layer, 254)]) * (min(end, _SAMPLES) - first)
    return bytes(sampled[:_SAMPLES])


def _difference(one: bytes, other: bytes) -> float:
    return 0.0 if one == other else sum(map(int.__ne__, one, other)) / _SAMPLES


def _merged(bands: Iterable[list[int]], samples: Sequence[bytes], most: int) -> list[list[int]]:
    """Join the neighbours that differ least until there are no more than ``most``."""
    merged = [list(band) for band in bands]
    gaps = [_difference(samples[one[0]], samples[other[0]]) for one, other in itertools.pairwise(merged)]
    while len(merged) > most:
        at = min(range(len(gaps)), key=lambda gap: gaps[gap])
        merged[at] += merged.pop(at + 1)
        del gaps[at]
        if at < len(gaps):
            gaps[at] = _difference(samples[merged[at][0]], samples[merged[at + 1][0]])
    return merged
