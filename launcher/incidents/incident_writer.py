"""Writes incidents in a thread that is there before anything goes wrong, so that no disk stands before a signal.

The thread is started with the monitor: at a verdict there may be no room for another one (``pids.max``). A file system
that hangs costs the wait for the first file, not the kill. Where not even that thread could be had, what is to be
written waits until the signal has been sent.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
from collections.abc import Callable

from launcher.incidents.incident import Incident

__all__ = ["SLOWEST_WRITE_SECONDS", "IncidentWriter"]

SLOWEST_WRITE_SECONDS = 0.5


class IncidentWriter:
    """Makes and changes incident folders, in order, each within a bound.

    Args:
        log_folder: Incidents go to ``incidents`` in here, withdrawn verdicts to ``near_misses``.
    """

    def __init__(self, log_folder: str) -> None:
        self._log_folder = log_folder
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._work, name="ft_incidents", daemon=True).start()
            self._has_thread = True
        except RuntimeError:  # no room for a thread
            self._has_thread = False
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

        def job() -> None:
            self._newest = None
            try:
                self._newest = incident.write(parent)
                outcome.append((self._newest, None))
            except OSError as error:
                outcome.append((incident, f"cannot write the incident under {parent}: {error.strerror}"))
            except Exception as error:  # noqa: BLE001 - whatever it is, it costs the file alone
                outcome.append((incident, f"cannot write the incident under {parent}: {error!r}; please report that"))
            done.set()

        self._jobs.put(job)
        if not self._has_thread:
            return incident, f"no thread could be started; the incident is written under {parent} after the signal"
        if not done.wait(SLOWEST_WRITE_SECONDS):
            return incident, f"writing the incident under {parent} takes longer than {SLOWEST_WRITE_SECONDS} s"
        return outcome[0]

    def correct(self, incident: Incident) -> None:
        """Write the incident that was written last once more, without waiting: part of it was withdrawn."""

        def job() -> None:
            if (newest := self._newest) is None:
                return
            with contextlib.suppress(Exception):
                incident._replace(folder=newest.folder, wall_time=newest.wall_time, node=newest.node).save()

        self._jobs.put(job)

    def withdraw(self, incident: Incident) -> None:
        """Turn the incident that was written last into a near miss, without waiting: nobody was terminated."""

        def job() -> None:
            with contextlib.suppress(Exception):
                incident._replace(kind="near_miss").write(self._log_folder + "/near_misses")
            self._remove_newest()

        self._jobs.put(job)

    def discard(self) -> None:
        """Remove the incident that was written last, without waiting: its generation ends for another reason."""
        self._jobs.put(self._remove_newest)

    def _remove_newest(self) -> None:
        if self._newest is not None and self._newest.folder is not None:
            shutil.rmtree(self._newest.folder, ignore_errors=True)

    def catch_up(self) -> None:
        """Do what had to wait for the signal; where there is a thread it is its business."""
        while not self._has_thread and not self._jobs.empty():
            self._jobs.get()()

    def finish(self, timeout_seconds: float) -> None:
        """Wait until all is written, but not for long."""
        done = threading.Event()
        self._jobs.put(done.set)
        self.catch_up()
        done.wait(timeout_seconds)

    def _work(self) -> None:
        while True:
            self._jobs.get()()
