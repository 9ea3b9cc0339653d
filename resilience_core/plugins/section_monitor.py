"""SectionMonitor: the events of a training run become the sections setup, step and checkpointing.

The only warm-up rule of the project is here: the first ``num_warmup_iterations`` training steps, resumed or not, and
the first that many of each evaluation open no ``step``; they fall out of section. ``setup`` and saves have no warm-up.

A save or an evaluation step inside a training step, in the same thread, suspends ``step``: the section is closed, and
opened again with a new deadline afterwards. Otherwise a healthy save would exceed the limit of the step. An evaluation
step inside a save is part of the save.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from threading import get_ident
from typing import cast

from resilience_core.errors import SectionError
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext, hookimpl
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.monitoring.error_capture import note_error
from resilience_core.plugins.monitor_session import MonitorSession
from resilience_core.plugins.save_section import SaveSection, ignore_if_done
from resilience_core.plugins.section_learning import SectionLearning
from resilience_core.plugins.section_names import CHECKPOINTING, SECTIONS, SETUP, STEP, check_names

__all__ = ["CHECKPOINTING", "SECTIONS", "SETUP", "STEP", "SectionMonitor"]


def _nothing(*_: object) -> None:
    """Stands for a client's call while there is none."""


class SectionMonitor(SectionLearning):
    """A bus plugin: opens and closes sections as events arrive, and learns their timeouts when asked.

    Where there is no rank monitor (plain torchrun, plain python) it says so once and does nothing.

    Args:
        client: The client to use; one of its own when None. One that is initialised already stays so at the
            end.
        state_path: A file that keeps learned timeouts from job to job. It may also be set as the attribute
            ``state_path`` at any time before ``setup``.
        calculate_timeouts: Learn timeouts from what is observed.
        required: Which sections a configuration that names any must name before training starts. Leave out a
            section that a run may never open (a loop need not save); it is refused where it is opened.
    """

    def __init__(
        self,
        client: RankMonitorClient | None = None,
        *,
        state_path: str | os.PathLike[str] | None = None,
        calculate_timeouts: bool = False,
        required: Collection[str] = SECTIONS,
    ) -> None:
        self._session = MonitorSession(client, state_path, calculate_timeouts)
        self._required = required
        self._start = self._end = cast("Callable[[str], None]", _nothing)
        self._note = self._note_evaluation = cast("Callable[[int], None]", _nothing)
        self._note_done: Callable[[], None] = _nothing
        self._steps_begun = 0
        self._save_section = SaveSection()
        self._saves = self._save_section.saves
        self._reset()

    def _reset(self) -> None:
        self._setup_is_open = False
        self._step_is_open = self._eval_is_open = False  # whether it holds the section ``step`` open
        self._step_is_suspended = self._eval_is_suspended = self._eval_is_running = False
        self._step_thread = 0  # in which the last training or evaluation step began
        self._save_section.forget()
        self._evals_begun = 0
        self._last_eval_index = 0
        # True while a training step needs nothing but its section: no setup to close, warm-up over, no
        # evaluation and no save since the last one. Keeps the hot path at two calls.
        self._is_steady = False

    @hookimpl
    def setup(self, context: RunContext) -> None:
        """Begin to be monitored, where there is a monitor, and open ``setup``."""
        self._finish()
        if not self._session.start(context):
            return
        client = self._session.client
        try:
            check_names(client, self._required, context.rank)
            client.start_section(SETUP)
        except SectionError:
            self._session.stop()
            raise
        self._start, self._end, self._note = client.start_section, client.end_section, client.note_iteration
        self._note_evaluation, self._note_done = client.note_evaluation, client.note_step_done
        self._setup_is_open = True

    @hookimpl
    def step_start(self, iteration: int) -> None:
        """Tell the iteration and open ``step``, except in warm-up steps."""
        if self._is_steady and not self._step_is_open:
            self._step_thread = get_ident()
            try:
                self._note(iteration)
            except (TypeError, ValueError) as error:
                self._session.note_no_iteration(error)
            try:
                self._start(STEP)
            except SectionError as error:
                ignore_if_done(error)
            self._step_is_open = True
        elif self._session.is_active:
            self._unsteady_step_start(iteration)

    def _unsteady_step_start(self, iteration: int) -> None:
        self._close_setup()
        self._close_step()  # a framework that skips a batch may leave out its end
        self._save_section.abandon(self._session.client)  # its end may not have been heard: a signal handler raised
        self._update_save_section()
        self._evals_begun = 0
        self._step_thread = get_ident()
        self._session.tell(self._note, iteration)
        warmup = self._session.history.warmup_iterations
        self._session.begin_steps(iteration)
        if self._steps_begun >= warmup:
            self._is_steady = True
            self._open_step()
            self._step_is_open = True
        self._steps_begun += 1

    @hookimpl
    def step_end(self) -> None:
        """Close ``step``."""
        if self._step_is_open:
            try:
                self._end(STEP)
            except SectionError:
                pass  # the training code called end_all_sections(), as it may
            self._step_is_open = False
        else:
            self._step_is_suspended = False
            self._end_eval_step()  # it cannot outlast the step that it is part of
        self._session.history.steps += 1
        self._note_done()

    @hookimpl
    def eval_step_start(self, iteration: int, eval_index: int) -> None:
        """Open ``step`` for an evaluation step, except during warm-up, and suspend that of a training step."""
        if not self._session.is_active:
            return
        self._close_setup()
        self._session.tell(self._note_evaluation, iteration)
        if self._saves.in_this_thread():  # part of the save
            return
        is_inside = self._step_is_open or self._step_is_suspended
        if is_inside and get_ident() != self._step_thread:  # the limit of the step still holds
            return
        self._is_steady = False
        self._step_thread = get_ident()
        if eval_index < self._last_eval_index:
            self._evals_begun = 0
        self._last_eval_index = eval_index
        self._end_eval_step()
        self._suspend_step()
        self._eval_is_running = True
        if self._evals_begun >= self._session.history.warmup_iterations:
            self._open_step()
            self._eval_is_open = True
        self._evals_begun += 1

    @hookimpl
    def eval_step_end(self) -> None:
        """Close ``step``, and resume that of a training step."""
        if (self._step_is_open or self._step_is_suspended) and get_ident() != self._step_thread:
            return
        self._end_eval_step()
        self._resume_step()

    @hookimpl
    def checkpoint_start(self) -> None:
        """Open ``checkpointing`` and suspend this thread's ``step``; a save inside another one is part of it."""
        if not self._session.is_active:
            return
        self._is_steady = False  # first: if a signal handler raises, the next step resets everything
        if get_ident() == self._step_thread:  # a save in another thread leaves the step alone
            self._suspend_step()
        self._session.save_begins(is_outermost=self._saves.begin())
        self._update_save_section()

    @hookimpl
    def checkpoint_end(self, iteration: int, kind: CheckpointKind, error: BaseException | None) -> None:
        """Close ``checkpointing`` when no thread is saving any more, and learn timeouts when asked."""
        self._is_steady = False
        thread = self._saves.thread_of_end()
        if thread is None:
            if self._saves.was_abandoned():
                self._session.saved(iteration, kind, error)
            self._resume_step()
            return
        client, history, learner = self._session.client, self._session.history, self._session.learner
        will_learn = False
        try:
            if self._session.saved(iteration, kind, error, thread) and self._saves.is_outermost(thread):
                will_learn = learner.all_will_after_save(client, history, f"save {iteration}")
        finally:  # a signal handler may raise while this rank waits for others
            self._save_section.end(client, thread, error)
            self._update_save_section()
            if will_learn:
                learner.after_save(client, history)
            self._resume_step()

    @hookimpl
    def checkpoint_loaded(self, iteration: int, source: LoadSource) -> None:
        """Tell from which iteration training resumes."""
        self._session.loaded(iteration, source)

    @hookimpl
    def training_error(self, error: BaseException) -> None:
        """Close what is open and stay connected: a framework may save while it handles the exception."""
        note_error(error)  # while the section in which it was raised is still open
        self._session.failed(error)
        with self._session.client.leaving_sections():
            self._close_all()

    @hookimpl
    def teardown(self, reason: str) -> None:
        """Close what is open, learn timeouts at a clean end, and shut monitoring down."""
        if not self._session.is_active:
            return
        is_clean = reason == "completed" and not self._saves.depths  # a signal comes at another step on each rank
        try:
            self._close_all()
            if is_clean:
                self._session.learner.end_of_sections(self._session.client, self._session.history)
            else:
                self._session.learner.refuse()
        finally:
            self._finish()

    def _close_setup(self) -> None:
        if self._setup_is_open:
            self._close(SETUP)
            self._setup_is_open = False
            self._session.history.closed_setup()

    def _close_step(self) -> None:
        if self._step_is_open or self._eval_is_open:
            self._close(STEP)
            self._step_is_open = self._eval_is_open = False
        self._step_is_suspended = self._eval_is_suspended = self._eval_is_running = False

    def _open_step(self) -> None:
        try:
            self._start(STEP)
        except SectionError as error:
            ignore_if_done(error)

    def _end_eval_step(self) -> None:
        if self._eval_is_open:
            self._close(STEP)
        self._eval_is_open = self._eval_is_suspended = self._eval_is_running = False

    def _suspend_step(self) -> None:
        """Close ``step``, if it is open, until :meth:`_resume_step`."""
        if self._step_is_open or self._eval_is_open:
            self._is_steady = False  # first, as in checkpoint_start
            self._step_is_suspended |= self._step_is_open
            self._eval_is_suspended = self._eval_is_open
            self._close(STEP)
            self._step_is_open = self._eval_is_open = False

    def _resume_step(self) -> None:
        """Open ``step`` again for the innermost suspended step of this thread, if nothing inside it is running."""
        is_due = self._eval_is_suspended or (self._step_is_suspended and not self._eval_is_running)
        if not is_due or get_ident() != self._step_thread or self._saves.in_this_thread():
            return
        self._open_step()
        if self._eval_is_suspended:
            self._eval_is_open, self._eval_is_suspended = True, False
        else:
            self._step_is_open, self._step_is_suspended = True, False

    def _update_save_section(self) -> None:
        if self._session.is_active:
            self._save_section.update(self._session.client)

    def _close_all(self) -> None:
        """Close our own sections; those that the training code opened are its own."""
        self._close_step()
        self._saves.abandon_all()
        self._update_save_section()
        self._close_setup()

    def _close(self, name: str) -> None:
        with contextlib.suppress(SectionError):  # the training code called end_all_sections(), as it may
            self._end(name)

    def _finish(self) -> None:
        self._session.stop()
        self._start = self._end = self._note = self._note_evaluation = self._note_done = _nothing
        self._reset()
