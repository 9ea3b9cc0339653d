"""From which generation each one has gone on: only what leads to the end of the training was kept.

A restart goes on from a checkpoint. Mostly that is the newest one, of the generation before. It may also be an older
one, as where a node does not find the newest, and a later restart may find the newest again: what was done in between
was lost then, though training has gone on beyond it.

Whose checkpoint it was is told by the saves that were noted; where none was, by who had come so far. Two shapes were
considered. To count as lost whatever a later generation has begun below is right only where nothing goes forward again.
To follow the checkpoints from the last generation back to the first holds for both, so that is what is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.reports.story import JobGeneration, Story

__all__ = [
    "Origin",
    "Way",
    "begin_of",
    "first_after_a_save",
    "has_other_numbers",
    "has_unnoted_saves",
    "held_by",
    "known_first_after_a_save",
    "odd_runs",
    "origins",
    "saves_of",
    "shift_of",
    "way",
]


class Origin(NamedTuple):
    """The generation that another one has gone on from; in a :class:`Way`, that has gone on from another one."""

    number: int
    """Its index in ``story.generations``."""
    is_about: bool
    """It may have been another one."""


class Way(NamedTuple):
    """The generations by which training has come to its last one, as far as that is known."""

    last: int | None
    """The index of that; None where nothing has begun."""
    after: Mapping[int, Origin]
    """By index of each of the others: which has gone on from it."""


def odd_runs(story: Story) -> frozenset[int]:
    """Return the runs in which iterations do not count on through."""
    return frozenset(
        run for run, numbers in enumerate(story.runs) if any(story.launches[number].went_back for number in numbers)
    )


def first_after_a_save(story: Story) -> int:
    """Return what is to be added to the number of a save for that of the first iteration after it; 0 if not known."""
    return known_first_after_a_save(story) or 0


def known_first_after_a_save(story: Story) -> int | None:
    """Return the same, as resumes show, and what ranks had done when they saved; None where neither does.

    What is noted as loaded may be numbered in another way, and tells only where no noted save does.
    """
    for generation, origin in zip(story.generations, origins(story), strict=True):
        if origin is None or (first := generation.first_iteration) is None:
            continue
        found = {first, first - 1} & saves_of(story.generations[origin.number])
        if len(found) == 1:  # where each step is saved, it may be either
            return first - found.pop()
    lives = (life for each in story.generations for member in each.members for life in member.lives.values())
    saves = (save for life in lives for save in life.saves.values())
    shifts = {save.done + 1 - save.iteration for save in saves if save.done is not None}
    return shifts.pop() if len(shifts) == 1 and shifts <= {0, 1} else _first_after_a_load(story)


def _first_after_a_load(story: Story) -> int | None:
    """Return the same of the number of a checkpoint that was noted as loaded."""
    return next((shift for each in story.generations if (shift := shift_of(each)) is not None), None)


def shift_of(generation: JobGeneration) -> int | None:
    """Return by how much a generation's first iteration is above the checkpoint that it has loaded, if by 0 or 1."""
    first, resumed_from = generation.first_iteration, generation.resumed_from
    if first is None or resumed_from is None or first - resumed_from not in (0, 1):
        return None
    return first - resumed_from


def begin_of(generation: JobGeneration) -> int | None:
    """Return with which iteration a generation has begun, as far as that is known."""
    known = (generation.first_iteration, generation.resumed_from, generation.lowest_iteration)
    return next((each for each in known if each is not None), None)


def held_by(story: Story, resumed: JobGeneration) -> int | None:
    """Return the last iteration in the state that a generation has begun with, as far as it is known."""
    if resumed.first_iteration is not None:
        return resumed.first_iteration - 1
    return resumed.resumed_from - 1 + (_first_after_a_load(story) or 0) if resumed.resumed_from is not None else None


def has_other_numbers(story: Story, generation: JobGeneration) -> bool:
    """Return whether the checkpoints of a generation are numbered by something else than steps."""
    return any(story.launches[member.launch].has_other_numbers for member in generation.members)


def saves_of(generation: JobGeneration) -> set[int]:
    """Return the iterations of all saves that ranks of a generation have noted."""
    return {iteration for member in generation.members for life in member.lives.values() for iteration in life.saves}


def has_unnoted_saves(story: Story) -> bool:
    """Return whether training has gone on from a save that no rank has noted, though they note saves.

    So it is with one in a thread that goes on after the training has been left by an exception.
    """
    noted: set[int] = set()
    found = False
    for resumed, origin in zip(story.generations, origins(story), strict=True):
        numbers = _numbers_of(resumed)
        found = found or (origin is not None and bool(numbers) and noted.isdisjoint(numbers))
        noted |= saves_of(resumed)
    return found and bool(noted) and not any(has_other_numbers(story, each) for each in story.generations)


def origins(story: Story) -> tuple[Origin | None, ...]:
    """Return from which generation each one has gone on, in their order; None where none is known."""
    odd, generations = odd_runs(story), story.generations
    begun = [None if each.run in odd else begin_of(each) for each in generations]
    savers: dict[int, list[int]] = {}
    found: list[Origin | None] = []
    for number, resumed in enumerate(generations):
        begin, held = begun[number], held_by(story, resumed)
        if begin is None:
            found.append(None)
            continue
        last = begin - 1 if held is None else held
        worked = [index for index in range(number) if (first := begun[index]) is not None and first <= last]
        hidden = [index for index in range(number) if begun[index] is None]
        found.append(_origin(generations, worked, hidden, savers, resumed, last))
        for iteration in saves_of(resumed):
            savers.setdefault(iteration, []).append(number)
    return tuple(found)


def _numbers_of(resumed: JobGeneration) -> tuple[int, ...]:
    """Return which numbers the save may have that a generation has gone on from, the likeliest first.

    What was noted as loaded may be another number than that of the save: one of them is of the last step, say.
    """
    loaded = () if resumed.resumed_from is None else (resumed.resumed_from,)
    return (
        loaded if resumed.first_iteration is None else (*loaded, resumed.first_iteration, resumed.first_iteration - 1)
    )


def _origin(
    generations: Sequence[JobGeneration],
    worked: Sequence[int],
    hidden: Sequence[int],
    savers: Mapping[int, Sequence[int]],
    resumed: JobGeneration,
    last: int,
) -> Origin | None:
    """Return which of the generations before another one has come to the state that it has begun with.

    Args:
        generations: All of them.
        worked: Indices of those that had begun before the state was reached.
        hidden: Indices of those of which it is not known with what they began.
        savers: Indices of who has noted a save, by its number.
        resumed: The one that has begun with the state.
        last: The last iteration in it.
    """
    able = frozenset(worked)
    of_saves = (n for number in _numbers_of(resumed) for n in reversed(savers.get(number, ())) if n in able)
    saved = next(of_saves, None)
    came = next((index for index in reversed(worked) if _may_have_come_to(generations[index], last)), None)
    found = saved if saved is not None else came if came is not None else max(worked, default=None)
    if found is None:
        return None
    # A later one has come there too, and may have saved it just before it was killed; or its lines are missing.
    is_about = saved is not None and came is not None and came > saved
    return Origin(found, is_about or any(n > found and generations[n].is_open_ended for n in hidden))


def _may_have_come_to(generation: JobGeneration, iteration: int) -> bool:
    """Return whether a generation has begun an iteration, or may have: its last lines are missing."""
    return generation.is_open_ended or (generation.iteration is not None and generation.iteration >= iteration)


def way(story: Story) -> Way:
    """Return by which generations training has come to its last one."""
    known, odd, after = origins(story), odd_runs(story), dict[int, Origin]()
    begun = (n for n, each in enumerate(story.generations) if each.run not in odd and begin_of(each) is not None)
    number = last = max(begun, default=None)
    while number is not None and (origin := known[number]) is not None:
        after[origin.number] = Origin(number, origin.is_about)
        number = origin.number
    return Way(last, after)
