"""HeartbeatMonitor: the ends of training and evaluation steps become heartbeats.

The twin of :class:`~resilience_core.plugins.section_monitor.SectionMonitor`. No heartbeat is sent while a checkpoint is
loaded or saved, so the heartbeat timeout must leave room for the longest save.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from resilience_core._saves_by_thread import SavesByThread
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext, hookimpl
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.monitoring.error_capture import note_error
from resilience_core.plugins.monitor_session import MonitorPlugin, MonitorSession

__all__ = ["HeartbeatMonitor"]


def _nothing(*_: object) -> None:
    """Stands for a client's call while there is none."""


class HeartbeatMonitor(MonitorPlugin):
    """A bus plugin: one heartbeat at the end of every step, and timeouts learned from them when asked.

    Where there is no rank monitor (plain torchrun, plain python) it says so once and does nothing.

    Args:
        client: The client to use; one of its own when None. One that is initialised already stays so at the
            end.
        state_path: A file that keeps learned timeouts from job to job. It may also be set as the attribute
            ``state_path`` at any time before ``setup``.
        calculate_timeouts: Learn timeouts at the clean end of a run that loaded and saved a checkpoint.
    """

    def __init__(
        self,
        client: RankMonitorClient | None = None,
        *,
        state_path: str | os.PathLike[str] | None = None,
        calculate_timeouts: bool = False,
    ) -> None:
        self._session = MonitorSession(client, state_path, calculate_timeouts)
        self._beat: Callable[[], None] = _nothing
        self._note: Callable[[int], None] = _nothing
        self._note_done: Callable[[], None] = _nothing
        self._has_begun_steps = False
        self._saves = SavesByThread()

    @hookimpl
    def setup(self, context: RunContext) -> None:
        """Begin to be monitored, where there is a monitor."""
        self._finish()
        if self._session.start(context):
            self._beat, self._note = self._session.client.send_heartbeat, self._session.client.note_iteration
            self._note_done = self._session.client.note_step_done

    @hookimpl
    def step_start(self, iteration: int) -> None:
        """Tell the iteration. A save of this thread that is still open is over: its end was not heard."""
        if self._saves.depths:
            self._saves.abandon()
        try:
            self._note(iteration)
        except (TypeError, ValueError) as error:
            self._session.note_no_iteration(error)
        if not self._has_begun_steps:
            self._has_begun_steps = True
            self._session.begin_steps(iteration)

    @hookimpl
    def step_end(self) -> None:
        """Send a heartbeat, unless this thread saves a checkpoint."""
        self._session.history.steps += 1
        self._note_done()
        if not self._saves.depths or not self._saves.in_this_thread():
            self._beat()

    @hookimpl
    def eval_step_end(self) -> None:
        """Send a heartbeat, unless this thread saves a checkpoint."""
        if not self._saves.in_this_thread():
            self._beat()

    @hookimpl
    def checkpoint_start(self) -> None:
        """Hold this thread's heartbeats back until the save has ended."""
        self._session.save_begins(is_outermost=self._saves.begin())

    @hookimpl
    def checkpoint_end(self, iteration: int, kind: CheckpointKind, error: BaseException | None) -> None:
        """Tell that a checkpoint is complete."""
        thread = self._saves.thread_of_end()
        if thread is not None:
            self._saves.end(thread)
        if thread is not None or self._saves.was_abandoned():
            self._session.saved(iteration, kind, error, thread)

    @hookimpl
    def checkpoint_loaded(self, iteration: int, source: LoadSource) -> None:
        """Tell from which iteration training resumes."""
        self._session.loaded(iteration, source)

    @hookimpl
    def training_error(self, error: BaseException) -> None:
        """Keep the exception for the incident; nothing is learned from this run."""
        note_error(error)
        self._session.failed(error)
        self._saves.abandon_all()

    @hookimpl
    def teardown(self, reason: str) -> None:
        """Learn timeouts at a clean end, and shut monitoring down."""
        if not self._session.is_active:
            return
        # A signal is no clean end: the ranks need not have heard it at the same step.
        try:
            if reason == "completed" and not self._saves.depths:
                self._session.learner.end_of_heartbeats(self._session.client, self._session.history)
            else:
                self._session.learner.refuse()
        finally:
            self._finish()

    def _finish(self) -> None:
        self._session.stop()
        self._beat = self._note = self._note_done = _nothing
        self._has_begun_steps = False
        self._saves.abandon_all()
