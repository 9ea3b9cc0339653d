"""Carry out what the monitor has reported: verdicts, withdrawals, notes, missing parts."""

from __future__ import annotations

import shutil

from launcher.agent.generation import Generation
from launcher.agent.incident_log import IncidentLog
from launcher.agent.job_stories import JobStories
from launcher.agent.resources import AgentResources
from launcher.monitor.messages import (
    Fenced,
    HangReport,
    LauncherStopped,
    Looked,
    MissingParts,
    Note,
    Signalled,
    Spared,
    Suspected,
)
from launcher.records.console import announce

__all__ = ["take_reports"]


def take_reports(
    resources: AgentResources,
    current: Generation,
    incidents: IncidentLog,
    stories: JobStories,
    *,
    restarts_are_left: bool,
) -> None:
    """Read what the monitor has reported since the last time, and act on it; never wait.

    Args:
        resources: What the agent works with.
        current: The generation that runs. A verdict on an earlier one is of no concern to it.
        incidents: Where incidents are told.
        stories: What the nodes find out together.
        restarts_are_left: Whether what a verdict means for the next generation is worth saying.
    """
    for report in resources.monitor.read_reports():
        if isinstance(report, MissingParts):
            current.mend()
        elif isinstance(report, Note):
            announce(report.text, event="note", generation=report.generation)
            resources.events.write("note", generation=report.generation, text=report.text)
        elif isinstance(report, Spared):
            has_lost_a_rank = report.generation != current.number or _has_lost_a_rank(current)
            for miss in report.near_misses:
                if report.generation == current.number:
                    current.withdraw(miss.local_rank)
                incidents.tell_spared(report.generation, miss, has_lost_a_rank=has_lost_a_rank)
            stories.has_verdict(report.generation, report.came_back)  # it has looked, whatever has come of it
            if report.generation == current.number and not current.condemned and not current.is_being_ended:
                stories.withdrawn(current.number)
        elif isinstance(report, Suspected):
            stories.suspected(report.generation)
        elif isinstance(report, Looked):
            stories.looked(report.incident, report.generation, report.came_back, is_brief=report.is_brief)
        elif isinstance(report, LauncherStopped):
            resources.events.write("launcher_stopped", seen_ns=report.seen_ns)
        elif isinstance(report, Fenced):
            resources.events.write("fenced", **report._asdict())
            if report.generation in (-1, current.number):  # -1: it had not read yet who runs
                current.is_fenced = True
        elif isinstance(report, Signalled):
            resources.events.write("signalled", **report._asdict())
        elif report.generation == current.number:
            stories.has_verdict(report.generation, only_waits=report.only_waits)
            _take_verdict(resources, current, incidents, report, restarts_are_left)


def _has_lost_a_rank(current: Generation) -> bool:
    """Return whether a local rank has ended, or is failing, by itself: its peers are let go by that."""
    current.processes.collect_exits()
    ended = {worker.local_rank for worker in current.processes.workers.values() if worker.exit_code is not None}
    failing = {local_rank for local_rank, error in current.errors().items() if error.thread is None}
    return bool((ended | failing) - current.condemned)


def _take_verdict(
    resources: AgentResources, current: Generation, incidents: IncidentLog, report: HangReport, restarts_are_left: bool
) -> None:
    """Condemn, and tell the incident, unless it comes too late to be the one that ends the generation."""
    incident = report.incident
    is_another = current.is_being_ended or bool(current.condemned)
    current.condemn(report.condemned, incident.seen_ns)
    if is_another:
        if (folder := incident.folder) is not None:
            resources.on_disk("an incident too many", lambda: shutil.rmtree(folder, ignore_errors=True), None)
        return
    incidents.tell(incident, report.problem)
    if (said := resources.limits.note_verdict(incident)) and restarts_are_left:
        for line in said:
            announce(line, event="limits", generation=report.generation)
