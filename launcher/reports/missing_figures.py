"""Figures that are missing from a story: durations and saves that were in them are not among what was observed."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.reports.formats import rank_list
from launcher.reports.story import JobGeneration, Story

__all__ = ["lacks_figures", "of_what_was_observed"]


def lacks_figures(story: Story) -> bool:
    """Return whether more may have been observed than figures tell: some are missing, end early or were left out."""
    launches = any(launch.lacks_figures or launch.lacks_last for launch in story.launches)
    return launches or bool(story.missing or story.lacks) or any(map(_lacks_some, story.generations))


def _lacks_some(generation: JobGeneration) -> bool:
    return generation.is_partial or generation.is_open_ended


def of_what_was_observed(story: Story) -> Iterator[str]:
    """Yield what follows for limits and saves from figures that are missing."""
    if not lacks_figures(story) or not any(story.lives.values()):
        return
    numbers = [number for _, number in story.missing] + [g.number for g in story.generations if _lacks_some(g)]
    where = f" of generation(s) {rank_list(numbers)}" if numbers else ""
    yield (
        f"figures{where} are missing, end early or were left out: there may have been longer durations, more of them "
        "and more saves than those that are left tell, so what was observed under limits, the room of these and the "
        "numbers of saves are about right only"
    )
