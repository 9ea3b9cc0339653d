"""How a report writes numbers, times and lists of ranks: in one place, so that a terminal and a page say the same."""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections.abc import Iterable

__all__ = [
    "UNKNOWN",
    "axis_time",
    "clock",
    "count",
    "duration",
    "job_size",
    "limit_of",
    "nodes_lost",
    "rank_list",
    "restarts",
    "seconds",
    "share",
    "signed_share",
]

UNKNOWN = "unknown"
_MINUTE = 60
_HOUR = 3600
_DAY = 86400
_OFFSET = re.compile(r"(?:[+-](?:0\d|1[0-4]):?[0-5]\d|(?<=\d)Z)$")
"""The time zone at the end of ISO 8601."""


def duration(value: float | None) -> str:
    """Return a duration for people, with about three digits; ``unknown`` for None.

    Args:
        value: Seconds.
    """
    if value is None:
        return UNKNOWN
    if value < 0:
        return f"-{duration(-value)}"
    if value < 0.0995:
        return f"{value * 1000:.1f} ms" if 0 < value < 0.00995 else f"{value * 1000:.0f} ms" if value else "0 s"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    minutes = round(value / _MINUTE)
    if minutes < _DAY // _MINUTE:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(value / _HOUR)
    return f"{hours // 24} d {hours % 24:02d} h"


def limit_of(value: float | None) -> str:
    """Return a limit in seconds, as it is written on a command line; ``none`` for None."""
    return "none" if value is None else f"{value:.6g} s"


def seconds(value: float | None) -> str:
    """Return seconds to a tenth, with separators of thousands, so that a column of them can be added up."""
    return UNKNOWN if value is None else f"{value:,.1f} s"


def share(value: float | None) -> str:
    """Return a share of 0 to 1 in percent; what is not quite nothing or everything does not read as that."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.0005:
        return "< 0.1 %"
    if 0.9995 < value < 1:
        return "> 99.9 %"
    return f"{value * 100:.1f} %"


def signed_share(value: float | None) -> str:
    """Return a share that may be negative, in whole percent."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value * 100:.0f} %"


def count(value: int | None) -> str:
    """Return a number of things, with separators of thousands."""
    return UNKNOWN if value is None else f"{value:,}"


def job_size(ranks: int | None, nodes: int, *, is_about: bool) -> str:
    """Return ``4 ranks on 2 nodes``, with ``~`` where that is what is left of the events."""
    about = "~" if is_about else ""
    told = "an unknown number of ranks" if ranks is None else f"{about}{count(ranks)} rank{'s' * (ranks != 1)}"
    return f"{told} on {about}{count(nodes)} node{'s' * (nodes != 1)}"


def restarts(number: int, *, is_about: bool) -> str:
    """Return ``7 restarts``, with ``~`` where that is what is left of the events."""
    return f"{'~' if is_about else ''}{count(number)} restart{'s' * (number != 1)}"


def nodes_lost(number: int) -> str:
    """Return ``1 node was lost``."""
    return f"{count(number)} node{' was' if number == 1 else 's were'} lost"


def axis_time(value: float) -> str:
    """Return a time since the begin without fractions, for the ticks of an axis.

    Args:
        value: Seconds; a multiple of the distance between ticks.
    """
    if value == 0:
        return "0"
    if value < 1:
        return f"{value * 1000:g} ms"
    if value < _MINUTE:
        return f"{value:g} s"
    days, rest = divmod(round(value), _DAY)
    hours, rest = divmod(rest, _HOUR)
    minutes, rest = divmod(rest, _MINUTE)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def clock(began_at: str, began_epoch: float, at: float) -> str:
    """Return the wall clock at a time of the story, in the time zone of its begin.

    Args:
        began_at: ISO 8601 with the time zone; without a readable one, UTC is used and said.
        began_epoch: Seconds since 1970 of the story's begin.
        at: Seconds since the story's begin.
    """
    offset = _OFFSET.search(began_at)
    zone = datetime.datetime.strptime(offset[0], "%z").tzinfo if offset is not None else None
    moment = datetime.datetime.fromtimestamp(began_epoch + at, zone or datetime.timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S") + ("" if zone is not None else " UTC")


def rank_list(ranks: Iterable[int], most: int = 12) -> str:
    """Return ranks with neighbours joined: ``0-36, 38``; after ``most`` stretches, how many more ranks there are."""
    stretches: list[tuple[int, int]] = []
    ordered = sorted(set(ranks))
    for _, group in itertools.groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        members = [rank for _, rank in group]
        stretches.append((members[0], members[-1]))
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in stretches[:most]]
    left = sum(last - first + 1 for first, last in stretches[most:])
    return ", ".join(shown) + (f" and {count(left)} more" if left else "")
