"""Writes incidents in a thread that is started before anything goes wrong, so that the signal waits for no disk.

The thread is started with the monitor: at a verdict there may be no room for another one (``pids.max``). A file system
that hangs costs the wait for the first file, not the kill. Where the system refused the thread, what is to be written
waits until the signal has been sent.
"""

from __future__ import annotations

import collections
import os
import shutil
import threading
from collections.abc import Callable

from launcher.incidents.incident import Incident
from launcher.incidents.output_tails import with_output
from launcher.processes.background import Background
from launcher.records.console import announce

__all__ = ["SLOWEST_WRITE_SECONDS", "IncidentWriter"]

SLOWEST_WRITE_SECONDS = 0.5
_MOST_WAITING = 1000
"""How many incidents, corrections and withdrawals may wait for a file system that hangs."""


class IncidentWriter:
    """Makes and changes incident folders, in order, each within a bound.

    What cannot be written costs its files alone: never the thread, and never the next incident.

    Args:
        log_folder: Incidents go to ``incidents`` in here, withdrawn verdicts to ``near_misses``.
    """

    def __init__(self, log_folder: str) -> None:
        self._log_folder = log_folder
        self._background = Background("ft_incidents", _MOST_WAITING, log_folder)
        self._background.start()
        self._after_the_signal: collections.deque[Callable[[], object]] = collections.deque()
        """What has no thread to be done by."""
        self._newest: Incident | None = None
        """The incident written last, with its folder; the caller of :meth:`write` is not told that if it was slow."""

    def write(self, incident: Incident) -> tuple[Incident, str | None]:
        """Write an incident and wait for that, briefly.

        Returns:
            The incident, with its folder where there is one by now, and what went wrong.
        """
        outcome: list[tuple[Incident, str | None]] = []
        parent = self._log_folder + "/incidents"
        done = threading.Event()

        def write() -> None:
            # The ranks live yet: the signal waits for this, for a while.
            self._newest = with_output(incident, self._log_folder).write(parent)

        def job() -> None:
            self._newest = None
            problem = _problem(f"the incident could not be written under {parent}", write)
            outcome.append((self._newest or incident, problem))
            done.set()

        # Not Background.call(), which hands over nothing while a file system hangs: it may answer later.
        if not self._submit(job):
            return incident, f"the incident is not written under {parent}: {_MOST_WAITING} writes wait there already"
        if not self._background.is_started:
            return incident, f"no thread could be started; the incident is written under {parent} after the signal"
        if not done.wait(SLOWEST_WRITE_SECONDS):
            return incident, f"writing the incident under {parent} takes longer than {SLOWEST_WRITE_SECONDS} s"
        return outcome[0]

    def correct(self, incident: Incident) -> None:
        """Write the incident that was written last once more, without waiting: part of it was withdrawn."""

        def job() -> None:
            if (newest := self._newest) is not None:
                right = incident._replace(folder=newest.folder, wall_time=newest.wall_time, node=newest.node)
                _try(f"{newest.folder} names ranks that were spared, and cannot be corrected", right.save)

        self._submit(job)

    def withdraw(self, incident: Incident) -> None:
        """Turn the incident that was written last into a near miss, without waiting: nobody was terminated."""
        parent = self._log_folder + "/near_misses"

        def write() -> None:
            incident._replace(kind="near_miss").write(parent)

        def job() -> None:
            _try(f"cannot write the near miss under {parent}", write)
            self._remove_newest()

        self._submit(job)

    def discard(self) -> None:
        """Remove the incident that was written last, without waiting: its generation ends for another reason."""
        self._submit(self._remove_newest)

    def _remove_newest(self) -> None:
        newest, self._newest = self._newest, None
        if newest is not None and (folder := newest.folder) is not None and os.path.lexists(folder):
            _try(f"nobody was terminated, but {folder} cannot be removed", lambda: shutil.rmtree(folder))

    def catch_up(self) -> None:
        """Do what had to wait for the signal; where there is a thread, that does it."""
        while self._after_the_signal:
            self._after_the_signal.popleft()()

    def finish(self, timeout_seconds: float) -> None:
        """Wait until all is written, for a bounded time."""
        self.catch_up()
        self._background.flush(timeout_seconds)

    def _submit(self, job: Callable[[], object]) -> bool:
        """Hand over a job, which must not raise, and return whether there was room for it."""
        if self._background.is_started:
            return self._background.submit(job)
        self._after_the_signal.append(job)
        return True


def _try(failure: str, action: Callable[[], object]) -> None:
    """Do something, and announce it where it fails: what lies on the disk then is not true."""
    problem = _problem(failure, action)
    if problem is not None:
        announce(problem, event="log_folder")


def _problem(failure: str, action: Callable[[], object]) -> str | None:
    """Do something; return what has failed and why, None where nothing has."""
    try:
        action()
    except OSError as error:
        return f"{failure}: {error.strerror}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs the file alone
        return f"{failure}: {error!r}; please report that"
    return None
