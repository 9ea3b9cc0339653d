"""What is known to be missing from a story: its events contradict each other, or figures and incidents do."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.reports.doubts import is_doubtful
from launcher.reports.model import Run
from launcher.reports.story import Story

__all__ = [
    "are_ranks_unknown",
    "failures_told",
    "is_wall_about",
    "may_have_started",
    "runs_of_unknown_ranks",
    "with_gaps",
]

_MOST_MISSING = 10_000


def with_gaps(story: Story) -> Story:
    """Return a story that knows what is missing from it."""
    missing = _missing(story)
    return story._replace(missing=missing, runs_about=_runs_about(story, missing))


def _missing(story: Story) -> frozenset[tuple[int, int]]:
    """Return the runs and numbers of generations of which nothing is left: they are numbered from 0 through a run."""
    there = {(generation.run, generation.number) for generation in story.generations}
    # No rank may have been started in one for which the nodes have met.
    met = {(story.run_of[index], number) for index, launch in enumerate(story.launches) for number in launch.met}
    highest: dict[int, int] = {}
    for run, number in there:
        highest[run] = max(number, highest.get(run, 0))
    # A number that damage has made is no reason to count that far.
    most = {run: number for run, number in highest.items() if number <= 2 * len(there) + _MOST_MISSING}
    return frozenset((run, n) for run, number in most.items() for n in range(number)) - there - met


def _runs_about(story: Story, missing: frozenset[tuple[int, int]]) -> frozenset[int]:
    about = {story.run_of[number] for number, launch in enumerate(story.launches) if not launch.is_whole}
    about |= {run for run, _ in missing}
    about |= {story.run_of[number] for number, launch in enumerate(story.launches) if _lacks_figures(story, number)}
    about |= {story.run_of[number] for number in range(len(story.launches)) if may_have_started(story, number)}
    about |= runs_of_unknown_ranks(story)
    about |= {each.run for each in story.generations if any(member.is_end_missing for member in each.members)}
    about |= {run for run in range(len(story.runs)) if (told := failures_told(story, run)) and told[0] > told[1]}
    return frozenset(about)


def _lacks_figures(story: Story, number: int) -> bool:
    """Return whether nothing is left of what a launcher's ranks have told of themselves, or of what it did."""
    launch = story.launches[number]
    known = any(story.lives.get((number, generation.number)) for generation in launch.generations)
    return not launch.has_events or (bool(launch.generations) and not known)


def may_have_started(story: Story, number: int) -> list[int]:
    """Return the generations in which a launch may have had ranks, though nothing is left of these.

    Its lines end without a word, and tell that the nodes have met for them; or they tell of no generation, and those
    ran on more nodes than are known.
    """
    launch = story.launches[number]
    if launch.is_running or launch.ended_ns is not None:
        return []
    run = [each for each in story.generations if each.run == story.run_of[number] and not launch.generations]
    may_have = launch.met | {each.number for each in run if each.is_partial}
    return sorted(may_have - {generation.number for generation in launch.generations})


def are_ranks_unknown(story: Story, number: int) -> bool:
    """Return whether nothing tells of ranks of a launch, and lines that would tell of them may be missing.

    Where others of its run have started ranks, these tell how many nodes there were; in a run in which no other has,
    its own lines alone would tell.
    """
    launch = story.launches[number]
    if launch.generations or (launch.is_whole and (launch.is_running or launch.ended_ns is not None)):
        return False
    run = [each for each in story.generations if each.run == story.run_of[number]]
    return not run or any(each.is_partial for each in run)


def runs_of_unknown_ranks(story: Story) -> frozenset[int]:
    """Return the runs of which no rank is known, though a launcher of theirs may have started some."""
    with_ranks = {each.run for each in story.generations}
    numbers = range(len(story.launches))
    return frozenset(story.run_of[number] for number in numbers if are_ranks_unknown(story, number)) - with_ranks


def is_wall_about(story: Story, runs: Sequence[Run]) -> bool:
    """Return whether it is not known when a job began, or when it ended.

    Of several nodes the wall time is the mean of their ranks, of which some, or their last lines, may be missing.
    """
    # A launcher that has not said that it ended may have run until later than its last line.
    is_mean_about = is_doubtful(story) and len(set(story.node_of.values())) > 1
    is_mean_about |= any(generation.is_partial for generation in story.generations)
    return bool(story.lacks) or is_mean_about or runs[0].is_begin_about or runs[-1].is_length_about


def failures_told(story: Story, run: int) -> tuple[int, int] | None:
    """Return how many failures a run's launchers have counted at their end, and how many are known; None without."""
    told = [count for number in story.runs[run] if (count := story.launches[number].failures) is not None]
    known = sum(generation.run == run and generation.has_failed for generation in story.generations)
    return (max(told), known) if told else None
