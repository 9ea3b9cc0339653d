"""Which save of a training counts as kept where nothing has gone on from it.

It may be that one rank writes and the others pass by, or that each writes its part. What only some have noted may not
be complete: another one was late, or has failed in it or before it. So the newest save counts that every rank which
saves has noted.
"""

from __future__ import annotations

from typing import NamedTuple

from launcher.reports.lineage import saves_of
from launcher.reports.rank_lives import RankLife
from launcher.reports.story import JobGeneration, Member, Story

__all__ = ["LastSave", "is_kept_whole", "last_save"]


def is_kept_whole(story: Story, generation: JobGeneration) -> bool:
    """Return whether all that a generation has done counts as kept where nothing has gone on from it.

    It has ended well, has stopped itself, or the run is under way.
    """
    launches = [story.launches[member.launch] for member in generation.members]
    return generation.is_stopped_on_purpose or any(
        member.own.finished_ns is not None or launch.is_running or launch.outcome == "succeeded"
        for member, launch in zip(generation.members, launches, strict=True)
    )


class LastSave(NamedTuple):
    """The save that a generation has left behind."""

    number: int | None
    """None where there was none."""
    missing: tuple[int, ...] = ()
    """The ranks that have not noted the newest one, which others have."""


def last_save(story: Story, generation: JobGeneration) -> LastSave:
    """Return the last save of a generation that all ranks have noted which save.

    A rank saves that has noted a save in any generation, or has begun one in this. One that ended well before is not
    asked, unless it has saved in this generation.
    """
    savers = {rank for each in story.generations for rank, (_, life) in _lives(story, each).items() if life.saves}
    lives = _lives(story, generation)
    saving = {
        rank: life
        for rank, (member, life) in lives.items()
        if life.saves or (rank not in member.left and (rank in savers or life.has_begun_to_save))
    }
    if not saving:
        return LastSave(max(saves_of(generation), default=None))
    newest = max((save for life in saving.values() for save in life.saves), default=None)
    missing = tuple(sorted(rank for rank, life in saving.items() if newest not in life.saves))
    if newest is None:
        return LastSave(None)
    if not missing:
        unknown = (rank for rank, (member, _) in lives.items() if rank not in saving and rank not in member.left)
        return LastSave(newest, tuple(sorted(rank for rank in unknown if not _has_passed_by_one(story, rank))))
    return LastSave(max(set.intersection(*(set(life.saves) for life in saving.values())), default=None), missing)


def _lives(story: Story, generation: JobGeneration) -> dict[int, tuple[Member, RankLife]]:
    return {
        rank: (member, life)
        for member in generation.members
        for rank, life in member.lives.items()
        if rank not in story.aside
    }


def _has_passed_by_one(story: Story, rank: int) -> bool:
    """Return whether a rank has begun a step after a save that others have noted: it does not save, then.

    One that has failed before that may be the one that writes, and it was in its first save.
    """
    for generation in story.generations:
        lives = _lives(story, generation)
        own = lives[rank][1].iteration if rank in lives else None
        saves = [save for _, life in lives.values() for save in life.saves.values()]
        first = min((save.iteration if save.done is None else save.done for save in saves), default=None)
        if own is not None and first is not None and own > first:
            return True
    return False
