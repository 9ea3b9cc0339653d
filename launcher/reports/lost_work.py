"""Which of a generation's work was kept, and which had to be done again.

A generation has done the iterations from its first to the last one that all ranks have done. What a later generation
has begun with again was lost, and so was everything since the state that it resumed from was reached: when the save of
that number was complete. Where no such save was noted, the moment is interpolated between lines of figures.

Of ranks that tell of no steps, as those that use bare sections or heartbeats, it is not known which iterations they
have done. What they have lost is known where the save is; otherwise it is known at most that it was something.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from launcher.reports.held import unsaved_stop
from launcher.reports.last_saves import is_kept_whole, last_save
from launcher.reports.lineage import (
    Origin,
    begin_of,
    first_after_a_save,
    has_other_numbers,
    odd_runs,
    saves_of,
    way,
)
from launcher.reports.rank_lives import RankLife
from launcher.reports.step_counts import is_count_about, is_uncounted, kept_intervals, last_missing, repeated, union
from launcher.reports.story import JobGeneration, Member, Story
from launcher.reports.strides import counts_in_strides
from launcher.reports.under_way import is_loss_open

__all__ = [
    "Kept",
    "Loss",
    "are_counts_about",
    "hides_its_begin",
    "kept_steps",
    "losses",
    "lost_from_ns",
    "total_repeated",
]


class Kept(Enum):
    """Until when a generation's work was kept."""

    ALL = "all"
    SAVE = "until the save"
    ITERATION = "until an iteration was done"
    NOTHING = "nothing"
    PART = "a part, not known which"
    UNKNOWN = "not known"


class Loss(NamedTuple):
    """What became of a generation's work."""

    kept: Kept
    iteration: int | None = None
    """Of the save, or the last one that was kept."""
    repeated: int | None = 0
    """How many of its iterations were not kept and were done by others, too; None where that is not known."""
    is_final: bool = False
    """Nothing has gone on from it."""
    is_counted: bool = True
    """It is known with which iteration it began, if it has begun one."""
    is_cut: bool = False
    """Its last figures are missing: it may have done more than they tell."""
    is_about: bool = False
    """It may be another one: nothing has gone on from it as far as is known, and its last lines, or other nodes'
    folders, are missing, or the run is going to; or not all ranks have noted its last save."""


def losses(story: Story) -> list[Loss]:
    """Return what became of the work of each generation, in the order of ``story.generations``."""
    generations = story.generations
    odd = odd_runs(story)
    stopped = unsaved_stop(story)
    are_steps, ways, found = not counts_in_strides(story), way(story), []
    kept, missing = kept_intervals(story, ways), last_missing(story)
    for number, generation in enumerate(generations):
        if generation.run in odd:
            is_well = number + 1 == len(generations) and _final(story, generation, None).kept is Kept.ALL
            what = Kept.ALL if is_well else Kept.UNKNOWN
            found.append(Loss(what, repeated=None, is_about=_has_gone_back(generation)))
            continue
        later = [each for each in generations[number + 1 :] if each.run not in odd]
        is_counted = not is_uncounted(story, generation)
        again = repeated(story, number, later, kept, missing) if are_steps else None
        loss = _loss(story, generation, later, ways.after.get(number))
        if loss.is_final and not is_counted:
            again = None  # nothing tells whether there is anything to be done again
        is_end_about = generation.is_open_ended or generation.is_partial or bool(story.lacks)
        is_about = loss.is_about or _is_open(story, generation, loss) or (loss.is_final and is_end_about)
        is_about |= stopped is not None and stopped[0] is generation
        is_about |= any(origin.is_about for index, origin in ways.after.items() if index <= number < origin.number)
        found.append(loss._replace(repeated=again, is_counted=is_counted, is_cut=generation.is_cut, is_about=is_about))
    return found


def _is_open(story: Story, generation: JobGeneration, loss: Loss) -> bool:
    """Return whether the next generation is to tell what was kept of one that has failed."""
    return loss.kept is Kept.ALL and is_loss_open(story, generation)


def _has_gone_back(generation: JobGeneration) -> bool:
    """Return whether a rank has loaded a checkpoint after it had begun, and so given up what it had done since that."""
    lives = [life for member in generation.members for life in member.lives.values()]
    return any(
        life.has_reloaded
        or (
            life.first_iteration is not None
            and life.resumed_from is not None
            and life.resumed_from > life.first_iteration
        )
        for life in lives
    )


def _loss(story: Story, generation: JobGeneration, later: Sequence[JobGeneration], after: Origin | None) -> Loss:
    """Return what became of a generation's work; ``after`` is which has gone on from it on the way to the last one."""
    first, has_no_begin = generation.first_iteration, is_uncounted(story, generation)
    if not any(member.lives for member in generation.members):
        return Loss(Kept.UNKNOWN)
    if first is None and not has_no_begin:
        return Loss(Kept.ALL)
    successors = [(begin, each) for each in later if (begin := begin_of(each)) is not None]
    if not successors:
        has_gone_on = any(is_uncounted(story, each) or hides_its_begin(each) for each in later)
        return Loss(Kept.UNKNOWN) if has_gone_on else _final(story, generation, first)
    again, resumed = min(successors, key=lambda pair: pair[0])
    if after is not None:
        resumed = story.generations[after.number]
        again = next(begin for begin, each in successors if each is resumed)
    elif first is not None:
        return Loss(Kept.NOTHING)
    saves = saves_of(generation)
    around = () if resumed.first_iteration is None else (again, again - 1)
    for number in (resumed.resumed_from, *around):
        if number is not None and number in saves:
            return Loss(Kept.SAVE, number)
    if not has_no_begin:
        return Loss(Kept.ITERATION, again - 1)
    return Loss(Kept.PART if generation.iteration is not None and again < generation.iteration else Kept.UNKNOWN)


def hides_its_begin(generation: JobGeneration) -> bool:
    """Return whether a generation may have begun a step, and the lines that would tell with which are missing."""
    return generation.first_iteration is None and generation.is_open_ended


def _final(story: Story, generation: JobGeneration, first: int | None) -> Loss:
    """Return what became of the work of a generation that nothing has gone on from."""
    if is_kept_whole(story, generation):
        return Loss(Kept.ALL)
    save = last_save(story, generation)
    if save.number is not None:
        return Loss(Kept.SAVE, save.number, is_final=True, is_about=bool(save.missing))
    if first is None:
        return Loss(Kept.UNKNOWN, is_final=True)
    if save.missing:
        return Loss(Kept.NOTHING, is_final=True, is_about=True)
    reports_saves = any(saves_of(each) or each.resumed_from is not None for each in story.generations)
    if reports_saves or first <= min(each.first_iteration or 0 for each in story.generations):
        return Loss(Kept.NOTHING, is_final=True)
    return Loss(Kept.UNKNOWN, is_final=True)


def lost_from_ns(loss: Loss, member: Member, life: RankLife) -> tuple[int | None, bool]:
    """Return from when on a rank's work was lost, on its node's clock, and whether that is interpolated.

    Returns:
        None for never.
    """
    if loss.kept in (Kept.ALL, Kept.UNKNOWN, Kept.PART):
        return None, False
    if loss.kept is Kept.NOTHING or loss.iteration is None:
        return life.first_step_ns, False
    if loss.kept is Kept.SAVE:
        own = life.saves.get(loss.iteration)
        # A rank that takes no part in saves has reached the state when the others of its node have.
        others = [other.saves[loss.iteration] for other in member.lives.values() if loss.iteration in other.saves]
        if own is not None or others:
            return (own or max(others, key=lambda save: save.t_ns)).t_ns, False
    if life.done is not None and life.done < loss.iteration:
        return None, False  # all that is known of it was kept
    reached_ns = life.reached_ns(loss.iteration)
    return (reached_ns if reached_ns is not None else life.first_step_ns), True


# ---- counting -------------------------------------------------------------------------------------------


def are_counts_about(story: Story, found: Sequence[Loss]) -> bool:
    """Return whether the counts of steps are estimates: ranks may have done others, or what was kept is to be told."""
    pairs = zip(story.generations, found, strict=True)
    return is_count_about(story) or any(_is_open(story, generation, loss) for generation, loss in pairs)


def total_repeated(story: Story, found: Sequence[Loss]) -> int | None:
    """Return how many iterations were done again in the whole story; None where that is not known throughout."""
    if last_missing(story) is not None:
        return None
    counts = [loss.repeated for loss in found]
    return None if not counts or None in counts else sum(count for count in counts if count is not None)


def kept_steps(story: Story, found: Sequence[Loss]) -> int | None:
    """Return how many iterations were done and kept; None where that is not known."""
    if (
        not found
        or last_missing(story) is not None
        or any(loss.repeated is None or not loss.is_counted or loss.is_cut for loss in found)
    ):
        return None
    least: int | None = None
    for generation, loss in zip(story.generations, found, strict=True):
        if loss.is_final and loss.kept is Kept.SAVE and loss.iteration is not None:
            if has_other_numbers(story, generation):
                return None
            least = loss.iteration + first_after_a_save(story)
        elif loss.is_final and loss.kept is Kept.NOTHING:
            least = generation.first_iteration
    return sum(
        max(0, (end if least is None else min(end, least - 1)) - first + 1)
        for first, end in union(kept_intervals(story, way(story)))
    )
