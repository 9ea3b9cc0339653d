"""Carry out what the monitor has reported: verdicts, withdrawals, notes, missing parts."""

from __future__ import annotations

import shutil

from launcher.agent.generation import Generation
from launcher.agent.incident_log import IncidentLog
from launcher.agent.resources import Outfit
from launcher.monitor.messages import HangReport, LauncherStopped, MissingParts, Note, Signalled, Spared
from launcher.records.console import say

__all__ = ["take_reports"]


def take_reports(outfit: Outfit, current: Generation, incidents: IncidentLog, *, restarts_are_left: bool) -> None:
    """Read what the monitor has reported since the last time, and act on it; never wait.

    Args:
        outfit: What the agent works with.
        current: The generation that runs. A verdict on an earlier one is of no concern to it.
        incidents: Where incidents are told.
        restarts_are_left: Whether what a verdict means for the next generation is worth saying.
    """
    for report in outfit.monitor.read_reports():
        if isinstance(report, MissingParts):
            current.mend()
        elif isinstance(report, Note):
            say(report.text)
            outfit.events.write("note", generation=report.generation, text=report.text)
        elif isinstance(report, Spared):
            for miss in report.near_misses:
                if report.generation == current.number:
                    current.acquit(miss.local_rank)
                incidents.tell_spared(report.generation, miss)
        elif isinstance(report, LauncherStopped):
            outfit.events.write("launcher_stopped", seen_ns=report.seen_ns)
        elif isinstance(report, Signalled):
            outfit.events.write("signalled", **report._asdict())
        elif report.generation == current.number:
            _take_verdict(outfit, current, incidents, report, restarts_are_left)


def _take_verdict(
    outfit: Outfit, current: Generation, incidents: IncidentLog, report: HangReport, restarts_are_left: bool
) -> None:
    """Condemn, and tell the incident, unless it comes too late to be the one that ends the generation."""
    incident = report.incident
    is_another = current.is_being_ended or bool(current.condemned)
    current.condemn(report.condemned)
    if is_another:
        if (folder := incident.folder) is not None:
            outfit.on_disk("an incident too many", lambda: shutil.rmtree(folder, ignore_errors=True), None)
        return
    incidents.tell(incident, report.problem)
    if (said := outfit.limits.note_verdict(incident)) and restarts_are_left:
        say(*said)
