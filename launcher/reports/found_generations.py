"""Generations of which lines of events are missing, from what else is left: figures, and the folders of incidents.

Files of a run that goes on may be removed, cut or damaged. What has ended a generation is then known from its incident,
and that there was one at all from the figures of its ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from launcher.incidents.incident import Incident
from launcher.reports.evidence import Evidence
from launcher.reports.launches import Launch
from launcher.reports.node_generations import NodeGeneration, unstarted
from launcher.reports.rank_lives import RankLife
from launcher.reports.writers import UNKNOWN_NODE

__all__ = ["THAT_END", "epoch_of", "with_found"]

_SAME_SECONDS = 600.0
"""An incident whose time by the wall clock is that near to the one by the monotonic clock is of this boot."""
THAT_END = ("hang", "failure", "request")
"""Kinds of incidents that have ended a generation."""


def with_found(
    launches: Sequence[Launch],
    lives: Mapping[tuple[int, int], Mapping[int, RankLife]],
    evidence: Evidence,
    notes: list[str],
) -> list[Launch]:
    """Return launches with all generations that anything tells of, and with what ended them.

    Args:
        launches: As they were read.
        lives: What their ranks have done, by launch (its index) and generation.
        evidence: The incidents below the log folders.
        notes: Gets the incidents that are of none of the launches.
    """
    untold = _untold(launches, evidence, notes)
    return [_mended(launch, _lives_of(lives, index), untold.get(index, ())) for index, launch in enumerate(launches)]


def _lives_of(lives: Mapping[tuple[int, int], Mapping[int, RankLife]], index: int) -> dict[int, Mapping[int, RankLife]]:
    return {number: ranks for (launch, number), ranks in lives.items() if launch == index and ranks}


def _untold(launches: Sequence[Launch], evidence: Evidence, notes: list[str]) -> dict[int, list[tuple[str, Incident]]]:
    """Return the incidents of which no event tells, with the names of their folders, by launch."""
    found: dict[int, list[tuple[str, Incident]]] = {}
    for folder, incidents in evidence.incidents.items():
        own = [(index, launch) for index, launch in enumerate(launches) if launch.folder == folder]
        told = {name for _, launch in own for name in launch.told_incidents}
        for name, incident in incidents.items():
            if name in told or incident.kind not in THAT_END:
                continue
            index = _launch_of(incident, own)
            if index is not None:
                found.setdefault(index, []).append((os.path.join(folder, "incidents", name), incident))
            else:
                notes.append(
                    f"{os.path.join(folder, 'incidents', name)} ({incident.kind} in generation {incident.generation}, "
                    f"{incident.wall_time}) is of none of the launchers whose lines are left, and is not listed"
                )
    return found


def _launch_of(incident: Incident, launches: Iterable[tuple[int, Launch]]) -> int | None:
    """Return the launch that has seen an incident: on that node, at that time.

    Where there is none, the only one at that time of which no line tells on which node it ran.
    """
    then = [
        (index, launch)
        for index, launch in launches
        if (launch.began_ns <= incident.seen_ns or not launch.is_begun_known)
        and (launch.ended_ns is None or incident.seen_ns <= launch.ended_ns)
        and abs(epoch_of(incident.wall_time) - launch.at(incident.seen_ns)) < _SAME_SECONDS
    ]
    could = [pair for pair in then if incident.node == pair[1].node or not incident.node]
    if not could:
        unknown = [index for index, launch in then if not launch.is_writer_known]
        return unknown[0] if len(unknown) == 1 else None
    begun = [pair for pair in could if pair[1].began_ns <= incident.seen_ns]
    if begun:
        return max(begun, key=lambda pair: pair[1].began_ns)[0]
    return min(could, key=lambda pair: pair[1].began_ns)[0]


def epoch_of(wall_time: str) -> float:
    """Return the seconds since 1970 of an incident's time; 0 where it is none."""
    with contextlib.suppress(ValueError):
        return datetime.strptime(wall_time, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    return 0.0


def _mended(
    launch: Launch, lives: Mapping[int, Mapping[int, RankLife]], untold: Collection[tuple[str, Incident]]
) -> Launch:
    known = {generation.number: generation for generation in launch.generations}
    for number, ranks in lives.items():
        if number not in known:
            known[number] = unstarted(number, min(life.began_ns or life.last_ns for life in ranks.values()), ())
    for folder, incident in sorted(untold, key=lambda pair: pair[1].seen_ns):
        own = known.get(incident.generation)
        if own is None:
            ranks_of = (rank.local_rank for rank in incident.ranks if rank.local_rank is not None)
            own = unstarted(incident.generation, incident.seen_ns, ranks_of)
        known[incident.generation] = _ended_by(own, folder, incident)
    began_ns, last_ns = launch.began_ns, launch.last_ns
    if not launch.is_begun_known:  # and if something was seen before the first line, it ran then
        began_ns = min([began_ns, *(incident.seen_ns for _, incident in untold)])
    if launch.ended_ns is None:
        last_ns = max([last_ns, *(incident.seen_ns for _, incident in untold)])
    generations: list[NodeGeneration] = []
    for number in sorted(known):
        own = known[number]
        if not own.is_start_known:
            least_ns = began_ns if not generations else _ended_ns(generations[-1])
            own = _with_ranks(own, lives.get(number, {}), least_ns, known)
        generations.append(own)
    nodes = {incident.node for _, incident in untold if incident.node}
    node = launch.node if launch.node != UNKNOWN_NODE or len(nodes) != 1 else nodes.pop()
    return launch._replace(node=node, began_ns=began_ns, last_ns=last_ns, generations=tuple(generations))


def _ended_by(own: NodeGeneration, folder: str, incident: Incident) -> NodeGeneration:
    """Return a generation that an incident has ended, unless its events tell of another end."""
    if own.incident_folder is not None or own.finished_ns is not None:
        return own
    return own._replace(
        seen_ns=incident.seen_ns if own.seen_ns is None else min(own.seen_ns, incident.seen_ns),
        kind=incident.kind,
        culprits=tuple(sorted(rank.rank for rank in incident.culprits)),
        incident_folder=folder,
    )


def _ended_ns(own: NodeGeneration) -> int:
    """Return until when a generation is known to have run at least."""
    return max([own.started_ns, *(at_ns for at_ns in (own.seen_ns, own.stopped_ns) if at_ns is not None)])


def _with_ranks(
    own: NodeGeneration, ranks: Mapping[int, RankLife], least_ns: int, known: Mapping[int, NodeGeneration]
) -> NodeGeneration:
    """Return a generation of whose start no event is left with the first that is known of it, and with its ranks."""
    signs = (at_ns for life in ranks.values() for at_ns in (life.began_ns, life.first_sign_ns, life.first_step_ns))
    firsts = [at_ns for at_ns in (*signs, *own.first_sign_ns.values()) if at_ns is not None]
    local_ranks = {*own.local_ranks, *(life.local_rank for life in ranks.values() if life.local_rank is not None)}
    if not local_ranks:  # as many as in the generation that is nearest
        others = (each for each in known.values() if each.local_ranks)
        nearest = min(others, key=lambda each: abs(each.number - own.number), default=None)
        local_ranks = set(nearest.local_ranks) if nearest is not None else set()
    started_ns = max(least_ns, min([own.started_ns, *firsts]))
    return own._replace(started_ns=started_ns, local_ranks=tuple(sorted(local_ranks)))
