"""What a report says of work that was lost, or may have been."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from launcher.reports.completeness import runs_of_unknown_ranks
from launcher.reports.formats import rank_list
from launcher.reports.last_saves import last_save
from launcher.reports.lineage import has_other_numbers, has_unnoted_saves
from launcher.reports.lost_work import Kept, Loss, hides_its_begin, total_repeated
from launcher.reports.story import JobGeneration, Story

__all__ = ["of_losses"]


def of_losses(story: Story, found: Sequence[Loss]) -> Iterator[str]:
    """Yield what is lost for good, and where it is not known exactly what was lost.

    Args:
        story: What was read.
        found: What became of the work of each generation.
    """
    interpolated = [
        generation.number
        for generation, loss in zip(story.generations, found, strict=True)
        if loss.kept is Kept.ITERATION and not _is_kept_throughout(generation, loss)
    ]
    if interpolated:
        yield (
            f"the state that was resumed from was not noted as a save in {len(interpolated)} generation(s): when it "
            "was reached is interpolated between lines of figures, so their lost work is about right only"
        )
    if has_unnoted_saves(story):
        yield (
            "training has gone on from a save that no rank has noted, as one in a thread that went on after an "
            "exception: the number of saves, and how long one takes, is about right only"
        )
    yield from _of_uncounted(story, found)
    if cut := [generation.number for generation in story.generations if generation.is_cut]:
        yield (
            f"generation(s) {rank_list(cut)}: the last lines of figures are missing, so the time after those that are "
            "there is 'unknown', and so is how many iterations were kept and done again; what they kept, lost and did "
            "last is about right only"
        )
    hidden = [generation.number for generation in story.generations[1:] if hides_its_begin(generation)]
    if hidden and any(story.lives.values()):
        yield (
            f"generation(s) {rank_list(hidden)}: the lines that tell with which step they began are missing, "
            "so what was lost of those before them is not known, and may be part of what is called productive"
        )
    for generation, loss in zip(story.generations, found, strict=True):
        if not loss.is_final:
            continue
        if loss.kept is Kept.UNKNOWN:
            yield f"nothing has gone on from generation {generation.number}, and no save was noted: it may be lost"
        else:
            save = "numbered" if has_other_numbers(story, generation) else "of iteration"
            since = f"the save {save} {loss.iteration}" if loss.kept is Kept.SAVE else "its begin"
            may_go_on = _why_about(story, generation)
            here = " in these folders" if may_go_on else ""
            missing = last_save(story, generation).missing
            why = [*may_go_on, *([f"rank(s) {rank_list(missing)} have not noted a later save"] if missing else [])]
            about = f", which is about right only: {'; '.join(why)}" if loss.is_about else ""
            yield (
                f"nothing{here} has gone on from generation {generation.number}: what it did since {since} counts as "
                f"lost{about}"
            )


def _why_about(story: Story, generation: JobGeneration) -> list[str]:
    """Return why something may have gone on from a generation, or it may have saved more, though nothing here tells."""
    why = []
    if generation.is_open_ended:
        why.append("its last lines are missing, and a later save may be in them")
    if generation.is_partial:
        why.append("other nodes, whose folders are not here, may have gone on")
    unknown = {run + 1 for run in runs_of_unknown_ranks(story)}
    if unknown:
        why.append("a run of whose ranks nothing is known may have gone on")
    if story.lacks - unknown:
        why.append("a run that is missing may have gone on")
    return why


def _is_kept_throughout(generation: JobGeneration, loss: Loss) -> bool:
    """Return whether all that is known of a generation was kept: its last figures are missing."""
    done = generation.done
    return generation.is_cut and done is not None and loss.iteration is not None and done < loss.iteration


def _of_uncounted(story: Story, found: Sequence[Loss]) -> Iterator[str]:
    pairs = [*zip(story.generations, found, strict=True)]
    uncounted = [generation.number for generation, loss in pairs if not loss.is_counted]
    if uncounted:
        again = " and done again" if total_repeated(story, found) is None else ""
        yield (
            f"generation(s) {rank_list(uncounted)}: no line of figures tells with which step they began (bare sections "
            "and heartbeats do not, and there may have been none), so it is not known how many iterations were kept"
            f"{again}"
        )
    if parts := [generation.number for generation, loss in pairs if loss.kept is Kept.PART]:
        yield (
            f"generation(s) {rank_list(parts)}: something was done again, as later ones began with lower iterations; "
            "what was lost cannot be told from what was kept, so the time of their work is 'unknown'"
        )
    hidden = [g.number for g, loss in pairs[:-1] if not loss.is_counted and loss.kept is Kept.UNKNOWN]
    if pairs and not story.has_signs:
        yield (
            "no rank has told of a step, a section or a heartbeat: when they began to work, and what was lost, is not "
            "known, so the time of their processes is 'unknown'"
        )
    for node, ranks in itertools.groupby(sorted(story.places_aside), key=lambda place: place[0]):
        yield (
            f"local rank(s) {rank_list([rank for _, rank in ranks])} of {node} tell of no training steps, where others "
            "do: what they did after their first sign of life, if they gave one, is not known, so it is 'unknown'"
        )
    # Where others tell of steps, their time is 'unknown' throughout.
    if story.has_signs and hidden and not story.has_steps:
        yield (
            f"generation(s) {rank_list(hidden)}: whether something was lost is not known; it would be part of what is "
            "called productive"
        )
