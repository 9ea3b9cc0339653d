"""The incidents of a log folder, read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from launcher.incidents.incident import Incident
from launcher.records.format_versions import UnknownVersionError
from launcher.records.log_records import warn_once
from resilience_core.system.plain_files import only_plain

__all__ = ["read_incident", "read_incidents"]


def read_incident(folder: str) -> Incident:
    """Load one incident from its folder.

    Raises:
        OSError: There is none, or it cannot be read.
        UnknownVersionError: Another release of torch-resilience has written it.
    """
    with open(os.path.join(folder, "incident.json"), encoding="utf-8", opener=only_plain) as file:
        return Incident.from_json(json.load(file))


def read_incidents(log_folder: str) -> Iterator[Incident]:
    """Return every incident of a run, oldest first.

    One that another release of torch-resilience has written in another format is left out, and a warning is logged
    once: the others are complete without it.

    Args:
        log_folder: The run's log folder (``<--log-dir>/<run id>``).
    """
    parent = os.path.join(log_folder, "incidents")
    for name in sorted(os.listdir(parent)) if os.path.isdir(parent) else ():
        if os.path.exists(os.path.join(parent, name, "incident.json")):
            try:
                incident = read_incident(os.path.join(parent, name))
            except UnknownVersionError as error:
                warn_once(f"{os.path.join(parent, name)} is left out: {error}")
                continue
            yield incident
