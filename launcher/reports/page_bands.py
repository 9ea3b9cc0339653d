"""What a row of a timeline was doing, as areas of colour: for one rank its spans, for several the average of theirs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from launcher.reports.model import Rank
from launcher.reports.page_colours import Palette, shares_of

__all__ = ["Run", "coarser", "paths", "runs_of"]


class Run(NamedTuple):
    """A stretch of a row that looks the same throughout; ``x`` in pixels."""

    start: float
    end: float
    heights: tuple[tuple[int, int], ...]
    """Index of a layer and its height in pixels, from the top down; together the height of the row."""


def runs_of(ranks: Sequence[Rank], palette: Palette, seconds: float, width: int, height: int) -> list[Run]:
    """Return what several ranks did.

    Args:
        ranks: One, whose spans are shown as they are, or several neighbours, which are averaged over each pixel.
        palette: The layers.
        seconds: The length of the axis.
        width: The same in pixels.
        height: Of the row, in pixels.
    """
    scale = width / seconds if seconds > 0 else 0.0
    if len(ranks) == 1:
        exact = (
            Run(span.start * scale, span.end * scale, _heights(dict(shares_of(span, palette)), height))
            for span in ranks[0].spans
        )
        return _without_repetition(exact)
    weights = _averaged(ranks, palette, seconds, width)
    return _without_repetition(
        Run(number, number + 1, _heights(share, height)) for number, share in enumerate(weights) if share
    )


def coarser(runs: Sequence[Run], pixels: int) -> list[Run]:
    """Return runs of at least so many pixels: each looks like the longest of those that it stands for."""
    coarse: list[Run] = []
    for _, group in itertools.groupby(runs, lambda run: run.start // pixels):
        members = list(group)
        longest = max(members, key=lambda run: run.end - run.start)
        start = coarse[-1].end if coarse and members[0].start <= coarse[-1].end else members[0].start
        coarse.append(Run(start, max(members[-1].end, start), longest.heights))
    return _without_repetition(iter(coarse))


def paths(runs: Sequence[Run], top: int) -> dict[int, str]:
    """Return for each layer the path of its areas, ``top`` pixels from above."""
    drawn: dict[int, list[str]] = {}
    for run in runs:
        y = top
        for layer, height in run.heights:
            start, end = round(run.start, 1), round(run.end, 1)
            if end > start:
                drawn.setdefault(layer, []).append(f"M{start:g} {y}H{end:g}v{height}H{start:g}z")
            y += height
    return {layer: "".join(parts) for layer, parts in sorted(drawn.items())}


def _averaged(ranks: Sequence[Rank], palette: Palette, seconds: float, bins: int) -> list[dict[int, float]]:
    """Return for each bin how much time of all ranks went into each layer, in bins."""
    inside = [[0.0] * (bins + 1) for _ in palette.layers]
    changes = [[0.0] * (bins + 2) for _ in palette.layers]
    scale = bins / seconds if seconds > 0 else 0.0
    for rank in ranks:
        for span in rank.spans:
            start, end = max(span.start * scale, 0.0), min(span.end * scale, float(bins))
            first, last = math.floor(start), math.floor(end)
            if end <= start:
                continue
            for layer, share in shares_of(span, palette):
                own, change = inside[layer], changes[layer]
                if first == last:
                    own[first] += share * (end - start)
                    continue
                own[first] += share * (first + 1 - start)
                own[last] += share * (end - last)
                change[first + 1] += share
                change[last] -= share
    weights: list[dict[int, float]] = [{} for _ in range(bins)]
    for layer in range(len(palette.layers)):
        throughout = itertools.accumulate(changes[layer][:bins])
        for number, (at_edges, through) in enumerate(zip(inside[layer][:bins], throughout, strict=True)):
            if at_edges + through > 1e-6:
                weights[number][layer] = at_edges + through
    return weights


def _heights(shares: Mapping[int, float], height: int) -> tuple[tuple[int, int], ...]:
    """Return shares as whole pixels that add up to the height."""
    total = sum(shares.values())
    heights = []
    so_far, before = 0.0, 0
    for layer, share in sorted(shares.items()):
        so_far += share
        edge = round(height * so_far / total)
        if edge > before:
            heights.append((layer, edge - before))
        before = edge
    return tuple(heights)


def _without_repetition(runs: Iterator[Run]) -> list[Run]:
    """Join neighbours that look the same, but for a pixel."""
    joined: list[Run] = []
    for run in runs:
        if joined and abs(joined[-1].end - run.start) < 0.051 and _look_alike(joined[-1].heights, run.heights):
            joined[-1] = joined[-1]._replace(end=run.end)
        else:
            joined.append(run)
    return joined


def _look_alike(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> bool:
    if [layer for layer, _ in one] != [layer for layer, _ in other]:
        return False
    edges = zip(
        itertools.accumulate(height for _, height in one),
        itertools.accumulate(height for _, height in other),
        strict=True,
    )
    return all(abs(mine - its) <= 1 for mine, its in edges)
