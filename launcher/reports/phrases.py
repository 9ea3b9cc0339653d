"""What a terminal and a page say of a run in the same words."""

from __future__ import annotations

from launcher.reports.formats import count, duration, job_size, nodes_lost, restarts
from launcher.reports.model import Incident, Limit, NearMiss, Report, Run, wall_seconds

__all__ = ["cost_of", "lateness_of", "length_of", "length_of_run", "observed", "outcome", "restarts_of", "size_of"]


_LEAST_SECONDS = 0.1
"""Incidents that are closer are of one moment."""


def observed(limit: Limit) -> str:
    """Return from how many durations the longest is."""
    return f"{'~' if limit.is_about else ''}{count(limit.samples)}{' maxima' if limit.are_maxima else ''}"


def outcome(run: Run) -> str:
    """Return how a run has ended, or that it goes on."""
    if run.is_unread:
        return "how it ended is not known"
    lost = f", {nodes_lost(run.nodes_lost)}" if run.nodes_lost else ""
    if run.is_running:
        return f"still running{lost}"
    if run.outcome is None and run.may_run:
        return f"not known whether it still runs{lost}"
    if run.outcome is None:
        return f"no end was written{lost}"
    return f"{run.outcome}{f' (exit code {run.exit_code})' if run.exit_code is not None else ''}{lost}"


def cost_of(incident: Incident) -> str | None:
    """Return what an incident has cost each rank; None where that is not known."""
    if incident.cost_seconds is None:
        return None
    return f"{'~' if incident.is_cost_about else ''}{duration(incident.cost_seconds)}"


def lateness_of(miss: NearMiss) -> str:
    """Return by how much a limit was missed."""
    return f"{'at most ' if miss.is_late_at_most else ''}{duration(miss.late_seconds)}"


def length_of(report: Report) -> str:
    """Return how long a story took; of one of which only incidents are left, that it took as long as these at least."""
    if any(run.is_of_incidents for run in report.runs):
        return _at_least(wall_seconds(report))
    return f"{'~' if report.is_length_about else ''}{duration(wall_seconds(report))}"


def length_of_run(run: Run) -> str:
    """Return how long a run took."""
    return _at_least(run.seconds) if run.is_of_incidents else f"{'~' * run.is_length_about}{duration(run.seconds)}"


def _at_least(seconds: float | None) -> str:
    is_known = seconds is not None and seconds >= _LEAST_SECONDS
    return f"at least ~{duration(seconds)}" if is_known else "its length is not known"


def size_of(report: Report) -> str:
    """Return how many ranks ran on how many nodes; of several runs, the most."""
    known = [run.world_size for run in report.runs if run.world_size is not None]
    nodes = max((run.nodes for run in report.runs), default=0)
    most = max(known, default=None if report.runs else 0)
    return job_size(most, nodes, is_about=report.is_about or (report.is_end_about and most == 0))


def restarts_of(report: Report) -> str:
    """Return how many restarts all runs had."""
    return restarts(sum(run.restarts for run in report.runs), is_about=report.is_end_about)
