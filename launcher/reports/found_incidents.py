"""What is left of each failure of a story: the accounts of its nodes, and what they have found together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from launcher.incidents.incident import Incident as Seen
from launcher.incidents.job_incident import JobIncident
from launcher.reports.evidence import Evidence
from launcher.reports.found_generations import epoch_of
from launcher.reports.story import JobGeneration, Member, Story
from launcher.reports.verdicts_of_jobs import JobVerdict

__all__ = ["Found", "find", "of_missing_folders", "seen_at"]

_SAME_SECONDS = 600.0
"""An incident of that generation that was written within that time is of this run."""


class Found(NamedTuple):
    """What is known of one failure."""

    seen_by: tuple[Seen, ...]
    story: JobIncident | None
    folder: str | None
    verdict: JobVerdict | None = None
    """What events tell of the story, where that is not here."""


def seen_at(story: Story, generation: JobGeneration) -> float | None:
    """Return when the failure of a generation was seen first, in seconds since the story's begin; None without one."""
    exact = [m for m in generation.members if m.seen_ns is not None and not m.is_seen_about]
    about = [m for m in generation.members if m.seen_ns is not None]
    return min((story.at(m.launch, m.seen_ns or 0) for m in exact or about), default=None)


def find(story: Story, evidence: Evidence, generation: JobGeneration) -> Found:
    """Return what is known of the failure that has ended a generation."""
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
        return Found(job.seen_by or own, job.incident, job.folder)
    for member in generation.members:
        name = os.path.basename(member.own.incident_folder or "")
        if name and (told := evidence.told.get(story.launches[member.launch].folder, {}).get(name)) is not None:
            return Found(own, told, _folder_of(story, member))
    told_by = next((m for m in generation.members if m.own.incident_folder is not None), None)
    verdict = next((m.own.verdict for m in generation.members if m.own.verdict is not None), None)
    return Found(own, None, _folder_of(story, told_by) if told_by is not None else None, verdict)


def _folder_of(story: Story, member: Member) -> str | None:
    """Return where an incident's folder is now; the run's log folder may have been moved."""
    name = os.path.basename(member.own.incident_folder or "")
    folder = os.path.join(story.launches[member.launch].folder, "incidents", name)
    return folder if name and os.path.isdir(folder) else None


def of_missing_folders(story: Story, evidence: Evidence) -> Iterator[str]:
    """Yield which incidents that the nodes have found together are missing, and what is shown of them instead."""
    for generation in story.generations:
        verdict = find(story, evidence, generation).verdict if generation.has_failed else None
        if verdict is not None:
            host = f", gathered on node {verdict.gathered_on}" if verdict.gathered_on else ""
            where = f"{verdict.folder}{host}" if verdict.folder else "it could not be written"
            yield (
                f"generation(s) {generation.number}: what the nodes have found together is not in these log folders, "
                f"or cannot be read ({where}): the incident is shown as events tell of it, with what is left of each "
                "node"
            )
