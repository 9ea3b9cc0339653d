"""The events that our own code reads back, as typed values: ``ft_autoresume`` and ``--ft-keep-runs`` decide by them.

Writing stays :meth:`launcher.records.event_log.EventLog.write` with a name and facts. Some thirty kinds of events are
written, most of them for people and for programs of users alone, and a class for each would repeat the table of
``docs/log-folder.md`` without a reader. Four kinds are read by us, in another process and perhaps by another release:
they stand here, and ``tests/launcher/records/test_run_events.py`` writes and reads each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from launcher.records.event_files import EventFile, event_files, read_event_file, read_events

__all__ = [
    "STOPPED_ON_PURPOSE",
    "Began",
    "Ended",
    "OtherEvent",
    "Requested",
    "RunEvent",
    "StoppedOnPurpose",
    "typed_events",
    "typed_events_by_file",
]


STOPPED_ON_PURPOSE = "stopped_on_purpose"
"""The name of that event, which :class:`launcher.agent.restart_policy.RestartPolicy` writes."""


class Began(NamedTuple):
    """A launcher has started."""

    t_ns: int
    launcher: int | None
    """Its pid."""
    run: str | None
    """The name of the run's log folder."""
    pid_namespace: int | None = None
    """In which the pid is meant."""
    log_folder: str | None = None
    """Where the run's log folder was made; see :class:`launcher.records.log_folders.Place`."""
    inode: int | None = None
    """Of that folder."""


class Ended(NamedTuple):
    """A launcher has ended by itself; how far its ranks came, None for what none of them reported."""

    t_ns: int
    iteration: int | None
    resumed_from: int | None
    saved: int | None
    went_back: bool


class Requested(NamedTuple):
    """A rank has asked for something."""

    t_ns: int
    action: str
    """The value of a :class:`resilience_core.protocol.control.WorkloadAction`."""


class StoppedOnPurpose(NamedTuple):
    """A rank has ended the training by ``StopTraining``, so the job was given up."""

    t_ns: int
    why: str


class OtherEvent(NamedTuple):
    """Any other event."""

    t_ns: int
    iteration: int | None


RunEvent = Began | Ended | Requested | StoppedOnPurpose | OtherEvent


def typed_events(log_folder: str) -> list[RunEvent]:
    """Return what :func:`read_events` does, as typed values, in the same order.

    Raises:
        OSError: As there.
        UnknownVersionError: As there.
    """
    return [_typed(event) for event in read_events(log_folder)]


def typed_events_by_file(log_folder: str) -> list[tuple[EventFile, list[RunEvent]]]:
    """Return the events of each file, which one launcher has written, in the order in which they were written.

    Raises:
        OSError: As for :func:`read_events`.
        UnknownVersionError: As there.
    """
    files = [file for path in event_files(log_folder) if (file := read_event_file(path)) is not None]
    return [(file, [_typed(event) for event in file.events]) for file in files]


def _typed(event: dict[str, Any]) -> RunEvent:
    at_ns = _whole(event, "t_ns") or 0
    name = event.get("event")
    if name == "began":
        return Began(
            at_ns,
            _whole(event, "launcher"),
            _text(event, "run"),
            _whole(event, "pid_namespace"),
            _text(event, "log_folder"),
            _whole(event, "inode"),
        )
    if name == "ended":
        return Ended(
            at_ns,
            iteration=_whole(event, "iteration"),
            resumed_from=_whole(event, "resumed_from"),
            saved=_whole(event, "saved"),
            went_back=bool(event.get("went_back")),
        )
    if name == "request":
        return Requested(at_ns, str(event.get("action")))
    if name == STOPPED_ON_PURPOSE:
        return StoppedOnPurpose(at_ns, str(event.get("why")))
    return OtherEvent(at_ns, _whole(event, "iteration"))


def _text(event: dict[str, Any], key: str) -> str | None:
    value = event.get(key)
    return value if isinstance(value, str) else None


def _whole(event: dict[str, Any], key: str) -> int | None:
    value = event.get(key)
    return value if type(value) is int else None
