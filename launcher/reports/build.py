"""A report, from the log folders of a story's runs."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from datetime import datetime, timezone

from launcher.reports import from_incidents
from launcher.reports import notes as remarks
from launcher.reports.absences import may_have_gone_on
from launcher.reports.chains import (
    MissingRun,
    chain_of,
    doubts,
    unread_nodes,
    with_times_of_incidents,
    with_unread_nodes,
)
from launcher.reports.completeness import is_wall_about, may_have_started, runs_of_unknown_ranks, with_gaps
from launcher.reports.evidence import read_evidence
from launcher.reports.folders import NoRunError
from launcher.reports.found_generations import with_found
from launcher.reports.found_incidents import of_missing_folders, seen_at
from launcher.reports.held import with_held
from launcher.reports.launches import Launch, read_launches, with_last_lines
from launcher.reports.ledger import account, ledger
from launcher.reports.limits import limits, of_unclear_waits
from launcher.reports.lost_work import Loss, losses
from launcher.reports.model import Generation, Incident, Node, Report, Run
from launcher.reports.named_nodes import with_nodes
from launcher.reports.read_lives import read_lives
from launcher.reports.recommend import recommendations
from launcher.reports.runs import taking_part
from launcher.reports.save_numbers import with_other_numbers
from launcher.reports.slow_ranks import find_logs, slow_ranks
from launcher.reports.story import JobGeneration, Story, end_ns, put_together
from launcher.reports.timeline import least_seconds, timeline
from launcher.reports.troubles import incidents, last_of, near_misses
from launcher.reports.unread import of_zero_bytes, unread_launchers

__all__ = ["make_report"]


def make_report(folders: Sequence[str], straggler_logs: Sequence[str] = ()) -> Report:
    """Read the log folders of one story and return its report; nothing is written, and no process is looked at twice.

    Args:
        folders: Log folders of runs.
        straggler_logs: Logs of the straggler detector, beside those that lie in the folders.

    Raises:
        NoRunError: There is nothing in them, or the launchers do not belong together.
        OSError: A folder cannot be read.
    """
    notes: list[str] = []
    launches = [launch for folder in folders for launch in read_launches(folder, notes)]
    unread = [each for folder in folders for each in unread_launchers(folder)]
    damaged: list[str] = []
    evidence = read_evidence(folders, damaged)
    if not launches:
        bare = from_incidents.folders_of_incidents(unread)
        launches = from_incidents.launches_of({folder: evidence.incidents[folder] for folder in bare})
        notes += from_incidents.of_folder(unread, launches)
        unread = from_incidents.without(unread, launches)
    launches.sort(key=lambda launch: launch.at(launch.began_ns))
    if not launches:
        whys = f" ({'; '.join(each.why for each in unread)})" if unread else ""
        raise NoRunError("; ".join(notes) or f"no events can be read in {', '.join(folders)}{whys}")
    notes += [said for folder in folders for said in of_zero_bytes(folder)]
    lacking = set[int]()
    lives = read_lives(launches, _least_seconds(launches), notes, lacking)
    last_ns: dict[int, int] = {}
    for (number, _), ranks in lives.items():
        last_ns[number] = max([last_ns.get(number, 0), *(life.last_ns for life in ranks.values())])
    went_back = {number for (number, _), ranks in lives.items() if any(life.went_back for life in ranks.values())}
    launches = with_other_numbers(with_last_lines(launches, last_ns, went_back, lacking), lives)
    notes += damaged
    launches = with_found(with_nodes(launches, evidence), lives, evidence, notes)
    story = with_unread_nodes(with_gaps(put_together(launches, lives, evidence)), unread)
    if notes:  # something was left out, and which run it is of is not known
        story = story._replace(runs_about=frozenset(range(len(story.runs))))
    missing = chain_of(story, with_times_of_incidents(unread, evidence.incidents), folders)
    unknown = {run + 1 for run in runs_of_unknown_ranks(story)}  # others may have gone on from what was done there
    story = story._replace(lacks=frozenset(run for each in missing for run in each.may_be_before) | unknown)
    remarks.refuse_other_jobs(story)
    story = with_held(story)
    found = losses(story)
    accounts = account(story, found)
    seconds = story.seconds
    costs, rows = ledger(story, accounts), limits(story)
    troubles = incidents(story, evidence, accounts)
    runs = [_run(story, number) for number in range(len(story.runs))]
    logs = [*straggler_logs, *(path for folder in folders for path in find_logs(folder))]
    notes = [*map(remarks.of_a_missing_run, missing), *doubts(story, missing), *unread_nodes(story, unread), *notes]
    notes += of_missing_folders(story, evidence)
    notes += [*remarks.notes(story, found, accounts.entries), *of_unclear_waits(story, rows)]
    first = next(launch for number, launch in enumerate(launches) if story.takes_part(number))
    is_length_about = is_wall_about(story, runs)
    report = Report(
        title="",
        made_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        began_at=_iso(first.at(first.began_ns)),
        began_epoch=story.epoch,
        seconds=seconds,
        is_running=any(run.is_running for run in runs),
        runs=tuple(runs),
        nodes=_nodes(story),
        generations=_generations(story, found, troubles),
        ranks=timeline(story, seconds),
        incidents=troubles,
        near_misses=near_misses(story),
        limits=rows,
        slow_ranks=slow_ranks(list(dict.fromkeys(logs)), story.epoch, seconds, notes),
        ledger=costs._replace(is_wall_about=is_length_about),
        recommendations=recommendations(story, costs, rows),
        notes=tuple(dict.fromkeys(notes)),
        lacks_runs=bool(missing),
        is_length_about=is_length_about,
    )
    return _with_runs(report, _in_their_places(runs, missing))


def _in_their_places(runs: Sequence[Run], missing: Sequence[MissingRun]) -> list[tuple[int | None, Run]]:
    """Return all runs that were named, also those of which nothing can be read; known ones with their index."""
    placed: list[tuple[int | None, Run]] = []
    for number in range(len(runs) + 1):
        placed += [
            (None, _unread_run(each.folder)) for each in missing if each.before == number and each.folder is not None
        ]
        placed += [(number, runs[number])] if number < len(runs) else []
    return placed


def _unread_run(folder: str) -> Run:
    return Run(
        *(os.path.basename(folder), (folder,), None, None, None, False, None, None, None, None, 0, 0, None),
        is_about=True,
        is_begin_about=True,
        is_unread=True,
    )


def _with_runs(report: Report, placed: Sequence[tuple[int | None, Run]]) -> Report:
    """Return a report with these runs, and all that names one by its index."""
    runs = tuple(run for _, run in placed)
    now_at = {before: index for index, (before, _) in enumerate(placed) if before is not None}
    return report._replace(
        title=runs[0].name if len(runs) == 1 else f"{runs[0].name} and {len(runs) - 1} more",
        runs=runs,
        nodes=tuple(each._replace(runs=tuple(now_at[run] for run in each.runs)) for each in report.nodes),
        generations=tuple(each._replace(run=now_at[each.run]) for each in report.generations),
        incidents=tuple(each._replace(run=now_at[each.run]) for each in report.incidents),
        near_misses=tuple(each._replace(run=now_at[each.run]) for each in report.near_misses),
    )


def _least_seconds(launches: Sequence[Launch]) -> float:
    length = max(launch.at(launch.last_ns) for launch in launches) - launches[0].at(launches[0].began_ns)
    ranks = sum(max((len(each.local_ranks) for each in launch.generations), default=0) for launch in launches)
    return least_seconds(length, ranks)


def _iso(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, timezone.utc).astimezone().isoformat(timespec="seconds")


def _run(story: Story, number: int) -> Run:
    indices = story.runs[number]
    own = taking_part(story.launches, indices)
    launches = [story.launches[index] for index in indices]
    generations = [each for each in story.generations if each.run == number]
    ends = [story.at(index, ended_ns) for index in own if (ended_ns := story.launches[index].ended_ns) is not None]
    is_running = any(launch.is_running and not launch.is_guessed for launch in launches)
    may_run = any(launch.is_guessed for launch in launches) and not is_running
    silent = [index for index in indices if not (story.launches[index].ended_ns or story.launches[index].is_running)]
    lost = silent if len(silent) < len(indices) else []  # nobody was lost where nobody has gone on
    last = {member.launch for each in generations[-1:] for member in each.members} - {*lost}
    worst = max(  # how a node has ended without which the others went on is not how the run has
        (story.launches[index] for index in last or {*indices} - {*lost}),
        key=lambda launch: (launch.exit_code or 0, launch.outcome not in (None, "succeeded")),
    )
    took_part = {*own, *(index for index in indices if may_have_started(story, index))}
    nodes = len({story.node_of[index] for index in took_part})
    expected = max((member.own.nodes or 0 for each in generations for member in each.members), default=0)
    is_about = nodes < expected or number in story.runs_about or any(each.is_partial for each in generations)
    # Generations are numbered from 0 through a run, so the number of one tells of those before it.
    highest = max((each.number for each in generations), default=0)
    is_begin_about = not all(story.launches[index].is_begun_known for index in own)
    is_over = bool(ends) and len(ends) == len({*own} - {*lost}) and not (is_running or may_run)
    return Run(
        name=os.path.basename(launches[0].folder),
        folders=tuple(dict.fromkeys(launch.folder for launch in launches)),
        began=story.at(own[0], story.launches[own[0]].began_ns),
        ended=max(ends) if is_over else None,
        last_seen=max(story.at(index, end_ns(story.launches[index])) for index in own),
        is_running=is_running,
        outcome=worst.outcome,
        exit_code=worst.exit_code,
        why=next((launch.why for launch in launches if launch.why is not None), None),
        world_size=_world_size(generations, is_whole=not is_about),
        nodes=max(nodes, expected),
        restarts=max(len(generations) - 1, highest if is_about else 0),
        began_at=_iso(story.epoch + story.at(own[0], story.launches[own[0]].began_ns)),
        nodes_lost=len({story.node_of[n] for n in lost if n in took_part and not may_have_gone_on(story, n)}),
        is_about=is_about,
        may_run=may_run,
        is_begin_about=is_begin_about,
        is_end_about=worst.outcome is None and not is_running,
        is_length_about=is_begin_about or not (is_over or is_running),
        is_of_incidents=all(launch.is_of_incidents for launch in launches),
    )


def _world_size(generations: Sequence[JobGeneration], *, is_whole: bool) -> int | None:
    """Return how many ranks the largest generation had; None where one has run and nothing tells of its ranks."""
    known = max((each.world_size for each in generations), default=0)
    ranks = [rank for each in generations for member in each.members for rank in member.lives]
    known = max(known, *(rank + 1 for rank in ranks)) if ranks and not is_whole else known
    return known if known or (is_whole and not generations) else None


def _nodes(story: Story) -> tuple[Node, ...]:
    return tuple(
        Node(
            name=name,
            ranks=tuple(
                sorted(
                    {
                        rank
                        for _, member in story.members
                        if story.node_of[member.launch] == name
                        for rank in member.lives
                    }
                )
            ),
            runs=tuple(sorted({story.run_of[number] for number, other in story.node_of.items() if other == name})),
            clock_shift=_clock_shift(story, name),
        )
        for name in dict.fromkeys(story.node_of.values())
    )


def _clock_shift(story: Story, name: str) -> float:
    """Return by how much a node's clock seems to be ahead of the first node's: by when it started generations."""
    first = next(iter(story.node_of.values()))
    shifts = []
    for generation in story.generations:
        members = [member for member in generation.members if member.own.is_start_known]
        began = {story.node_of[m.launch]: story.at(m.launch, m.own.started_ns) for m in members}
        if first in began and name in began:
            shifts.append(began[name] - began[first])
    return statistics.median(shifts) if shifts else 0.0


def _generations(story: Story, found: Sequence[Loss], troubles: Sequence[Incident]) -> tuple[Generation, ...]:
    rows = []
    for generation, loss in zip(story.generations, found, strict=True):
        members = generation.members
        incident = last_of(troubles, generation.run, generation.number)
        first_steps = [
            story.at(m.launch, life.first_step_ns)
            for m in members
            for life in m.lives.values()
            if life.first_step_ns is not None and life.first_step_ns >= m.own.started_ns  # its lines may be missing
        ]
        has_ended = all(member.has_stopped for member in members)
        rows.append(
            Generation(
                run=generation.run,
                number=generation.number,
                began=min(story.at(m.launch, m.own.started_ns) for m in members),
                first_step=min(first_steps, default=None),
                seen=seen_at(story, generation),
                ended=max(story.at(m.launch, m.stopped_ns) for m in members) if has_ended else None,
                world_size=generation.world_size,
                iteration=None if generation.is_cut else generation.iteration,
                done=None if generation.is_cut else generation.done,
                resumed_from=generation.resumed_from,
                why=_why(story, generation, None if incident is None else troubles[incident]),
                incident=incident,
                repeated=loss.repeated,
            )
        )
    return tuple(rows)


def _why(story: Story, generation: JobGeneration, incident: Incident | None) -> str | None:
    if incident is not None:
        return incident.why
    if any(member.own.finished_ns is not None for member in generation.members):
        return "finished"
    launches = [story.launches[member.launch] for member in generation.members]
    if not generation.is_last:
        return "the nodes have changed"
    return next((launch.why or launch.outcome for launch in launches if launch.outcome is not None), None)
