"""The incidents that a run has left, as far as they can be read, and which launch each belongs to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import DamagedIncidentError, read_incident, read_job_incident
from launcher.incidents.job_incident import JobIncident, parse_story
from launcher.records.format_versions import UnknownVersionError
from launcher.reports.launches import Launch
from launcher.reports.node_generations import NodeGeneration
from resilience_core.system.plain_files import only_plain

__all__ = ["Evidence", "JobStory", "read_evidence"]

T = TypeVar("T")


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
        return looked if looked is not None and looked.seen_ns >= own.started_ns else None


def read_evidence(folders: Iterable[str], notes: list[str]) -> Evidence:
    """Read all incidents below log folders; what cannot be read is noted."""
    evidence = Evidence({}, {}, {}, {})
    for folder in folders:
        evidence.incidents[folder] = dict(_read(folder, "incidents", read_incident, notes))
        evidence.elsewhere[folder] = dict(_read(folder, "elsewhere", read_incident, notes))
        jobs = _read(folder, "job_incidents", read_job_incident, notes)
        evidence.jobs[folder] = [
            JobStory(os.path.join(folder, "job_incidents", name), incident, _seen_by(folder, name))
            for name, incident in jobs
        ]
        evidence.told[folder] = dict(_read(folder, "incidents", _told, [], file="job_incident.json"))
    return evidence


def _read(
    folder: str, kind: str, read: Callable[[str], T], notes: list[str], file: str = "incident.json"
) -> Iterator[tuple[str, T]]:
    parent = os.path.join(folder, kind)
    try:
        names = sorted(os.listdir(parent))
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(f"{parent} cannot be read: {error.strerror}")
        return
    for name in names:
        path = os.path.join(parent, name)
        if not os.path.exists(os.path.join(path, file)):  # it is being written, or nothing more came of it
            continue
        try:
            yield name, read(path)
        except (OSError, UnknownVersionError, DamagedIncidentError, ValueError) as error:
            notes.append(f"{path} is left out: {error}")


def _told(path: str) -> JobIncident:
    with open(os.path.join(path, "job_incident.json"), encoding="utf-8", opener=only_plain) as file:
        return parse_story(file.read())


def _seen_by(folder: str, name: str) -> tuple[Incident, ...]:
    """Return what each node has seen, from a job's incident that could be read; what is damaged there is left out."""
    with open(
        os.path.join(folder, "job_incidents", name, "incident.json"), encoding="utf-8", opener=only_plain
    ) as file:
        nodes = json.load(file).get("nodes", [])
    found = []
    for document in nodes if isinstance(nodes, list) else ():
        try:
            found.append(Incident.from_json(document))
        except (ValueError, TypeError, LookupError, AttributeError):
            continue
    return tuple(found)
