"""When a node took no part in a job that ran on others: before its launcher began, and after it was lost or had left.

Where the first or the last lines of its launcher are missing, it may have taken part: that time is not known.

Clocks of two machines are not compared. Those of a run's launchers are laid on each other where they have started the
same generation, so what is told is a difference of durations.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterator, Mapping, Sequence

from launcher.reports.story import Story, end_ns
from launcher.reports.writers import UNKNOWN_NODE
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["absences", "may_have_gone_on"]

_LEAST_NS = NS_PER_SECOND
"""Launchers of a job never begin and end at the same moment; less than that is not told."""


_ABSENT, _UNKNOWN = "absent", "unknown"


def absences(story: Story) -> Iterator[tuple[str, str, int, bool]]:
    """Yield nodes that took no part in their run for a while, the category of that time, nanoseconds, and ``is_about``.

    That is said of a node whose launcher was lost: it has gone on after its last line, nobody knows for how long.

    The category is that of unknown time where the node may have taken part. The time between two launchers of one node
    is not among it.
    """
    of_node: dict[str, list[int]] = collections.defaultdict(list)
    for number, name in story.node_of.items():
        if story.launches[number].generations:
            of_node[name].append(number)
    for run in story.runs:
        numbers = [number for number in run if story.launches[number].generations]
        shifts = _shifts(story, numbers)
        begins = {number: story.launches[number].began_ns + shifts[number] for number in numbers}
        ends = {number: end_ns(story.launches[number]) + shifts[number] for number in numbers}
        for node, own in of_node.items():
            first, last = own[0], own[-1]
            if first in begins and begins[first] - min(begins.values()) >= _LEAST_NS:
                is_known = story.launches[first].is_begun_known
                yield node, _ABSENT if is_known else _UNKNOWN, begins[first] - min(begins.values()), False
            has_gone = last in ends and not story.launches[last].is_running
            if has_gone and max(ends.values()) - ends[last] >= _LEAST_NS:
                key = _UNKNOWN if may_have_gone_on(story, last) else _ABSENT
                yield node, key, max(ends.values()) - ends[last], story.launches[last].ended_ns is None
    yield from _in_other_runs(story, of_node)


def _in_other_runs(story: Story, of_node: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str, int, bool]]:
    """Yield the time of the runs before the first one and after the last one in which a node took part.

    Runs follow one another on the wall clock, as in the head of the report.
    """
    launches = [number for run in story.runs for number in run if story.launches[number].generations]
    # What was of incidents alone may have been on other nodes, too, or be another run than it seems.
    # Nor is it known where one took part of which nothing tells the node.
    is_unclear = any(launch.is_of_incidents or launch.node == UNKNOWN_NODE for launch in story.launches)
    key = _UNKNOWN if is_unclear else _ABSENT
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for number in launches:
        run, launch = story.run_of[number], story.launches[number]
        begins[run] = min(begins.get(run, float("inf")), story.at(number, launch.began_ns))
        ends[run] = max(ends.get(run, 0.0), story.at(number, end_ns(launch)))
    for own in of_node.values():
        first, last = story.run_of[own[0]], story.run_of[own[-1]]
        for seconds in (begins[first] - min(begins.values()), max(ends.values()) - ends[last]):
            if seconds * NS_PER_SECOND >= _LEAST_NS:
                yield story.node_of[own[0]], key, round(seconds * NS_PER_SECOND), False


def may_have_gone_on(story: Story, number: int) -> bool:
    """Return whether a launch may have taken part after its last line: others were as many as with it."""
    launch = story.launches[number]
    if launch.is_of_incidents:
        return True
    if launch.ended_ns is not None or not launch.generations:
        return False
    run = [generation for generation in story.generations if generation.run == story.run_of[number]]
    own = max(index for index, each in enumerate(run) if any(member.launch == number for member in each.members))
    others = [member for member in run[own].members if member.launch != number]
    goes_on = run[own].is_last and any(
        member.own.finished_ns is not None or story.launches[member.launch].is_running for member in others
    )
    return goes_on or any(later.is_partial for later in run[own + 1 :])


def _shifts(story: Story, numbers: Sequence[int]) -> dict[int, int]:
    """Return what is to be added to the times of each launch of a run, so that those of one moment are the same."""
    shifts: dict[int, int] = {}
    left = list(numbers)
    while left:
        # Those that have nothing to do with the others come last, and are laid there by the wall clock.
        known = ((number, shift) for number in left if (shift := _shift(story, number, shifts)) is not None)
        number, shift = next(known, (left[0], None))
        if shift is None and shifts:
            other = next(iter(shifts))
            apart = story.launches[number].epoch - story.launches[other].epoch
            shift = shifts[other] + round(apart * NS_PER_SECOND)
        shifts[number] = shift or 0
        left.remove(number)
    return shifts


def _shift(story: Story, number: int, shifts: Mapping[int, int]) -> int | None:
    """Return the same for one launch, by another of its machine, or by the generations that both have started."""
    one, own = story.launches[number], _started(story, number)
    for other, shift in shifts.items():
        if story.launches[other].boot == one.boot:
            return shift
    for other, shift in shifts.items():
        theirs = _started(story, other)
        if both := own.keys() & theirs.keys():
            return shift + round(statistics.median(theirs[each] - own[each] for each in both))
    return None


def _started(story: Story, number: int) -> dict[int, int]:
    generations = story.launches[number].generations
    return {generation.number: generation.started_ns for generation in generations if generation.is_start_known}
