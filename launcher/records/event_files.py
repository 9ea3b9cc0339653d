"""The events of a run, read back: what :mod:`launcher.records.event_log` has written, of one launcher or of all."""

from __future__ import annotations

import contextlib
import json
import os
import reprlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from launcher.records.format_versions import check_version
from launcher.records.log_records import warn_once
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.plain_files import only_plain

__all__ = [
    "EVENTS",
    "FORMAT_VERSION",
    "DatedEvent",
    "EventFile",
    "dated_events",
    "event_files",
    "event_of",
    "read_event_file",
    "read_events",
    "runs_below",
]

FORMAT_VERSION = 1
"""To be raised when an event or a field that :mod:`launcher.records.run_events` reads changes its meaning."""
EVENTS = "events"
"""What the names of the files of events begin with."""


def event_files(log_folder: str | os.PathLike[str], stem: str = EVENTS) -> list[str]:
    """Return the paths of all files of events in a run's log folder, of every node and every run of its name.

    Args:
        log_folder: Of the run.
        stem: As for :class:`EventLog`.

    Raises:
        OSError: The folder cannot be read.
    """
    log_folder = os.fspath(log_folder)  # os.listdir takes None for the working folder
    names = sorted(os.listdir(log_folder))
    return [os.path.join(log_folder, name) for name in names if name.startswith(stem) and name.endswith(".jsonl")]


def runs_below(parent: str | os.PathLike[str], *stems: str) -> list[str]:
    """Return the log folders of runs in a folder of such, the one first in which events were written last.

    Links are left out (``latest``), and so is what cannot be read.

    Args:
        parent: The folder.
        stems: As for :class:`EventLog`, of the files by any of which a run is known; that of events by default.

    Raises:
        OSError: The folder itself cannot be read.
    """
    parent = os.fspath(parent)
    dated = []
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            files = [file for stem in stems or (EVENTS,) for file in event_files(path, stem)]
            if files and not os.path.islink(path):
                dated.append((max(os.stat(file).st_mtime_ns for file in files), path))
    return [path for _, path in sorted(dated, reverse=True)]


def read_events(log_folder: str | os.PathLike[str], stem: str = EVENTS) -> list[dict[str, Any]]:
    """Return the events of a run, of every node that wrote into this folder, oldest first.

    On one machine the monotonic clock orders them. Between machines, whose monotonic clocks have nothing in common,
    the wall clock does, so the order is as good as their clocks agree. A line that is no event is left out; of one that
    is whole, a warning is logged once, and so it is of what is named like a file of events and is none. Each event has
    ``event``, ``t_ns``, and the ``node`` and ``boot`` of its file; ``time`` is empty where it was lost.

    Args:
        log_folder: Of the run.
        stem: As for :class:`EventLog`.

    Raises:
        OSError: The folder or a file cannot be read.
        UnknownVersionError: Another release of torch-resilience has written a file. The whole folder is refused:
            without the events of one node a run that goes on may seem to have ended, and be removed (``prune``).
    """
    return [event.facts for event in dated_events(log_folder, stem)]


class DatedEvent(NamedTuple):
    """An event, and when it was on the wall clock, as near as the first line of its file tells."""

    at_ns: int
    """Since 1970. The difference to ``t_ns`` is the same for all events of a machine."""
    path: str
    """Of its file: one launcher has written it."""
    facts: dict[str, Any]
    """As :func:`read_events` returns it."""


def dated_events(log_folder: str | os.PathLike[str], stem: str = EVENTS) -> list[DatedEvent]:
    """Return what :func:`read_events` does, with wall-clock times, in the same order.

    Raises:
        OSError: As there.
        UnknownVersionError: As there.
    """
    files = [file for path in event_files(log_folder, stem) if (file := read_event_file(path)) is not None]
    epochs: dict[str, int] = {}  # when each machine's monotonic clock began
    for file in files:
        epochs.setdefault(file.boot, file.epoch_ns)
    dated = [
        DatedEvent(epochs[file.boot] + event["t_ns"], file.path, {"node": file.node, "boot": file.boot, **event})
        for file in files
        for event in file.events
    ]
    return sorted(dated, key=lambda event: event.at_ns)


class EventFile(NamedTuple):
    """What one launcher has written into one file."""

    path: str
    node: str
    boot: str
    """Identifies the monotonic clock."""
    launcher: int | None
    """Its pid."""
    process_began_ns: int | None
    """When its process was started, which tells it from others of the same pid; None in files of earlier releases."""
    epoch_ns: int
    """Nanoseconds since 1970 when that clock stood at zero, by the wall clock of that machine."""
    events: list[dict[str, Any]]
    """In the order in which they were written."""

    def is_by_writer_of(self, other: EventFile) -> bool:
        """Return whether one launcher has written both, as far as they tell."""
        began = {self.process_began_ns, other.process_began_ns} - {None}
        return (self.boot, self.launcher) == (other.boot, other.launcher) and len(began) < 2

    @property
    def epoch(self) -> float:
        """Seconds since 1970 when that clock stood at zero."""
        return self.epoch_ns / NS_PER_SECOND


def read_event_file(path: str, leave_out: Callable[[str], object] = warn_once) -> EventFile | None:
    """Return what one file holds; what is left out, and what it raises, is as for :func:`read_events`.

    Args:
        path: Of the file.
        leave_out: Is told what is left out, and why.

    Returns:
        None where there is no whole line in it, or where it is no plain file.

    Raises:
        OSError: It cannot be read.
        UnknownVersionError: Another release of torch-resilience has written it.
    """
    if not os.path.isfile(path):
        leave_out(f"{path}: left out, since it is no plain file")
        return None
    with open(path, encoding="utf-8", errors="replace", opener=only_plain) as file:
        # The last line may be on its way; one in the middle was torn by a disk that was full.
        events = [
            event for line in file if line.endswith("\n") if (event := _parsed(line, path, leave_out)) is not None
        ]
    if not events:
        return None
    first = events[0]
    check_version(path, first.get("version", 1), FORMAT_VERSION)  # the first release wrote none
    pid, began_ns = first.get("launcher"), first.get("process_began_ns")
    if type(began_ns) is int and began_ns <= first["t_ns"]:
        for early_ns in [each["t_ns"] for each in events if each["t_ns"] < began_ns]:
            what = f"its t_ns is {early_ns}, and its launcher was started at {began_ns}"
            leave_out(f"{path}: a damaged line is left out, {what}")
        events = [each for each in events if each["t_ns"] >= began_ns]
    return EventFile(
        path=path,
        node=str(first.get("node", "")),
        boot=str(first.get("boot", path)),
        launcher=pid if type(pid) is int else None,
        process_began_ns=began_ns if type(began_ns) is int else None,
        epoch_ns=_epoch_ns(first),
        events=events,
    )


def event_of(line: str) -> dict[str, Any]:
    """Return the event of one line of an event log.

    Raises:
        ValueError: It is none; the message says why.
    """
    try:
        event = json.loads(line)
        if not line.isascii():  # what is written is; a bit that flipped in a text makes no other kind of damage
            raise ValueError
    except (ValueError, RecursionError):
        raise ValueError(f"a damaged line is left out: {reprlib.repr(line)}") from None
    if not isinstance(event, dict) or "t_ns" not in event:
        raise ValueError(f"a line that is no event is left out: {reprlib.repr(line)}")
    at_ns, name = event["t_ns"], event.get("event")
    if not isinstance(name, str):
        raise ValueError(f"a damaged line is left out, its event is {reprlib.repr(name)}")
    if type(at_ns) is not int or not 0 <= at_ns < 1 << 63:
        raise ValueError(f"a damaged line is left out, its t_ns is {reprlib.repr(at_ns)}")
    return {"time": "", **event}


def _parsed(line: str, path: str, leave_out: Callable[[str], object]) -> dict[str, Any] | None:
    try:
        return event_of(line)
    except ValueError as error:
        leave_out(f"{path}: {error}")
        return None


def _epoch_ns(event: dict[str, Any]) -> int:
    """Return the wall clock, in nanoseconds since 1970, at which the monotonic clock of an event stood at zero."""
    for form in ("%Y-%m-%dT%H:%M:%S.%f%z", "%Y-%m-%dT%H:%M:%S%z"):
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            return round(datetime.strptime(event["time"], form).timestamp() * NS_PER_SECOND) - int(event["t_ns"])
    return 0
