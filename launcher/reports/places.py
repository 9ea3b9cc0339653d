"""The time of a place, which is one rank's device on a node, in which no rank ran there.

A node may have another number of ranks in each run, and in each generation. A place that it has at any time has a row
for the whole time of the job, so that the rows of all places are of the same length.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from launcher.reports.absences import absences
from launcher.reports.story import Story, end_ns
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["Entry", "Place", "absent", "between_launches", "unaccounted", "without_ranks"]

Place = tuple[str, int]
"""A node and a local rank."""


class Entry(NamedTuple):
    """A stretch of one place's time."""

    place: Place
    rank: int | None
    generation: int | None
    """Index of the one that is the reason: what follows a generation is due to it, until the next one starts."""
    key: str
    """Of the category."""
    ns: int
    is_about: bool = False


def without_ranks(story: Story, number: int, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Tell of places of a launch's node that have no rank in all or some of its generations.

    Args:
        story: What was read.
        number: Of the launch.
        entries: Those of its ranks.
    """
    launch, node = story.launches[number], story.node_of[number]
    if not launch.generations:
        return
    spent_ns = dict.fromkeys(((node, local) for local in _locals_of(story, node)), 0)
    for entry in entries:
        spent_ns[entry.place] += entry.ns
    # The launch is as long as the time of a rank that was there throughout.
    stops = (member.stopped_ns for _, member in story.members if member.launch == number)
    length_ns = max(end_ns(launch), *stops) - launch.began_ns
    key = "absent" if all(generation.local_ranks for generation in launch.generations) else "unknown"
    for place, ns in spent_ns.items():
        if ns < length_ns:
            yield Entry(place, None, None, key, length_ns - ns)


def between_launches(story: Story) -> Iterator[Entry]:
    """Cut the time in which a place had no launcher, from its node's first one to its last one."""
    by_node: dict[str, list[int]] = collections.defaultdict(list)
    for number in range(len(story.launches)):
        if story.launches[number].generations:
            by_node[story.node_of[number]].append(number)
    for node, numbers in by_node.items():
        ranks = [_locals_in(story, number) for number in numbers]
        for index, (former, later) in enumerate(itertools.pairwise(numbers), 1):
            one, other = story.launches[former], story.launches[later]
            if one.boot == other.boot:
                gap_ns = other.began_ns - end_ns(one)
            else:
                gap_ns = int((other.at(other.began_ns) - one.at(end_ns(one))) * NS_PER_SECOND)
            runs = range(story.run_of[former] + 1, story.run_of[later] + 1)
            is_known = other.is_begun_known and story.lacks.isdisjoint(runs)
            key = "between_runs" if is_known else "unknown"  # its first lines are missing, or a run before it
            before, after = set().union(*ranks[:index]), set().union(*ranks[index:])
            for local in sorted(before | after):
                is_between = local in before and local in after
                is_about = one.ended_ns is None  # its time ends with its last line
                yield Entry((node, local), None, None, key if is_between else "absent", max(0, gap_ns), is_about)


def absent(story: Story) -> Iterator[Entry]:
    """Tell of places whose node took no part for a while, so that all add up to the wall time of the job."""
    for node, key, ns, is_about in absences(story):
        for local in sorted(_locals_of(story, node)):
            yield Entry((node, local), None, None, key, ns, is_about)


def unaccounted(story: Story, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Tell of what is left of the wall time of a place: lines that are missing leave holes that nothing else finds.

    Of one machine alone: those of several need not agree about when the story began and ended.
    """
    boots = {launch.boot for launch in story.launches} - {launch.file for launch in story.launches}  # not known there
    if not story.runs_about or len(boots) > 1:
        return
    spent_ns: dict[Place, int] = collections.defaultdict(int)
    for entry in entries:
        spent_ns[entry.place] += entry.ns
    length_ns = int(story.seconds * NS_PER_SECOND)
    for place, ns in spent_ns.items():
        if ns < length_ns:
            yield Entry(place, None, None, "unknown", length_ns - ns, is_about=True)


def _locals_of(story: Story, node: str) -> set[int]:
    own = (number for number, name in story.node_of.items() if name == node)
    return {local for number in own for local in _locals_in(story, number)}


def _locals_in(story: Story, number: int) -> set[int]:
    return {local for generation in story.launches[number].generations for local in generation.local_ranks}
