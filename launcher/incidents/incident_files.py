"""The incidents of a log folder, read back."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from launcher.incidents.incident import Incident
from launcher.incidents.job_incident import JobIncident
from launcher.records.format_versions import UnknownVersionError
from launcher.records.log_records import warn_once
from resilience_core.errors import ResilienceError
from resilience_core.system.plain_files import only_plain

__all__ = ["DamagedIncidentError", "read_incident", "read_incidents", "read_job_incident", "read_job_incidents"]

T = TypeVar("T")


_MOST_BYTES = 64 << 20
"""Of an ``incident.json``; one of 64 ranks with all their stacks takes a few megabytes."""


class DamagedIncidentError(ResilienceError, ValueError):
    """A file is no incident: it was cut short, or somebody has changed it."""


def read_incident(folder: str | os.PathLike[str]) -> Incident:
    """Load one incident from its folder.

    Raises:
        OSError: There is none, or it cannot be read, or is no plain file.
        UnknownVersionError: Another release of torch-resilience has written it.
        DamagedIncidentError: It is not what a release has written.
    """
    return _read(folder, Incident.from_json)


def read_job_incident(folder: str | os.PathLike[str]) -> JobIncident:
    """Load one incident of a whole job from its folder; what it raises is as of :func:`read_incident`."""
    return _read(folder, JobIncident.from_json)


def _read(folder: str | os.PathLike[str], parse: Callable[[Any], T]) -> T:
    path = os.path.join(folder, "incident.json")
    with open(path, "rb", opener=only_plain) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # /dev/zero has no end
            raise OSError(errno.EINVAL, "it is a device, not a plain file", path)
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise DamagedIncidentError(f"it is damaged (longer than {_MOST_BYTES >> 20} MiB, which no incident is)")
    try:
        return parse(json.loads(raw))
    except UnknownVersionError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        why = str(error).splitlines()[0] if str(error) else "no reason given"
        raise DamagedIncidentError(f"it is damaged ({type(error).__name__}: {why})") from error


def read_incidents(log_folder: str | os.PathLike[str]) -> Iterator[Incident]:
    """Return every incident of a run, oldest first.

    One that is damaged, or that another release of torch-resilience has written in another format, is left out, and a
    warning is logged once: the others are complete without it.

    Args:
        log_folder: The run's log folder (``<--log-dir>/<run id>``).

    Raises:
        OSError: The folder cannot be read, or its ``incidents`` cannot.
    """
    return _those_of(log_folder, "incidents", read_incident)


def read_job_incidents(log_folder: str | os.PathLike[str]) -> Iterator[JobIncident]:
    """Return every incident of a job on several nodes that a node with this log folder has gathered, oldest first.

    What is left out, and what it raises, is as of :func:`read_incidents`.
    """
    return _those_of(log_folder, "job_incidents", read_job_incident)


def _those_of(log_folder: str | os.PathLike[str], kind: str, read: Callable[[str], T]) -> Iterator[T]:
    # Here and not in the generator, which would raise at its first item only.
    parent = os.path.join(log_folder, kind)
    return _read_all(parent, sorted(os.listdir(parent)) if kind in os.listdir(log_folder) else [], read)


def _read_all(parent: str, names: list[str], read: Callable[[str], T]) -> Iterator[T]:
    for name in names:
        if os.path.exists(os.path.join(parent, name, "incident.json")):
            try:
                incident = read(os.path.join(parent, name))
            except (UnknownVersionError, DamagedIncidentError, OSError) as error:
                warn_once(f"{os.path.join(parent, name)} is left out: {error}")
                continue
            yield incident
