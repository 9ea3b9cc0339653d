"""The failures of a story: one incident each, whatever number of nodes has written about it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence

from launcher.incidents.frames import Thread, main_thread
from launcher.incidents.job_attribution import nobody_named
from launcher.incidents.job_incident import own_place
from launcher.incidents.rank_phrases import blamed_section, headline, telling_threads
from launcher.incidents.rank_report import RankReport
from launcher.reports.doubts import is_doubtful
from launcher.reports.evidence import Evidence
from launcher.reports.failure_costs import cost_of_failure, is_cost_about
from launcher.reports.found_incidents import Found, find, seen_at
from launcher.reports.incident_nodes import lost_nodes, node_of_rank, with_names
from launcher.reports.ledger import Accounts
from launcher.reports.model import FoldedStack, Incident, NearMiss, Suspect
from launcher.reports.spared import Spared
from launcher.reports.story import JobGeneration, Story
from launcher.reports.under_way import is_cost_growing
from launcher.reports.verdicts_of_jobs import JobVerdict
from launcher.reports.writers import UNKNOWN_NODE
from resilience_core.protocol.limit_kinds import section_name
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["incidents", "last_of", "near_misses"]

_MOST_STACKS = 40
_NOTHING_LEFT = "nothing is left of what was seen of it"


def incidents(story: Story, evidence: Evidence, accounts: Accounts) -> tuple[Incident, ...]:
    """Return the failures, oldest first; one for each generation that has ended by one.

    Args:
        story: The runs.
        evidence: What incidents have been written.
        accounts: Where the time of the ranks went.
    """
    found, is_lacking = [], is_doubtful(story)
    for index, generation in enumerate(story.generations):
        if not generation.has_failed and not any(m.own.kind == "request" for m in generation.members):
            continue
        has_successor = index + 1 < len(story.generations) and story.generations[index + 1].run == generation.run
        successor = index + 1 if has_successor else None
        cost = cost_of_failure(accounts, index, successor)
        is_about = is_lacking or is_cost_about(accounts, index, successor) or is_cost_growing(story, index)
        incident = _incident(story, generation, find(story, evidence, generation))
        found.append(
            incident._replace(
                cost_seconds=cost,
                is_cost_about=cost is not None and is_about,
                repeated=accounts.losses[index].repeated,
            )
        )
    found.sort(key=lambda incident: incident.at)
    return tuple(incident._replace(number=number) for number, incident in enumerate(found, 1))


def _incident(story: Story, generation: JobGeneration, found: Found) -> Incident:
    own = [seen for seen in found.seen_by if seen.kind not in ("elsewhere", "near_miss")]
    verdict = found.verdict
    blamed = None if verdict is None else set(verdict.culprits)
    telling = (seen for seen in own if any(blamed is None or rank.rank in blamed for rank in seen.culprits))
    first = next(telling, own[0] if own else None)
    kinds = [verdict.kind] if verdict is not None else [first.kind] if first is not None else []
    kinds += [first.kind] if first is not None else [member.own.kind for member in generation.members]
    kind = found.story.kind if found.story is not None else next((kind for kind in kinds if kind), "failure")
    why = found.story.why if found.story is not None else first.why if first is not None else ""
    if not why and found.story is not None:  # as earlier releases have written
        why = nobody_named(found.story.silent).why
    several = len({member.launch for member in generation.members}) > 1
    hosts: tuple[str, ...] = ()
    if found.story is not None:
        pairs = [(culprit.node, culprit.rank) for culprit in found.story.culprits]
        hosts = found.story.nodes_to_blame
    else:
        pairs = [(seen.node, rank) for seen in own for rank in seen.culprits if blamed is None or rank.rank in blamed]
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
    if verdict is not None:
        hosts = verdict.nodes if not verdict.culprits else ()
        culprits += tuple(_told(story, generation, verdict, {rank.rank for _, rank in pairs}))
        left = "what else they have found is missing" if own else f"{_NOTHING_LEFT} but that"
        why = why if pairs else f"{_by_the_nodes(verdict)}; {left}"
    elif not own and found.story is None and (told := tuple(_named(story, generation))):
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
            local_rank = life.local_rank if life is not None else None
            where = node if node == UNKNOWN_NODE else f"node {node}"
            yield _bare(rank, node, local_rank, f"rank {rank} on {where} was named by the launcher there")


def _told(story: Story, generation: JobGeneration, verdict: JobVerdict, known: Collection[int]) -> Iterator[Suspect]:
    """Yield the ranks that all nodes were told are to blame, but for those of which more is known."""
    lives = {rank: life for member in generation.members for rank, life in member.lives.items()}
    for index, rank in enumerate(verdict.culprits):
        if rank not in known:
            node = node_of_rank(story, generation, verdict.host_of(index), rank)
            where = f" on node {node}" if node else ""
            local_rank = lives[rank].local_rank if rank in lives else None
            yield _bare(rank, node, local_rank, f"rank {rank}{where} was named by the nodes together")


def _by_the_nodes(verdict: JobVerdict) -> str:
    """Return what all nodes were told: whom they blame together, or that it cannot be told."""
    if verdict.culprits:
        return "named by the nodes together"
    if not verdict.nodes:
        return "the nodes together could not tell"
    were = "nodes {} were" if len(verdict.nodes) > 1 else "node {} was"
    lost = "as lost " if verdict.kind == "lost" else ""
    return f"{were.format(', '.join(verdict.nodes))} named {lost}by the nodes together"


def _bare(rank: int, node: str, local_rank: int | None, said: str) -> Suspect:
    """Return a rank of which nothing is known but that it was named."""
    unknown = (None, None, None)  # its section, iteration and line
    return Suspect(rank, node, local_rank, *unknown, said, None, None, None, ())


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
            late_seconds=_late_seconds(story, number, miss),
            is_late_at_most=miss.is_at_most,
        )
        for number, launch in enumerate(story.launches)
        for miss in launch.spared
        if miss.was_late
    ]
    return tuple(sorted(found))


def _late_seconds(story: Story, launch: int, miss: Spared) -> float | None:
    """Return by how much a rank was late at most: by no more than its longest section of that name was.

    The launcher knows only until when it had not looked; the rank has written down how long its sections took.
    """
    life = story.lives.get((launch, miss.generation if miss.generation is not None else -1), {}).get(miss.rank)
    section = life.sections.get(section_name(miss.kind) or "") if life is not None and life.is_over else None
    if miss.late_seconds is None or not miss.is_at_most or section is None or section.left:
        return miss.late_seconds
    longest = section.longest_ns / NS_PER_SECOND - miss.limit_seconds
    return min(miss.late_seconds, longest) if longest > 0 else miss.late_seconds


def last_of(found: Sequence[Incident], run: int, generation: int) -> int | None:
    """Return the index of the incident that has ended a generation; None without one."""
    return next((i for i, each in enumerate(found) if (each.run, each.generation) == (run, generation)), None)
