"""What a report says about its own gaps: what was not written, and how that was dealt with."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator, Sequence

from launcher.reports.chains import MissingRun
from launcher.reports.completeness import failures_told, may_have_started
from launcher.reports.folders import NoRunError
from launcher.reports.formats import rank_list
from launcher.reports.held import of_what_is_held
from launcher.reports.loss_notes import of_losses
from launcher.reports.lost_work import Kept, Loss
from launcher.reports.missing_figures import of_what_was_observed
from launcher.reports.no_ranks import of_no_rank
from launcher.reports.places import Entry
from launcher.reports.story import JobGeneration, Story
from launcher.reports.strides import of_strides
from launcher.reports.under_way import goes_on, of_what_is_under_way

__all__ = ["notes", "of_a_missing_run", "refuse_other_jobs"]


def refuse_other_jobs(story: Story) -> None:
    """Refuse folders of jobs that ran at the same time: one rank cannot run twice.

    Raises:
        NoRunError: The folders are those of more than one job.
    """
    for generation in story.generations:
        seen: dict[int, str] = {}
        for member in generation.members:
            folder = story.launches[member.launch].folder
            for rank in member.lives:
                if seen.setdefault(rank, folder) != folder:
                    raise NoRunError(
                        f"{seen[rank]} and {folder} are of two jobs that ran at the same time: rank {rank} of "
                        f"generation {generation.number} ran in both; report on one of them"
                    )


def of_a_missing_run(missing: MissingRun) -> str:
    """Say whence it is known that a run is missing, and what that means for the figures."""
    return f"{missing.why}; the counts and the ledger are about right only"


def notes(story: Story, found: Sequence[Loss], entries: Sequence[Entry]) -> Iterator[str]:
    """Yield what a reader has to know to trust the figures no further than they go.

    Args:
        story: What was read.
        found: What became of the work of each generation.
        entries: Into which the time of all places was cut.
    """
    yield from _of_launches(story)
    yield from _of_incidents(story)
    yield from _of_figures(story)
    yield from of_what_was_observed(story)
    yield from of_strides(story)
    yield from of_what_is_under_way(story)
    yield from of_what_is_held(story)
    yield from of_losses(story, found)
    yield from _of_estimates(story, found, entries)


def _who(story: Story, number: int) -> str:
    pid = story.launches[number].pid
    return f"the launcher of {story.node_of[number]}{'' if pid is None else f' (pid {pid})'}"


def _of_launches(story: Story) -> Iterator[str]:
    for number, launch in enumerate(story.launches):
        who = _who(story, number)
        if launch.is_of_incidents and not launch.is_guessed:  # what is missing is said of the whole folder
            continue
        if launch.is_guessed:
            what = "the event that says how it begins is" if launch.has_events else "the file of its events is"
            told = "the figures are those of its last line, which is recent"
            yield f"{who}: {what} missing, so it is not known whether it has ended or still runs: {told}"
        elif launch.is_running:
            yield f"{who} is still running: the figures are those of its last line"
        elif not launch.has_events:
            yield f"{who}: the file of its events is missing, so it is not known whether and how it has ended"
        elif launch.ended_ns is None:
            yield (
                f"{who} has not said that it ended, as when it is killed: its time ends with its last line, so what "
                "its ranks kept, lost and did last, and for how long it was in the job, is about right only"
                + (", and so are the counts of restarts and incidents" if story.lacks_end(story.run_of[number]) else "")
            )
        if not launch.is_begun_known:
            yield (
                f"{who}: its first events are missing, as where the files of a run that goes on are removed; it begins "
                "here with its first line, and what was before that is not known"
            )
        if launch.lost_lines:
            yield (
                f"{who}: {launch.lost_lines} line(s) of its events are missing, which could not be written or were "
                "removed"
            )
        if launch.is_begun_known and (lacking := [g.number for g in launch.generations if not g.is_start_known]):
            yield (
                f"{who}: the start of generation(s) {rank_list(lacking)} is not among its events, but figures, "
                "incidents or later events tell that they ran: the time before their first line is 'unknown'"
            )
        if launch.lacks_last:
            yield f"{who} ended in generation {launch.last_generation}, and nothing else is left of that"
        if lacking := may_have_started(story, number):
            yield (
                f"{who} may have started ranks of generation(s) {rank_list(lacking)}, of which nothing is left: its "
                "lines end before they would tell, so all counts and the ledger are about right only"
            )
        if not launch.generations:
            yield f"{who} {of_no_rank(story, number)}"
        if launch.went_back:
            yield (
                f"{who}: iterations were not counted on through the run, or began below the number of the checkpoint "
                "that was loaded, or an older one was loaded after a newer one, so it is not known what was done "
                "again; what was lost with a failure, or given up where a rank went back to a checkpoint by itself, is "
                "part of what is called productive and checkpointing, which are about right only then"
            )
        if launch.has_other_numbers:
            yield (
                f"{who}: its checkpoints are not numbered by the training steps that were completed until then, as "
                "where epochs or samples are counted, so it is not known how many steps lie between two saves, nor how "
                "many a run has kept that has failed"
            )
    yield from _of_missing(story)
    missing: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
    for generation in story.generations:
        if generation.is_partial:
            expected = max(member.own.nodes or 0 for member in generation.members)
            missing[expected, len(generation.members)].append(generation.number)
    for (expected, here), numbers in missing.items():
        yield (
            f"{len(numbers)} generation(s) ran on {expected} nodes, and the events of {here} are here: name the log "
            "folders of the other nodes, too; their ranks may have done fewer iterations than are counted"
        )


def _of_missing(story: Story) -> Iterator[str]:
    if lacking := sorted({number for _, number in story.missing}):
        yield (
            f"generation(s) {rank_list(lacking)}: nothing is left of them, so their time is 'unknown', and what was "
            "kept and done again is not known"
        )
    if endless := [g.number for g in story.generations if any(member.is_end_missing for member in g.members)]:
        yield (
            f"generation(s) {rank_list(endless)}: when all ranks had ended is not among the events; the time between "
            "the last that is known of them and what came next is 'unknown', and more may have failed than is counted"
        )
    for run in range(len(story.runs)):
        if (told := failures_told(story, run)) and told[0] > told[1]:
            yield f"the launcher counted {told[0]} failure(s), and {told[1]} are known here: events are missing"


def _of_incidents(story: Story) -> Iterator[str]:
    lacking: dict[tuple[int, str], list[int]] = collections.defaultdict(list)
    for generation, member in story.members:
        if member.lacks_incident:
            where = os.path.join(story.launches[member.launch].folder, "incidents")
            if not (member.own.incident_folder or member.own.culprits) and (verdict := member.own.verdict) is not None:
                where = verdict.folder or "a folder 'job_incidents'"  # it was on another node
            lacking[member.launch, where].append(generation.number)
    for (number, where), generations in lacking.items():
        yield (
            f"{_who(story, number)} tells of incidents in generation(s) {rank_list(generations)} that are not in "
            f"{where}, or cannot be read: when ranks gave their last sign of progress, and whether their last step was "
            "done, is taken from figures alone, so lost work, detection and the counts are about right only, and so "
            "are stop and idle where a rank may have ended well before"
        )


def _of_figures(story: Story) -> Iterator[str]:
    without = [g for g in story.generations if any(m.own.local_ranks and not m.lives for m in g.members)]
    if without:
        yield (
            f"{len(without)} of {len(story.generations)} generation(s) have no figures of all their ranks "
            "(figures.jsonl; older releases wrote none): the time from the first to the last sign is 'unknown' there"
        )
    lives = [life for _, member in story.members for life in member.lives.values()]
    if any(life.is_saving_unknown for life in lives):
        yield (
            "saves were noted that are no sections 'checkpointing', as with heartbeats: how long they held up the "
            "steps is not known, and is part of what is called productive"
        )


def _of_estimates(story: Story, found: Sequence[Loss], entries: Sequence[Entry]) -> Iterator[str]:
    """Yield why figures of generations are estimates of which nothing is missing."""
    split = {each.generation for each in entries if each.is_about and each.key in ("productive", "checkpointing")}
    taken_over = {each.generation for each in entries if each.is_about and each.key in ("detection", "stop")}
    pairs = [*enumerate(zip(story.generations, found, strict=True))]
    unexplained = [each for index, (each, loss) in pairs if index in split and not _is_split_explained(each, loss)]
    if fresh := [each.number for each in unexplained if goes_on(story, each)]:
        yield (
            f"generation(s) {rank_list(fresh)}: a save has ended since the last sign of progress that is known, so "
            "checkpointing and productive are about right only until the next line"
        )
    if between := [each.number for each in unexplained if not goes_on(story, each)]:
        yield (
            f"generation(s) {rank_list(between)}: a rank has noted no save of the state that was resumed from, as one "
            "that is slower than others, or was in a save when it ended: how much of its time until then was "
            "checkpointing lies between what the lines before and after that tell, so checkpointing and productive are "
            "about right only"
        )
    unseen = [
        each.number
        for index, (each, _) in pairs
        if index in taken_over
        and not any(m.lacks_incident or m.is_ending or story.launches[m.launch].is_of_incidents for m in each.members)
    ]
    if unseen:
        yield (
            f"generation(s) {rank_list(unseen)}: when the failure was seen is not noted on every node, so detection "
            "and stop are about right only: there it counts as seen as long after the last sign of progress as on the "
            "node that has failed"
        )


def _is_split_explained(generation: JobGeneration, loss: Loss) -> bool:
    """Return whether another note says why what was productive, and what checkpointing, is an estimate."""
    lacks = any(member.cut_ns is not None or member.lacks_incident for member in generation.members)
    lacks |= loss.kept is Kept.UNKNOWN
    is_unknown = any(life.is_saving_unknown for member in generation.members for life in member.lives.values())
    return lacks or is_unknown or loss.is_about or loss.kept is Kept.ITERATION
