"""Figures that are missing from a story: durations and saves that were in them are not among what was observed."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.reports.doubts import is_doubtful
from launcher.reports.formats import rank_list
from launcher.reports.story import JobGeneration, Story

__all__ = ["of_what_was_observed"]


def _lacks_some(generation: JobGeneration) -> bool:
    return generation.is_partial or generation.is_open_ended


def of_what_was_observed(story: Story) -> Iterator[str]:
    """Yield what follows for limits and saves from figures that are missing."""
    if not is_doubtful(story) or not any(story.lives.values()):
        return
    numbers = [number for _, number in story.missing] + [g.number for g in story.generations if _lacks_some(g)]
    which = f"figures of generation(s) {rank_list(numbers)} are" if numbers else "figures may be"
    yield (
        f"{which} missing, end early or were left out: there may have been longer durations, more of them "
        "and more saves than those that are left tell, so what was observed under limits, the room of these and the "
        "numbers of saves are about right only"
    )
