"""Figures of ranks over all generations on this node, as counters that never go down.

What a rank has counted begins anew with each generation. Here the figures of a generation are kept at the highest that
was seen of them, in shared memory or in the log folder, and added up. So it does not matter in which order they come,
nor how often; an exporter that is started later finds the generations before it in the log folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from resilience_core.protocol.figures_read import Steps

__all__ = ["RankTotals", "SectionTotals", "Totals"]

STEP = "step"
_GENERATIONS_APART = 3
"""Of these figures may still come; older ones are added up for good."""


class SectionTotals(NamedTuple):
    """Of the sections of one name."""

    took_ns: int = 0
    close_calls: int = 0
    durations: Mapping[int, int] = {}
    """From a number of bits to how many durations in nanoseconds had that many."""

    def or_more(self, other: SectionTotals) -> SectionTotals:
        """Return the higher of two counts of the same sections."""
        bits = {*self.durations, *other.durations}
        return SectionTotals(
            max(self.took_ns, other.took_ns),
            max(self.close_calls, other.close_calls),
            {each: max(self.durations.get(each, 0), other.durations.get(each, 0)) for each in bits},
        )

    def and_also(self, other: SectionTotals) -> SectionTotals:
        """Return the sum of the counts of different sections."""
        durations = Counter(self.durations)
        durations.update(other.durations)
        return SectionTotals(self.took_ns + other.took_ns, self.close_calls + other.close_calls, durations)

    @property
    def closed(self) -> int:
        """How many were closed."""
        return sum(self.durations.values())


class RankTotals(NamedTuple):
    """Of one rank."""

    steps: int = 0
    sections: Mapping[str, SectionTotals] = {}

    @classmethod
    def of(
        cls, first: int | None, done: int | None, passed: int | None, sections: Mapping[str, SectionTotals]
    ) -> RankTotals:
        """Return the totals of one generation.

        Steps are those that the rank has counted. Where it has counted none, as with bare sections, they are told by
        the iterations, which know of those that open no section (warm-up), and by the sections, which know of all where
        iterations begin again (epochs), but hold evaluation steps, too; the higher number has missed less.

        Args:
            first: Iteration of the first step; None where there was none.
            done: Iteration of the last step that ended.
            passed: How many the rank has counted until then; None for none.
            sections: By name.
        """
        if passed is not None and first is not None and done is not None:
            return cls(Steps(first, done, 0, passed).passed, sections)
        by_iteration = done - first + 1 if first is not None and done is not None else 0
        by_section = sections[STEP].closed if STEP in sections else 0
        return cls(max(by_iteration, by_section, passed or 0), sections)

    def or_more(self, other: RankTotals) -> RankTotals:
        """Return the higher of two counts of the same generation."""
        names = [*self.sections, *(name for name in other.sections if name not in self.sections)]
        return RankTotals(
            max(self.steps, other.steps), {name: _of(self, name).or_more(_of(other, name)) for name in names}
        )

    def and_also(self, other: RankTotals) -> RankTotals:
        """Return the sum of two generations."""
        names = [*self.sections, *(name for name in other.sections if name not in self.sections)]
        return RankTotals(
            self.steps + other.steps, {name: _of(self, name).and_also(_of(other, name)) for name in names}
        )


class Totals:
    """Of all ranks that this node has had."""

    def __init__(self) -> None:
        self._sums: dict[int, RankTotals] = {}
        """By rank, of generations of which nothing comes any more."""
        self._summed: dict[int, int] = {}
        """By rank, up to which generation."""
        self._apart: dict[int, dict[int, RankTotals]] = {}
        """By rank and generation."""
        self._places: dict[int, tuple[int, int]] = {}
        """By local rank: the newest generation, and who had the place in it."""

    def note(self, generation: int, rank: int, local_rank: int, totals: RankTotals) -> None:
        """Note what was seen of a rank in one generation, now or before."""
        if generation >= self._places.get(local_rank, (-1, -1))[0]:
            self._places[local_rank] = generation, rank
        if generation <= self._summed.get(rank, -1):
            return
        apart = self._apart.setdefault(rank, {})
        apart[generation] = apart.get(generation, RankTotals()).or_more(totals)
        while len(apart) > _GENERATIONS_APART:
            oldest = min(apart)
            self._sums[rank] = self._sums.get(rank, RankTotals()).and_also(apart.pop(oldest))
            self._summed[rank] = oldest

    def ranks(self) -> Iterator[tuple[int, int, RankTotals]]:
        """Yield rank, local rank and totals of those that this node has, or had in the last generation."""
        newest = max((generation for generation, _ in self._places.values()), default=0)
        seen = set()
        places = sorted(self._places.items(), key=lambda place: (-place[1][0], place[0]))
        for local_rank, (generation, rank) in places:
            if generation >= newest - 1 and rank not in seen:
                seen.add(rank)
                total = self._sums.get(rank, RankTotals())
                for totals in self._apart.get(rank, {}).values():
                    total = total.and_also(totals)
                yield rank, local_rank, total


def _of(totals: RankTotals, name: str) -> SectionTotals:
    return totals.sections.get(name, SectionTotals())
