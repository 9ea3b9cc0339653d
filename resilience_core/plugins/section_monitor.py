"""SectionMonitor: the events of a training run become the sections setup, step and checkpointing.

The only warm-up rule of the project is here: the first ``num_warmup_iterations`` training steps, resumed or
not, and the first that many evaluation steps of each evaluation open no ``step`` section; they fall out of
section. ``setup`` and saves have no warm-up.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable

from resilience_core.errors import SectionError, UnconfiguredSectionError
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext, hookimpl
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.monitoring.error_capture import note_error
from resilience_core.plugins.monitor_session import MonitorPlugin, MonitorSession
from resilience_core.suggestions import suggestion

__all__ = ["CHECKPOINTING", "SECTIONS", "SETUP", "STEP", "SectionMonitor"]

SETUP, STEP, CHECKPOINTING = SECTIONS = ("setup", "step", "checkpointing")

logger = logging.getLogger(__name__)


def _nothing(_: object) -> None:
    """Stands for a client's call while there is none."""


class SectionMonitor(MonitorPlugin):
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
        self._start: Callable[[str], None] = _nothing
        self._end: Callable[[str], None] = _nothing
        self._note: Callable[[int], None] = _nothing
        self._note_evaluation: Callable[[int], None] = _nothing
        self._steps_begun = 0
        self._reset()

    def _reset(self) -> None:
        self._setup_is_open = False
        self._step_is_open = False
        self._eval_is_open = False
        self._saves_open = 0
        self._evals_begun = 0
        self._last_eval_index = 0
        # True while a training step needs nothing but its section: no setup to close, warm-up over, no
        # evaluation since the last one. Keeps the hot path at two calls.
        self._is_steady = False

    def load_timeouts(self) -> None:
        """Read ``state_path`` once more; ``setup`` does so by itself."""
        if self._session.is_active:
            self._session.learner.load(self._session.client)

    def learn(self, sections: Iterable[str], *, out_of_section: bool = False) -> None:
        """Learn these timeouts now and keep them, whatever the rules say. A collective, on all ranks or on none."""
        if self._session.is_active:
            self._session.learner.learn_sections(
                self._session.client, self._session.history, list(sections), out_of_section=out_of_section
            )

    def learn_what_may_be(self, *, at_the_end: bool = False) -> None:
        """Learn what the rules allow now; saves and ``teardown`` do so by themselves. A collective."""
        if not self._session.is_active:
            return
        learner = self._session.learner
        (learner.end_of_sections if at_the_end else learner.after_save)(self._session.client, self._session.history)

    @hookimpl
    def setup(self, context: RunContext) -> None:
        """Begin to be monitored, where there is a monitor, and open ``setup``."""
        self._finish()
        if not self._session.start(context):
            return
        client = self._session.client
        try:
            _check_names(client, self._required, context.rank)
            client.start_section(SETUP)
        except SectionError:
            self._session.stop()
            raise
        self._start, self._end, self._note = client.start_section, client.end_section, client.note_iteration
        self._note_evaluation = client.note_evaluation
        self._setup_is_open = True

    @hookimpl
    def step_start(self, iteration: int) -> None:
        """Tell the iteration and open ``step``, except in warm-up steps."""
        if self._is_steady and not self._step_is_open:
            self._note(iteration)
            self._step_is_open = True
            self._start(STEP)
        elif self._session.is_active:
            self._unsteady_step_start(iteration)

    def _unsteady_step_start(self, iteration: int) -> None:
        self._close_setup()
        self._close_step()  # a framework that skips a batch may leave out its end
        self._evals_begun = 0
        self._note(iteration)
        warmup = self._session.history.warmup_iterations
        if self._steps_begun >= warmup:
            self._is_steady = True
            self._step_is_open = True
            self._start(STEP)
        self._steps_begun += 1

    @hookimpl
    def step_end(self) -> None:
        """Close ``step``."""
        if self._step_is_open:
            self._step_is_open = False
            try:
                self._end(STEP)
            except SectionError:
                pass  # the training code called end_all_sections(), as it may
        self._session.history.steps += 1

    @hookimpl
    def eval_step_start(self, iteration: int, eval_index: int) -> None:
        """Open ``step`` for a step of an evaluation, except in its warm-up steps."""
        if not self._session.is_active:
            return
        self._close_setup()
        self._is_steady = False
        self._note_evaluation(iteration)
        if eval_index < self._last_eval_index:
            self._evals_begun = 0
        self._last_eval_index = eval_index
        self.eval_step_end()
        # An evaluation inside a training step is covered by that step.
        if self._evals_begun >= self._session.history.warmup_iterations and not self._step_is_open:
            self._eval_is_open = True
            self._start(STEP)
        self._evals_begun += 1

    @hookimpl
    def eval_step_end(self) -> None:
        """Close ``step``."""
        if self._eval_is_open:
            self._eval_is_open = False
            self._close(STEP)

    @hookimpl
    def checkpoint_start(self) -> None:
        """Open ``checkpointing``; a save inside another one belongs to it."""
        if not self._session.is_active:
            return
        if not self._saves_open:
            self._start(CHECKPOINTING)
        self._saves_open += 1

    @hookimpl
    def checkpoint_end(self, iteration: int, kind: CheckpointKind, error: BaseException | None) -> None:
        """Close ``checkpointing`` with the outermost save, and learn timeouts when asked."""
        if self._saves_open == 0:
            return
        self._saves_open -= 1
        if self._saves_open == 0:
            self._close(CHECKPOINTING)
        if self._session.saved(iteration, kind, error) and self._saves_open == 0:
            self._session.learner.after_save(self._session.client, self._session.history)

    @hookimpl
    def checkpoint_loaded(self, iteration: int, source: LoadSource) -> None:
        """Tell from which iteration training resumes."""
        self._session.loaded(iteration, source)

    @hookimpl
    def training_error(self, error: BaseException) -> None:
        """Close what is open and stay connected: a framework may save while it handles the exception."""
        note_error(error)  # while the section in which it was raised is still open
        self._session.failed(error)
        self._close_all()

    @hookimpl
    def teardown(self, reason: str) -> None:
        """Close what is open, learn timeouts at a clean end, and shut monitoring down."""
        if not self._session.is_active:
            return
        # A signal is no clean end: the ranks need not have heard it at the same step.
        is_clean = reason == "completed" and not self._saves_open
        try:
            self._close_all()
            if is_clean:
                self._session.learner.end_of_sections(self._session.client, self._session.history)
        finally:
            self._finish()

    def _close_setup(self) -> None:
        if self._setup_is_open:
            self._setup_is_open = False
            self._close(SETUP)
            self._session.history.closed_setup()

    def _close_step(self) -> None:
        if self._step_is_open or self._eval_is_open:
            self._step_is_open = self._eval_is_open = False
            self._close(STEP)

    def _close_all(self) -> None:
        """Close our own sections; those that the training code opened are its own."""
        self._close_step()
        if self._saves_open:
            self._saves_open = 0
            self._close(CHECKPOINTING)
        self._close_setup()

    def _close(self, name: str) -> None:
        try:
            self._end(name)
        except SectionError:
            pass  # the training code called end_all_sections(), as it may

    def _finish(self) -> None:
        self._session.stop()
        self._start = self._end = self._note = self._note_evaluation = _nothing
        self._reset()


def _check_names(client: RankMonitorClient, required: Collection[str], rank: int) -> None:
    """Refuse, before training starts, a configuration that names sections but not ours."""
    if not client.cfg.names_sections:
        return
    configured = client.cfg.rank_section_timeouts
    for name in (name for name in SECTIONS if name not in configured):
        hint = suggestion(name, [other for other in configured if other not in SECTIONS])
        fix = f"Add '{name}' with its seconds, or null for no limit; configured are: {', '.join(configured)}"
        if name in required or hint:
            raise UnconfiguredSectionError(
                f"section '{name}' is used but not in rank_section_timeouts{hint or '.'} {fix}"
            )
        if rank == 0:
            logger.warning(
                "section '%s' is not in rank_section_timeouts: training is refused where it is opened first. If this "
                "script opens it: %s",
                name,
                fix,
            )
    unused = [name for name in configured if name not in SECTIONS]
    if unused:
        logger.info("configured sections that only the training code itself can open: %s", ", ".join(unused))
