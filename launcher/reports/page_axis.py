"""The time axis of a timeline: where its ticks are, and which labels have room."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

__all__ = ["spread", "ticks"]

_STEPS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(minutes * 60 for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * 3600 for hours in (1, 2, 3, 6, 12)),
    *(days * 86400 for days in (1, 2, 7, 14, 28)),
)


def ticks(seconds: float, most: int) -> list[float]:
    """Return where ticks stand: multiples of a step that people count in.

    Args:
        seconds: The length of the axis.
        most: How many ticks there may be beside the one at 0.
    """
    step = next((step for step in _STEPS if seconds / step <= most), seconds / max(most, 1))
    if step <= 0:
        return [0.0]
    return [round(number * step, 6) for number in itertools.takewhile(lambda n: n * step <= seconds, itertools.count())]


def spread(places: Sequence[tuple[float, float]], width: float, gap: float = 6.0) -> list[float | None]:
    """Return where labels start that are centred on their places and do not overlap; None for those without room.

    Args:
        places: Centre and width of each; the earlier ones have their room first.
        width: Of the whole.
        gap: The least distance between two.
    """
    starts: list[float | None] = []
    taken: list[tuple[float, float]] = []
    for centre, own in places:
        start = min(max(centre - own / 2, 0.0), width - own)
        end = start + own
        if own > width or any(start < other_end + gap and other < end + gap for other, other_end in taken):
            starts.append(None)
            continue
        starts.append(start)
        taken.append((start, end))
    return starts
