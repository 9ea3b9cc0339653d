"""The incidents that a run has left, as far as they can be read, and which launch each belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from launcher.incidents.incident import ELSEWHERE, Incident
from launcher.incidents.incident_files import each_incident, read_incident, read_seen_by, read_told
from launcher.incidents.job_incident import JobIncident
from launcher.reports.launches import Launch
from launcher.reports.node_generations import NodeGeneration
from launcher.reports.rank_lives import RankLife
from resilience_core.protocol.error_record import ErrorRecord

__all__ = ["Evidence", "JobStory", "ends_a_step", "read_evidence"]

_STEP = "step"


class JobStory(NamedTuple):
    """What the nodes have found together."""

    folder: str
    incident: JobIncident
    seen_by: tuple[Incident, ...]
    """What each node has seen; empty where only the story itself is here."""


class Evidence(NamedTuple):
    """What was read below the log folders, by log folder."""

    incidents: dict[str, dict[str, Incident]]
    """By the name of the incident's folder."""
    elsewhere: dict[str, dict[str, Incident]]
    jobs: dict[str, list[JobStory]]
    told: dict[str, dict[str, JobIncident]]
    """What a node was told of an incident of its own, by the name of that incident's folder."""

    def of_generation(self, launch: Launch, own: NodeGeneration) -> Incident | None:
        """Return what a launch has seen of the end of a generation; None where nothing is left of that."""
        if own.incident_folder is not None:
            found = self.incidents.get(launch.folder, {}).get(os.path.basename(own.incident_folder))
            if found is not None and found.generation == own.number:
                return found
        looked = self.elsewhere.get(launch.folder, {}).get(f"{own.number:04d}-{launch.node}-{launch.pid}")
        if looked is not None and looked.seen_ns >= own.started_ns:
            return looked
        told = (seen for jobs in self.jobs.values() for job in jobs for seen in job.seen_by)
        return next((seen for seen in told if _has_looked(launch, own, seen)), None)


def _has_looked(launch: Launch, own: NodeGeneration, seen: Incident) -> bool:
    """Return whether a launch has given this account of a failure on another node, of which it has no folder."""
    pids = {rank.local_rank: rank.pid for rank in seen.ranks}
    return (
        seen.kind == ELSEWHERE
        and (seen.node, seen.generation) == (launch.node, own.number)
        and bool(pids)
        and pids == own.pids
        and own.started_ns <= seen.seen_ns
        and (own.stopped_ns is None or seen.seen_ns <= own.stopped_ns)
    )


def read_evidence(folders: Iterable[str], notes: list[str]) -> Evidence:
    """Read all incidents below log folders; what cannot be read is noted."""
    evidence = Evidence({}, {}, {}, {})
    for folder in folders:
        evidence.incidents[folder] = dict(each_incident(folder, "incidents", read_incident, notes.append))
        evidence.elsewhere[folder] = dict(each_incident(folder, "elsewhere", read_incident, notes.append))
        evidence.jobs[folder] = [
            JobStory(os.path.join(folder, "job_incidents", name), incident, seen_by)
            for name, (incident, seen_by) in each_incident(folder, "job_incidents", read_seen_by, notes.append)
        ]
        evidence.told[folder] = dict(each_incident(folder, "incidents", read_told, notes.append))
    return evidence


def ends_a_step(error: ErrorRecord, life: RankLife | None) -> bool:
    """Return whether an exception has ended a step.

    Where nothing tells and steps are sections it has not, if it was raised in none; but the first steps of a generation
    are none yet.
    """
    if error.is_step_done is not None:
        return not error.is_step_done
    section = error.section
    steps = life.sections.get(_STEP) if life is not None else None
    return section == _STEP or (section is None and (steps is None or not (steps.closed or steps.left)))
