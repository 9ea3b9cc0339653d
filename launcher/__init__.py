"""ft_launcher: torch.distributed.elastic with rank monitors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilience_core._lazy import attach

if TYPE_CHECKING:
    from launcher.cli import main as main
    from launcher.incidents.incident import Incident as Incident
    from launcher.incidents.incident_files import read_incidents as read_incidents
    from launcher.incidents.incident_files import read_job_incidents as read_job_incidents
    from launcher.incidents.job_incident import JobIncident as JobIncident
    from launcher.records.event_files import read_events as read_events
    from launcher.standalone import RankMonitors as RankMonitors
    from launcher.standalone import start_monitor as start_monitor

    __version__: str

_EXPORTS = {
    "Incident": "incidents.incident",
    "JobIncident": "incidents.job_incident",
    "RankMonitors": "standalone",
    "main": "cli",
    "read_events": "records.event_files",
    "read_incidents": "incidents.incident_files",
    "read_job_incidents": "incidents.incident_files",
    "start_monitor": "standalone",
}

__distribution__ = "torch-resilience"

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that is there
    __getattr__, __dir__ = attach(__name__, _EXPORTS)

__all__ = [
    "Incident",
    "JobIncident",
    "RankMonitors",
    "main",
    "read_events",
    "read_incidents",
    "read_job_incidents",
    "start_monitor",
]
