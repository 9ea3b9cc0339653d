"""Decide after a failure whether another start can help, and how long to wait before it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from launcher.agent import announcements, failure_incident
from launcher.agent.crash_loop import CrashLoop
from launcher.agent.generation import Generation
from launcher.agent.progress import ProgressRule, Reached, reached_by
from launcher.agent.resources import AgentResources
from launcher.incidents.incident import Incident
from launcher.processes.exit_codes import FAILED
from launcher.records.console import announce
from launcher.records.run_events import STOPPED_ON_PURPOSE
from resilience_core.protocol.cell_view import CellView

__all__ = ["RestartPolicy"]

T = TypeVar("T")


class RestartPolicy:
    """What is known of the generations of one job on this node, as far as it counts for the next one.

    Args:
        resources: What the agent works with.
    """

    def __init__(self, resources: AgentResources) -> None:
        self._resources = resources
        self._progress = ProgressRule(resources.config)
        self._has_worked = False
        """A rank of an earlier generation has come as far as a section, a heartbeat or an iteration."""
        self.exit_code = resources.config.no_restart_exit_code
        """What the launcher ends with where :meth:`why_not_again` has a reason."""
        self.crash_loop = CrashLoop(resources.config.restart_backoff_after)

    @property
    def furthest(self) -> Reached:
        """How far the job came in the generations that have ended."""
        return self._progress.furthest

    def note(self, views: Mapping[int, CellView]) -> None:
        """Note how far a generation came that ends without a failure here."""
        reached = reached_by(views.values())
        self._ask(lambda: self._progress.note(reached))

    def why_not_again(self, incident: Incident, views: Mapping[int, CellView]) -> str | None:
        """Note a failure.

        Args:
            incident: What the failure is told as.
            views: What every rank's cell said, by local rank.

        Returns:
            Why another start could only end the same way; None where it may help.
        """
        reached, in_a_step = reached_by(views.values()), failure_incident.is_in_a_step(incident, views)
        why = self._ask(lambda: self._progress.generation_ended(reached, in_a_step=in_a_step))
        if not self._has_worked:  # else the same configuration has been good enough before
            why = failure_incident.beyond_mending(incident) or why
        self._has_worked |= failure_incident.has_reported(views)
        if (stopped := failure_incident.stopped_on_purpose(incident)) is not None:
            self.exit_code = FAILED
            self._resources.events.write(STOPPED_ON_PURPOSE, generation=incident.generation, why=stopped)
            return stopped
        return why

    def wait_in_crash_loop(
        self,
        generation: Generation,
        failed_ns: int,
        views: Mapping[int, CellView],
        wait: Callable[[Collection[int], float], set[int]],
    ) -> None:
        """Wait before a restart when several generations in a row died young without a sign of life.

        Args:
            generation: That has failed.
            failed_ns: ``CLOCK_MONOTONIC`` when that was seen.
            views: What every rank's cell said, by local rank.
            wait: How to wait for pidfds.
        """
        resources = self._resources
        seconds = self.crash_loop.backoff_seconds(
            failed_ns - generation.started_ns, has_reported=failure_incident.has_reported(views)
        )
        if seconds is None:
            return
        announce(announcements.backing_off(self.crash_loop.early_failures, seconds), event="backing_off")
        resources.events.write("backing_off", generation=generation.number, seconds=seconds)
        generation.stop(signal.SIGTERM, resources.config.failure_stop_timeout, wait)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            wait([], left)
            resources.signals.raise_pending()

    def doubt(self) -> str | None:
        """Return what speaks against progress although another start follows, for people."""
        return self._progress.doubt()

    def _ask(self, call: Callable[[], T]) -> T | None:
        """Return the result of a call to the rule, which waits for a disk only where it reads a file."""
        if not self._progress.reads_a_file:
            return call()
        return self._resources.on_disk("whether the job makes progress", call, None)
