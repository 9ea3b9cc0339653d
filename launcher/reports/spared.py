"""Ranks whose verdict was taken back, as the events of a launcher tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from launcher.reports.node_generations import seconds_or_none

__all__ = ["Spared", "spared"]


class Spared(NamedTuple):
    """A rank whose verdict was taken back."""

    t_ns: int
    generation: int | None
    rank: int
    kind: str
    """Of the limit."""
    limit_seconds: float
    late_seconds: float | None
    is_at_most: bool
    """It is an upper bound."""
    was_late: bool


def spared(misses: Iterable[Mapping[str, Any]]) -> Iterator[Spared]:
    """Yield what events of near misses tell; those that are damaged are left out."""
    for miss in misses:
        rank, limit = miss.get("rank"), seconds_or_none(miss.get("limit_seconds"))
        if type(rank) is not int or limit is None:
            continue
        cause, section = str(miss.get("cause")), miss.get("section")
        exact, most = seconds_or_none(miss.get("late_seconds")), seconds_or_none(miss.get("late_at_most_seconds"))
        generation = miss.get("generation")
        yield Spared(
            t_ns=miss["t_ns"],
            generation=generation if type(generation) is int else None,
            rank=rank,
            kind=f"section {section}" if cause == "section" else cause,
            limit_seconds=limit,
            late_seconds=most if exact is None else exact,
            is_at_most=exact is None and most is not None,
            was_late=miss.get("was_late") is not False,
        )
