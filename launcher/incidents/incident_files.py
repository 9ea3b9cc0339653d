"""The incidents of a log folder, read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from launcher.incidents.incident import Incident
from resilience_core.system.plain_files import only_plain

__all__ = ["read_incident", "read_incidents"]


def read_incident(folder: str) -> Incident:
    """Load one incident from its folder."""
    with open(os.path.join(folder, "incident.json"), encoding="utf-8", opener=only_plain) as file:
        return Incident.from_json(json.load(file))


def read_incidents(log_folder: str) -> Iterator[Incident]:
    """Return every incident of a run, oldest first.

    Args:
        log_folder: The run's log folder (``<--log-dir>/<run id>``).
    """
    parent = os.path.join(log_folder, "incidents")
    for name in sorted(os.listdir(parent)) if os.path.isdir(parent) else ():
        if os.path.exists(os.path.join(parent, name, "incident.json")):
            yield read_incident(os.path.join(parent, name))
