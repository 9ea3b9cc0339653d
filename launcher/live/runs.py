"""Find the log folders of runs, and what has become of each."""

from __future__ import annotations

import contextlib
import os
import time
from typing import NamedTuple

from launcher.live.launcher_log import LauncherLog
from launcher.processes.proc import boot_id
from launcher.records.event_files import event_files, runs_below
from launcher.records.format_versions import UnknownVersionError
from launcher.records.private_folders import is_held

__all__ = [
    "ELSEWHERE",
    "ENDED",
    "GOES_ON",
    "LOST",
    "RUNS",
    "STARTING",
    "UNKNOWN",
    "FoundRun",
    "find_runs",
    "folder_problem",
    "holds_runs",
    "read_run",
    "state_of",
]

GOES_ON = "goes on"
ENDED = "has ended"
LOST = "is lost"
"""Nobody has written how it ended, and nobody holds its run folder: launcher and monitor were killed, or they run in
another container."""
ELSEWHERE = "is of another machine"
"""Whether it goes on cannot be told from here."""
STARTING = "may be starting"
"""Its file of events is empty and young: it is starting, or its events were removed."""
UNKNOWN = "is not known"
"""No event that is left tells where it runs, nor how it ended."""
RUNS = (GOES_ON, STARTING)
"""Of these, more events are awaited."""

_LONGEST_START_SECONDS = 60.0
"""A launcher makes its file of events first, and says that it has begun once all its processes are started."""


class FoundRun(NamedTuple):
    """The log folder of a run."""

    path: str
    logs: tuple[LauncherLog, ...]
    """Of each launcher that has written there; the one that began last stands last."""
    states: tuple[str, ...]
    """One of the constants above for each of ``logs``."""
    written_ns: int
    """When events were written last, wall-clock nanoseconds."""

    @property
    def name(self) -> str:
        """The run's name."""
        return os.path.basename(self.path)

    @property
    def goes_on(self) -> bool:
        """Whether a launcher of this machine runs it, or may be starting it."""
        return any(state in RUNS for state in self.states)


def holds_runs(folder: str) -> bool:
    """Return whether a folder is the log folder of a run: it has files of events.

    Raises:
        OSError: It cannot be read.
    """
    return bool(event_files(folder))


def find_runs(parent: str, at_most: int = 20) -> list[FoundRun]:
    """Return the newest runs below a folder of log folders, the newest first. One that cannot be read is left out.

    Args:
        parent: The folder (``--log-dir``).
        at_most: How many.

    Raises:
        OSError: The folder cannot be read.
    """
    found = []
    for path in runs_below(parent)[:at_most]:
        with contextlib.suppress(OSError, UnknownVersionError):
            found.append(read_run(path))
    return found


def read_run(path: str) -> FoundRun:
    """Read the log folder of one run.

    Raises:
        OSError: It cannot be read.
        UnknownVersionError: Another release of torch-resilience has written it.
    """
    logs, written_ns = [], 0
    for file in filter(os.path.isfile, event_files(path)):
        log = LauncherLog(file)
        log.update()
        written_ns = max(written_ns, os.stat(file).st_mtime_ns)
        logs.append((written_ns, log))
    ordered = tuple(log for _, log in sorted(logs, key=lambda pair: (pair[1].began_ns or 0, pair[0])))
    return FoundRun(path, ordered, tuple(map(state_of, ordered)), written_ns)


def state_of(log: LauncherLog) -> str:
    """Return what has become of a launcher: one of the constants above."""
    if log.ending is not None:
        return ENDED
    if log.began_ns is None and log.run_folder is None:
        if log.boot not in (None, boot_id() or os.uname().nodename):
            return ELSEWHERE
        return STARTING if _is_young_and_empty(log.path) else UNKNOWN
    if log.boot is not None and log.boot != (boot_id() or os.uname().nodename):
        return ELSEWHERE
    # One whose lock may not be looked at is another user's: it may go on.
    return GOES_ON if log.run_folder is not None and is_held(log.run_folder) is not False else LOST


def _is_young_and_empty(path: str) -> bool:
    """Return whether a file has no byte, and was made so lately that its launcher may still be starting."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return not status.st_size and abs(time.time() - status.st_mtime) < _LONGEST_START_SECONDS


def folder_problem(run_folder: str) -> str | None:
    """Say why the cells of a run folder cannot be read, where that is a matter of permissions; None otherwise."""
    try:
        os.listdir(os.path.join(run_folder, "cells"))
    except PermissionError:
        try:
            owner = os.stat(run_folder).st_uid
        except OSError:
            return f"the run folder {run_folder} may not be read; run ft_top as the user that started the run"
        return f"the run folder {run_folder} is private to the user with uid {owner}; run ft_top as that user"
    except OSError:
        return None
    return None
