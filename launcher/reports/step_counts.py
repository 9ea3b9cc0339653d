"""Which iterations a generation has done, which of them were kept, and which others have done as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.reports.doubts import is_doubtful
from launcher.reports.held import older_state, partial_save, unclear_save, unknown_end, unsaved_stop
from launcher.reports.lineage import Way
from launcher.reports.story import JobGeneration, Story
from launcher.reports.strides import steps_beyond

__all__ = [
    "Interval",
    "is_count_about",
    "is_uncounted",
    "is_untold",
    "kept_intervals",
    "last_missing",
    "repeated",
    "union",
]

Interval = tuple[int, int]
"""First and last iteration."""


def is_uncounted(story: Story, generation: JobGeneration) -> bool:
    """Return whether a generation has done something, and its figures do not tell with which iteration it began."""
    lives = [life for member in generation.members for life in member.lives.values()]
    if not lives or generation.first_iteration is not None:
        return False
    # Where all lines are there, an iteration without a first step is one of an evaluation.
    is_told = all(life.iteration is None or life.is_over for life in lives) and generation.resumed_from is not None
    has_worked = generation.iteration is not None and not is_told
    has_worked |= any(life.first_step_ns is not None for life in lives)
    return has_worked or not story.has_steps  # where others tell of steps, it came to none


def is_untold(generation: JobGeneration) -> bool:
    """Return whether nothing at all tells what a generation has done."""
    return generation.is_open_ended and not any(member.lives for member in generation.members)


def _interval(generation: JobGeneration) -> Interval | None:
    first, done = generation.first_iteration, generation.done
    return (first, done) if first is not None and done is not None and done >= first else None


def union(intervals: Iterable[Interval | None]) -> list[Interval]:
    """Return the iterations that are in any of the intervals, as intervals that are apart."""
    merged: list[Interval] = []
    for first, last in sorted(interval for interval in intervals if interval is not None):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def repeated(
    story: Story,
    number: int,
    later: Sequence[JobGeneration],
    kept: Sequence[Interval | None],
    missing: tuple[int, int] | None,
) -> int | None:
    """Return how many iterations of a generation others have done as well, of those that were not kept of it.

    Of several that have done an iteration, one did not do it in vain: the one of which it was kept, else the last.

    Args:
        story: What was read.
        number: Index of the generation.
        later: Those after it.
        kept: What was kept of each, as :func:`kept_intervals` returns it.
        missing: The last one of which nothing is left, as :func:`last_missing` returns it.
    """
    generation = story.generations[number]
    if not any(member.lives for member in generation.members):
        return None
    if later and any(is_uncounted(story, each) for each in (generation, *later)):
        return None
    if missing is not None and missing > (generation.run, generation.number):
        return None
    if (later and generation.is_cut) or any(map(is_untold, later)):
        return None
    if (own := _interval(generation)) is None:
        return 0
    if any(each.is_cut and (each.done is None or each.done < own[1]) for each in later):
        return None
    first = own[0] if (prefix := kept[number]) is None else prefix[1] + 1
    if first > own[1]:
        return 0
    done = union([*map(_interval, later), *kept[:number], *kept[number + 1 :]])
    return sum(max(0, min(own[1], end) - max(first, begin) + 1) for begin, end in done)


def kept_intervals(story: Story, ways: Way) -> list[Interval | None]:
    """Return which iterations were kept of each generation."""
    found: list[Interval | None] = []
    for number, generation in enumerate(story.generations):
        after = ways.after.get(number)
        is_kept = after is not None or number == ways.last
        successor = None if after is None else story.generations[after.number]
        found.append(_kept_interval(generation, successor) if is_kept else None)
    return found


_OPEN = (unsaved_stop, unclear_save, partial_save, older_state, unknown_end)
"""What leaves it open how much was kept."""


def is_count_about(story: Story) -> bool:
    """Return whether ranks may have done other iterations than those that are counted."""
    is_done_about = any(generation.is_done_about for generation in story.generations)
    is_open = any(each(story) is not None for each in _OPEN)
    return is_doubtful(story) or is_done_about or is_open or steps_beyond(story) is not None


def last_missing(story: Story) -> tuple[int, int] | None:
    """Return run and number of the last generation of which nothing is left: they count from 0 through a run."""
    if not is_count_about(story):
        return None
    there: dict[int, set[int]] = {}
    for generation in story.generations:
        there.setdefault(generation.run, set()).add(generation.number)
    # A number that is damaged may be of any size, so none is looked for one by one.
    before = {(run, number - 1) for run, numbers in there.items() for number in numbers if number > 0}
    return max(before - {(run, number) for run, numbers in there.items() for number in numbers}, default=None)


def _kept_interval(generation: JobGeneration, successor: JobGeneration | None) -> Interval | None:
    """Return what a generation has done that the one which has gone on from it had not to do again.

    Where last lines are missing, it is what that one went on from.
    """
    own, first = _interval(generation), generation.first_iteration
    if successor is None or successor.first_iteration is None:
        return own
    end = successor.first_iteration - 1
    if generation.is_silent and first is not None:
        return (first, end) if end >= first else None
    return (own[0], min(end, own[1])) if own is not None and end >= own[0] else None
