"""Which of the incidents that a launcher has written down have ended a generation of its ranks. Pure.

A verdict is written before the ranks are signalled. One that comes back in time is spared, and the generation goes on
where all were: what ends it later, if anything does, is something else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

__all__ = ["SPARED", "listed", "seen_at_ns", "was_taken_back"]

SPARED = ("near_miss", "withdrawn")
"""Events by which the verdict on one rank is taken back."""


def seen_at_ns(incident: Mapping[str, Any]) -> int:
    """Return when an incident was seen, ``CLOCK_MONOTONIC``; damage or an old launcher may have left that out."""
    seen_ns = incident.get("seen_ns")
    at_ns: int = incident["t_ns"]
    return min(seen_ns, at_ns) if type(seen_ns) is int and seen_ns > 0 else at_ns


def was_taken_back(incident: Mapping[str, Any], spared: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether every rank that was condemned was spared, so that the generation went on.

    Args:
        incident: An event of the log.
        spared: Events named as in :data:`SPARED`, of the same launcher and the same generation.
    """
    condemned = listed(incident.get("condemned"))
    seen_ns = seen_at_ns(incident)
    ranks = [event.get("rank") for event in spared if event["t_ns"] >= seen_ns]
    return incident["event"] == "hang" and bool(condemned) and all(rank in ranks for rank in condemned)


def listed(value: object) -> Collection[Any]:
    """Return a list, or an object for its names; nothing where damage has made something else of it."""
    return value if isinstance(value, (list, dict)) else ()
