"""The failures of a story: one incident each, whatever number of nodes has written about it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from launcher.incidents.frames import Thread, main_thread
from launcher.incidents.incident import Incident as Seen
from launcher.incidents.job_attribution import nobody_named
from launcher.incidents.job_incident import JobIncident, own_place
from launcher.incidents.rank_phrases import blamed_section, headline, telling_threads
from launcher.incidents.rank_report import RankReport
from launcher.reports.evidence import Evidence
from launcher.reports.failure_costs import cost_of_failure
from launcher.reports.found_generations import epoch_of
from launcher.reports.incident_nodes import lost_nodes, node_of_rank, with_names
from launcher.reports.ledger import Accounts
from launcher.reports.model import FoldedStack, Incident, NearMiss, Suspect
from launcher.reports.story import JobGeneration, Member, Story
from launcher.reports.under_way import is_cost_growing
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["incidents", "last_of", "near_misses", "seen_at"]

_SAME_SECONDS = 600.0
"""An incident of that generation that was written within that time is of this run."""
_MOST_STACKS = 40
_NOTHING_LEFT = "nothing is left of what was seen of it"


class _Found(NamedTuple):
    """What is known of one failure."""

    seen_by: tuple[Seen, ...]
    story: JobIncident | None
    folder: str | None


def incidents(story: Story, evidence: Evidence, accounts: Accounts, *, is_cost_about: bool) -> tuple[Incident, ...]:
    """Return the failures, oldest first; one for each generation that has ended by one.

    Args:
        story: The runs.
        evidence: What incidents have been written.
        accounts: Where the time of the ranks went.
        is_cost_about: What failures cost rests on something that is missing.
    """
    found = []
    for index, generation in enumerate(story.generations):
        if not generation.has_failed and not any(m.own.kind == "request" for m in generation.members):
            continue
        has_successor = index + 1 < len(story.generations) and story.generations[index + 1].run == generation.run
        cost = cost_of_failure(accounts, index, index + 1 if has_successor else None)
        incident = _incident(story, generation, _find(story, evidence, generation))
        found.append(
            incident._replace(
                cost_seconds=cost,
                is_cost_about=cost is not None and (is_cost_about or is_cost_growing(story, index)),
                repeated=accounts.losses[index].repeated,
            )
        )
    found.sort(key=lambda incident: incident.at)
    return tuple(incident._replace(number=number) for number, incident in enumerate(found, 1))


def seen_at(story: Story, generation: JobGeneration) -> float | None:
    """Return when the failure of a generation was seen first, in seconds since the story's begin; None without one."""
    exact = [m for m in generation.members if m.seen_ns is not None and not m.is_seen_about]
    about = [m for m in generation.members if m.seen_ns is not None]
    return min((story.at(m.launch, m.seen_ns or 0) for m in exact or about), default=None)


def _find(story: Story, evidence: Evidence, generation: JobGeneration) -> _Found:
    folders = dict.fromkeys(story.launches[member.launch].folder for member in generation.members)
    at = seen_at(story, generation)
    jobs = [
        job
        for folder in folders
        for job in evidence.jobs.get(folder, [])
        if job.incident.generation == generation.number
        and (at is None or abs(epoch_of(job.incident.wall_time) - story.epoch - at) < _SAME_SECONDS)
    ]
    own = tuple(
        seen
        for member in generation.members
        if (seen := evidence.of_generation(story.launches[member.launch], member.own)) is not None
    )
    if jobs:
        job = min(jobs, key=lambda each: abs(epoch_of(each.incident.wall_time) - story.epoch - (at or 0.0)))
        return _Found(job.seen_by or own, job.incident, job.folder)
    for member in generation.members:
        name = os.path.basename(member.own.incident_folder or "")
        if name and (told := evidence.told.get(story.launches[member.launch].folder, {}).get(name)) is not None:
            return _Found(own, told, _folder_of(story, member))
    told_by = next((m for m in generation.members if m.own.incident_folder is not None), None)
    return _Found(own, None, _folder_of(story, told_by) if told_by is not None else None)


def _folder_of(story: Story, member: Member) -> str | None:
    """Return where an incident's folder is now; the run's log folder may have been moved."""
    name = os.path.basename(member.own.incident_folder or "")
    folder = os.path.join(story.launches[member.launch].folder, "incidents", name)
    return folder if name and os.path.isdir(folder) else None


def _incident(story: Story, generation: JobGeneration, found: _Found) -> Incident:
    own = [seen for seen in found.seen_by if seen.kind not in ("elsewhere", "near_miss")]
    first = next((seen for seen in own if seen.culprits), own[0] if own else None)
    kinds = [member.own.kind for member in generation.members if member.own.kind is not None]
    kind = (
        found.story.kind if found.story is not None else first.kind if first is not None else (kinds or ["failure"])[0]
    )
    why = found.story.why if found.story is not None else first.why if first is not None else ""
    if not why and found.story is not None:  # as earlier releases have written
        why = nobody_named(found.story.silent).why
    several = len({member.launch for member in generation.members}) > 1
    if found.story is not None:
        pairs = [(culprit.node, culprit.rank) for culprit in found.story.culprits]
        hosts = found.story.nodes_to_blame
    else:
        pairs, hosts = [(seen.node, rank) for seen in own for rank in seen.culprits], ()
    by_heartbeats = any(rank.cause == "heartbeat" for seen in own for rank in seen.condemned)
    is_likely = why.startswith("likely: ")
    culprits = tuple(
        _suspect(
            node_of_rank(story, generation, host, rank.rank),
            rank,
            kind,
            is_likely=is_likely,
            by_heartbeats=by_heartbeats,
            several=several,
        )
        for host, rank in pairs
    )
    if not own and found.story is None and (told := tuple(_named(story, generation))):
        culprits, why = told, f"named by the launcher; {_NOTHING_LEFT} but that"
    named = {culprit.rank for culprit in culprits}
    reports = {rank.rank: rank for seen in found.seen_by for rank in seen.ranks}
    lost = lost_nodes(story, generation, hosts, reports)
    at = seen_at(story, generation)  # 0.0 where the story begins with it
    late = [(s.seen_ns - s.deadline_ns) / NS_PER_SECOND for s in own if s.deadline_ns and s.seen_ns >= s.deadline_ns]
    return Incident(
        number=0,
        at=at if at is not None else _last_at(story, generation),
        wall_time=(found.story.wall_time if found.story is not None else first.wall_time if first is not None else ""),
        run=generation.run,
        generation=generation.number,
        kind=kind,
        why=with_names(why, hosts, lost) or _NOTHING_LEFT,
        is_likely=is_likely,
        culprits=culprits,
        nodes_to_blame=lost,
        victims=tuple(sorted(rank for rank in reports if rank not in named)),
        stacks=tuple(_folded(reports.values(), named)),
        machine=tuple(dict.fromkeys(line for seen in found.seen_by for line in seen.machine)),
        action=first.action if first is not None else "",
        report=_report(found.folder),
        late_seconds=min(late, default=None),
        cost_seconds=None,
        is_cost_about=False,
        repeated=None,
    )


def _last_at(story: Story, generation: JobGeneration) -> float:
    return max(story.at(member.launch, member.stopped_ns) for member in generation.members)


def _report(folder: str | None) -> str | None:
    path = os.path.join(folder, "report.txt") if folder else ""
    return path if os.path.exists(path) else None


def _suspect(node: str, rank: RankReport, kind: str, *, is_likely: bool, by_heartbeats: bool, several: bool) -> Suspect:
    frame = own_place(rank)
    thread = main_thread(rank.stack)
    said = headline(
        rank, kind, is_likely=is_likely, by_heartbeats=by_heartbeats, node=node if several and node else None
    )
    return Suspect(
        rank=rank.rank,
        node=node,
        local_rank=rank.local_rank,
        section=blamed_section(rank),
        iteration=rank.iteration,
        line=str(frame) if frame is not None else None,
        headline=said,
        message=rank.memory_kill or rank.message,
        open_seconds=rank.open_seconds,
        limit_seconds=rank.limit_seconds,
        stack=tuple(map(str, thread.frames)) if thread is not None else (),
    )


def _named(story: Story, generation: JobGeneration) -> Iterator[Suspect]:
    """Yield the ranks that launchers have named in their events: all that is known where the incident is not here."""
    for member in generation.members:
        node = story.node_of[member.launch]
        for rank in member.own.culprits:
            life = member.lives.get(rank)
            yield Suspect(
                rank=rank,
                node=node,
                local_rank=life.local_rank if life is not None else None,
                section=None,
                iteration=None,
                line=None,
                headline=f"rank {rank} on node {node} was named by the launcher there",
                message=None,
                open_seconds=None,
                limit_seconds=None,
                stack=(),
            )


def _folded(reports: Iterable[RankReport], culprits: set[int]) -> Iterator[FoldedStack]:
    """Yield each stack once, with the ranks that have it: the main threads', and what else tells of culprits."""
    alike: dict[tuple[str, tuple[object, ...]], tuple[Thread, list[int]]] = {}
    for rank in sorted(reports, key=lambda report: report.rank):
        main = main_thread(rank.stack)
        threads = [main] if main is not None else []
        threads += telling_threads(rank.stack) if rank.rank in culprits else []
        for thread in threads:
            _, ranks = alike.setdefault((thread.name, thread.frames), (thread, []))
            ranks.append(rank.rank)
    stacks = [
        FoldedStack(
            thread=thread.name,
            frames=tuple(map(str, thread.frames)),
            own=next((number for number, frame in enumerate(thread.frames) if frame.package == ""), None),
            ranks=tuple(ranks),
            is_culprits=bool(culprits & set(ranks)),
        )
        for thread, ranks in alike.values()
    ]
    yield from sorted(stacks, key=lambda stack: (not stack.is_culprits, -len(stack.ranks), stack.ranks))[:_MOST_STACKS]


def near_misses(story: Story) -> tuple[NearMiss, ...]:
    """Return the verdicts that were taken back, oldest first; ranks that were not late themselves are none."""
    found = [
        NearMiss(
            at=story.at(number, miss.t_ns),
            run=story.run_of[number],
            generation=miss.generation,
            rank=miss.rank,
            node=story.node_of[number],
            kind=miss.kind,
            limit_seconds=miss.limit_seconds,
            late_seconds=miss.late_seconds,
            is_late_at_most=miss.is_at_most,
        )
        for number, launch in enumerate(story.launches)
        for miss in launch.spared
        if miss.was_late
    ]
    return tuple(sorted(found))


def last_of(found: Sequence[Incident], run: int, generation: int) -> int | None:
    """Return the index of the incident that has ended a generation; None without one."""
    return next((i for i, each in enumerate(found) if (each.run, each.generation) == (run, generation)), None)
