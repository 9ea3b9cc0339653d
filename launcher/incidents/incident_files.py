"""The incidents of a log folder, read back."""

from __future__ import annotations

import contextlib
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

__all__ = [
    "DamagedIncidentError",
    "each_incident",
    "read_incident",
    "read_incidents",
    "read_job_incident",
    "read_job_incidents",
    "read_seen_by",
    "read_told",
]

T = TypeVar("T")

_INCIDENT = "incident.json"
_TOLD = "job_incident.json"
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading a document raises that is not what was written."""
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


def read_told(folder: str | os.PathLike[str]) -> JobIncident:
    """Load what a node was told of an incident, from that incident's folder; what it raises is as of others."""
    return _read(folder, JobIncident.from_json, _TOLD)


def read_seen_by(folder: str | os.PathLike[str]) -> tuple[JobIncident, tuple[Incident, ...]]:
    """Load an incident of a whole job, and what each node has seen of it; what is damaged of the latter is left out."""
    return _read(folder, lambda document: (JobIncident.from_json(document), tuple(_seen_by(document))))


def _seen_by(document: dict[str, Any]) -> Iterator[Incident]:
    nodes = document.get("nodes")
    for each in nodes if isinstance(nodes, list) else ():
        with contextlib.suppress(*_DAMAGE):
            yield Incident.from_json(each)


def _read(folder: str | os.PathLike[str], parse: Callable[[Any], T], name: str = _INCIDENT) -> T:
    path = os.path.join(folder, name)
    with open(path, "rb", opener=only_plain) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # /dev/zero has no end
            raise OSError(errno.EINVAL, "it is a device, not a plain file", path)
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise DamagedIncidentError(f"it is damaged (longer than {_MOST_BYTES >> 20} MiB, which no incident is)")
    if not raw.strip(b"\0"):
        raise DamagedIncidentError(f"it is damaged ({'it holds zero bytes alone' if raw else 'it is empty'})")
    try:
        return parse(json.loads(raw.decode()))
    except UnknownVersionError:
        raise
    except UnicodeError as error:
        raise DamagedIncidentError("it is damaged (it is no text in UTF-8)") from error
    except _DAMAGE as error:
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
    names = sorted(os.listdir(parent)) if kind in os.listdir(log_folder) else []
    return (incident for _, incident in _read_all(parent, names, read, _INCIDENT, warn_once))


def each_incident(
    log_folder: str | os.PathLike[str],
    kind: str,
    read: Callable[[str], T],
    leave_out: Callable[[str], object],
) -> Iterator[tuple[str, T]]:
    """Yield what is in the folders of incidents of a run, by their names.

    Args:
        log_folder: The run's log folder.
        kind: Of its folders: ``incidents``, ``elsewhere`` or ``job_incidents``; it may be missing.
        read: :func:`read_incident`, :func:`read_job_incident`, :func:`read_seen_by` or :func:`read_told`.
        leave_out: Is told what cannot be read, and why.
    """
    parent = os.path.join(log_folder, kind)
    try:
        names = sorted(os.listdir(parent))
    except FileNotFoundError:
        return
    except OSError as error:
        leave_out(f"{parent} cannot be read: {error.strerror}")
        return
    yield from _read_all(parent, names, read, _TOLD if read is read_told else _INCIDENT, leave_out)


def _read_all(
    parent: str, names: list[str], read: Callable[[str], T], file: str, leave_out: Callable[[str], object]
) -> Iterator[tuple[str, T]]:
    for name in names:
        path = os.path.join(parent, name)
        if not os.path.exists(os.path.join(path, file)):  # it is being written, or nothing more came of it
            continue
        try:
            incident = read(path)
        except (UnknownVersionError, DamagedIncidentError, OSError) as error:
            leave_out(f"{path if file == _INCIDENT else os.path.join(path, file)} is left out: {error}")
            continue
        yield name, incident
