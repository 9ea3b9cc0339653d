"""What a checkpoint that training has gone on from tells of the steps before it: they were done, and kept.

A save may be inside of a step, so a rank can be killed between writing it and leaving the step; or one rank saves while
another is behind. The lines tell then of fewer steps than the checkpoint holds. Training goes on from there, so what
the checkpoint holds counts as done. That is exact where each rank is known to have begun all of these steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.reports.formats import rank_list
from launcher.reports.last_saves import LastSave, is_kept_whole, last_save
from launcher.reports.lineage import (
    Origin,
    first_after_a_save,
    has_other_numbers,
    held_by,
    known_first_after_a_save,
    odd_runs,
    origins,
    saves_of,
    shift_of,
    way,
)
from launcher.reports.story import JobGeneration, Story
from launcher.reports.strides import counts_in_strides

__all__ = ["of_what_is_held", "older_state", "partial_save", "unknown_end", "unclear_save", "unsaved_stop", "with_held"]


def with_held(story: Story) -> Story:
    """Return a story in which a generation has done what a checkpoint of it holds that counts as kept."""
    if counts_in_strides(story):
        return story
    odd, generations, known = odd_runs(story), list(story.generations), origins(story)
    for resumed, origin in zip(story.generations, known, strict=True):
        held = held_by(story, resumed)
        if origin is None or held is None:
            continue
        is_told = resumed.resumed_from is not None and _is_numbering_known(story, known, resumed)
        own = _with_done(story, generations[origin.number], held, resumed, is_told=is_told)
        if origin.is_about:
            own = own._replace(is_done_about=True)
        generations[origin.number] = own
    last = _last(story)
    if last is not None and generations[last].run not in odd:
        generations[last] = _with_last_save(story, generations[last])
    return story._replace(generations=tuple(generations))


def _last(story: Story) -> int | None:
    """Return the index of the generation that nothing has gone on from; None where it is not known."""
    begun = (each.first_iteration is not None or each.resumed_from is not None for each in story.generations)
    last = max((number for number, has_begun in enumerate(begun) if has_begun), default=None)
    return last if last is not None and story.generations[last].first_iteration is not None else None


def unsaved_stop(story: Story) -> tuple[JobGeneration, int] | None:
    """Return the generation in which a training has stopped itself, and its last save; None where nothing was open.

    It may have saved its state in another way before that, or have given up the steps since the last save.
    """
    if (last := _last(story)) is None or story.generations[last].run in odd_runs(story):
        return None
    own = story.generations[last]
    saves = [*saves_of(own), *([own.resumed_from] if own.resumed_from is not None else [])]
    if not own.is_stopped_on_purpose or not saves or own.done is None:
        return None
    held = max(saves) - 1 + first_after_a_save(story)
    return (own, max(saves)) if own.done > held else None


def unclear_save(story: Story) -> int | None:
    """Return the number of the last save of a failed training if that may hold the step of its number, or not."""
    if (last := _last(story)) is None or not story.generations[last].has_failed:
        return None
    own = story.generations[last]
    if has_other_numbers(story, own):
        return None
    save = last_save(story, own).number
    return save if save is not None and known_first_after_a_save(story) is None else None


def partial_save(story: Story) -> LastSave | None:
    """Return the last save of a failed training that not all ranks have noted which save; None where there is none."""
    if (last := _last(story)) is None or story.generations[last].run in odd_runs(story):
        return None
    own = story.generations[last]
    save = last_save(story, own)
    return save if save.missing and own.has_failed and not is_kept_whole(story, own) else None


def older_state(story: Story) -> JobGeneration | None:
    """Return the last generation of a failed training where one before it has noted a newer save than all it knew."""
    if (last := _last(story)) is None or story.generations[last].run in odd_runs(story):
        return None
    own = story.generations[last]
    if not own.has_failed or is_kept_whole(story, own) or has_other_numbers(story, own):
        return None
    known = (last_save(story, own).number, own.first_iteration, own.resumed_from)
    newest = max((number for number in known if number is not None), default=-1)
    before = {save for each in story.generations[:last] for save in saves_of(each)}
    return own if max(before, default=-1) > newest else None


def unknown_end(story: Story) -> JobGeneration | None:
    """Return the last generation if it has ended well with no step, from a state that it has not told.

    That matters where the one before it had not come as far as another one, or as a save.
    """
    last = story.generations[-1] if story.generations else None
    if last is None or last.first_iteration is not None or last.resumed_from is not None:
        return None
    begun = (each for each in story.generations if each.first_iteration is not None)
    done = [-1 if each.done is None else each.done for each in begun]
    counting = (each for each in story.generations if not has_other_numbers(story, each))
    saves = {save - 1 for each in counting for save in saves_of(each)}
    return last if is_kept_whole(story, last) and done and done[-1] < max({*done, *saves}) else None


def _has_done(generation: JobGeneration, iteration: int) -> bool:
    return generation.done is not None and generation.done >= iteration


def _is_numbering_known(story: Story, known: Sequence[Origin | None], resumed: JobGeneration) -> bool:
    """Return whether the state that a generation has loaded holds all before its first iteration.

    A checkpoint of iteration 19 after which training goes on with 20 may hold 19, or a script has left 19 out, as one
    that failed. Other resumes tell which, where all steps before them are known to have been done.
    """
    shift = shift_of(resumed)
    if shift != 1:
        return shift == 0
    return any(
        origin is not None
        and other.first_iteration is not None
        and shift_of(other) == shift
        and _has_done(story.generations[origin.number], other.first_iteration - 1)
        for other, origin in zip(story.generations, known, strict=True)
    )


def _with_done(story: Story, own: JobGeneration, held: int, resumed: JobGeneration, *, is_told: bool) -> JobGeneration:
    """Return a generation that has come to a state from which another has gone on."""
    if _has_done(own, held) or own.is_cut or own.is_silent:
        return own
    if own.iteration is None or own.iteration < held:  # between runs, another one may be missing (chains)
        return own._replace(is_done_about=True, is_held_about=True) if own.run == resumed.run else own
    known = own.done if own.done is not None else (own.first_iteration or 0) - 1
    done = [life.done for member in own.members for life in member.lives.values() if life.done is not None]
    # Where a save need not be waited for, a rank may have been killed at the end of a step that another has done.
    is_one_more = held == known + 1 and held <= max(done, default=-1)
    is_about = not (is_one_more or (is_told and _have_all_begun(story, own, held)))
    return own._replace(
        done=held, is_done_about=own.is_done_about or is_about, is_held_about=own.is_held_about or is_about
    )


def _with_last_save(story: Story, own: JobGeneration) -> JobGeneration:
    """Return the last generation that has worked; its last save counts as kept where it has failed."""
    save = last_save(story, own).number
    held = (-1 if save is None else save) - 1 + first_after_a_save(story)
    has_begun = own.iteration is not None and held <= own.iteration
    if save is None or not own.has_failed or not has_begun or _has_done(own, held) or own.is_cut or own.is_silent:
        return own
    is_about = own.is_done_about or not _have_all_begun(story, own, held)
    return own._replace(done=held, is_done_about=is_about, is_held_about=is_about)


def _have_all_begun(story: Story, own: JobGeneration, iteration: int) -> bool:
    """Return whether every rank of a generation that had not ended well before is known to have begun an iteration."""
    return not own.is_partial and all(
        life.iteration is not None and life.iteration >= iteration
        for member in own.members
        for rank, life in member.lives.items()
        if rank not in member.left and rank not in story.aside
    )


def of_what_is_held(story: Story) -> Iterator[str]:
    """Yield where it is not certain that all ranks have done what counts as kept, or that it was saved."""
    if about := [generation.number for generation in story.generations if generation.is_held_about]:
        yield (
            f"generation(s) {rank_list(about)}: training has gone on beyond the last step that all ranks are known to "
            "have done, as where a rank that is ahead of others has saved, or steps were skipped: how many steps were "
            "kept and done again is about right only"
        )
    unclear = [story.generations[number].number for number, after in sorted(way(story).after.items()) if after.is_about]
    if unclear:
        yield (
            f"training has gone on from a checkpoint of generation(s) {rank_list(unclear)}, or from one of a later "
            "generation that had come as far: that has noted no such save, or its last lines are missing. How many "
            "steps were kept and done again, and what was lost, is about right only"
        )
    if (save := unclear_save(story)) is not None:
        yield (
            f"nothing has gone on from the last save, of iteration {save}, which was made beside steps or inside one: "
            "whether it holds that step, and with it how many steps were kept, is about right only"
        )
    if (older := older_state(story)) is not None:
        yield (
            f"nothing has gone on from generation {older.number}, which had begun with an older state than that of the "
            "newest save of a generation before it: how many steps were kept is about right only, since a restart may "
            "find that save again"
        )
    if (end := unknown_end(story)) is not None:
        yield (
            f"generation {end.number} has taken no step, and has noted no checkpoint as loaded: it may have found a "
            "newer one than the generation before it had come to. How many steps were kept, and what was lost, is "
            "about right only"
        )
    if (partial := partial_save(story)) is not None:
        counted = "there is none" if partial.number is None else f"number {partial.number}"
        yield (
            f"nothing has gone on from the last save, which rank(s) {rank_list(partial.missing)} have not noted, "
            "though they save: they may have failed in it or before it. Whether it is complete, and with it how many "
            "steps were kept and what was lost, is about right only. The last one counts that all ranks that save have "
            f"noted: {counted}"
        )
    if (stopped := unsaved_stop(story)) is not None:
        own, save = stopped
        yield (
            f"the training stopped itself in generation {own.number} (StopTraining), and the last save that was noted "
            f"is that of iteration {save}: what it did since then counts as kept, and is lost if it was not saved "
            "otherwise"
        )
