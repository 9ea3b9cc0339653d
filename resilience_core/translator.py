"""Translator: the part that all adapters of frameworks have in common.

Each framework has callbacks of its own. The contract of the events asks for starts and ends in pairs, one ``setup`` and
one ``teardown`` around a run, saves that nest, and an iteration that counts on. The adapter tells what happened, and
the translator keeps the contract. It decides nothing about limits.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from sys import exc_info
from threading import get_ident
from typing import Any

from resilience_core._adapter_support import STATE_FILE_NAME, RunPlugins, reason_of, simulated_faults, state_path_in
from resilience_core._iterations import whole_number
from resilience_core._translated_saves import OpenSave, Saving
from resilience_core.event_bus import EventBus
from resilience_core.event_bus import bus as default_bus
from resilience_core.faults import Fault
from resilience_core.hookspecs import LoadSource, RunContext
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.monitoring.error_capture import note_error

__all__ = ["STATE_FILE_NAME", "OpenSave", "Translator", "state_path_in"]


class Translator(Saving):
    """The events of one trainer, run after run.

    Every method may be called at any time: outside of a run nothing is fired, an end without a start is
    passed over, and a start whose predecessor had no end gives it one.

    Args:
        framework: The word for ``RunContext.framework``.
        on: The bus; the process's default one when None.
        client: The rank's client; one of its own when None.
    """

    def __init__(self, framework: str, on: EventBus | None = None, *, client: RankMonitorClient | None = None) -> None:
        super().__init__()
        self.framework = framework
        self.bus = default_bus() if on is None else on
        self.client = RankMonitorClient() if client is None else client
        self.completed_steps = 0
        self._reason = "completed"
        self._has_raised = False
        self._plugins = RunPlugins(self.bus)
        self._forget_spans()

    @classmethod
    def of(cls, trainer: object, framework: str, on: EventBus | None = None) -> Translator:
        """Return the one translator of a trainer, made at the first call.

        Args:
            trainer: Whatever object stands for one training; it must be hashable and take weak references.
            framework: As in the constructor, this and the bus; heeded at the first call.
            on: As there.
        """
        with _lock:
            found = _translators.get(trainer)
            if found is None:
                found = _translators[trainer] = cls(framework, on)
            return found

    def _forget_spans(self) -> None:
        self.open_step: int | None = None  # its iteration
        self.open_eval: tuple[int, int] | None = None
        self._evals_begun = 0
        self._handled = id(None)  # the exception that was being handled when the step that is open began
        self._step_thread = 0  # where it began
        self._forget_saves()

    def begin(self, context: RunContext, plugins: Iterable[object] = (), faults: Iterable[Fault] = ()) -> None:
        """Begin a run: subscribe its plugins and fire ``setup``. A run that was never ended ends here.

        Args:
            context: Who this rank is.
            plugins: Listeners for the length of this run.
            faults: Simulated ones, beside those that ``FT_SIMULATED_FAULTS`` asks for.

        Raises:
            PluginError: The bus has a monitor of the same kind already.
            SectionError: The configuration names sections, but not those that the events become.
            ConfigError: ``FT_SIMULATED_FAULTS`` cannot be used.
        """
        if self.is_running:
            self.end("interrupted")
        simulated = [*faults, *simulated_faults(self.bus)]
        if (before := _running.get(self.bus)) is not None and before.has_failed:
            before.end()  # its framework was kept from saying so, most likely by an exception in its own handling
        self.completed_steps = 0
        self._reason = "completed"
        self._has_raised = False
        self._forget_spans()
        self._plugins.begin(context, plugins, simulated)
        self.is_running = True
        _running[self.bus] = self
        self.bus.setup(context=context)

    def simulate(self, faults: Iterable[Fault]) -> None:
        """Add simulated faults to a run that has begun; :meth:`begin` takes those that are known before."""
        if self.is_running:
            self._plugins.simulate(faults)

    def loaded(self, iteration: int, source: LoadSource = "persistent") -> None:
        """Say that a checkpoint was loaded; training resumes from ``iteration``."""
        if self.is_running:
            self.completed_steps = whole_number("iteration of a loaded checkpoint", iteration, self.completed_steps)
            self.bus.checkpoint_loaded(iteration=self.completed_steps, source=source)

    def failed(self, error: BaseException, reason: str | None = None) -> None:
        """Say that an exception is leaving the loop; the run goes on until :meth:`end`, saves included.

        Args:
            error: The exception.
            reason: Why the run will have ended; as the exception tells when None.
        """
        if not self.is_running or self._has_raised:
            return
        self._reason = reason or reason_of(error)
        self._has_raised = True
        self.open_step = self.open_eval = None
        self.bus.training_error(error=error, iteration=self.completed_steps)

    def stopped(self, reason: str) -> None:
        """Say that the loop is about to end by itself, but not because training is complete."""
        if self._reason == "completed":
            self._reason = reason

    @property
    def has_failed(self) -> bool:
        """Return whether this run is ending otherwise than by itself."""
        return self._reason != "completed"

    def end(self, reason: str | None = None) -> None:
        """End the run: fire ``teardown``, unsubscribe its plugins, undo what was wrapped. Twice is no error.

        Args:
            reason: The reason of ``teardown``; by default what :meth:`failed` and :meth:`stopped` said, else
                ``completed``.
        """
        if not self.is_running:
            self._cleanups.run()
            return
        try:
            self.end_open_steps()
            self.bus.teardown(reason=reason or self._reason)
        finally:
            self.is_running = False
            self._forget_spans()
            self._plugins.remove()
            self._cleanups.run()

    def step_start(self, iteration: int) -> None:
        """Begin a training step."""
        if not self.is_running:
            return
        if self.open_step is not None:
            self.step_end()
        if self.open_eval is not None:
            self.eval_step_end()
        if self._saves.depths:
            self._end_unfinished_save(iteration)
        self._evals_begun = 0
        if type(iteration) is not int:
            iteration = whole_number("iteration of a step", iteration, self.completed_steps)
        self.open_step = self.completed_steps = iteration
        self._handled = id(exc_info()[1])
        self._step_thread = get_ident()
        try:
            self.bus.step_start(iteration=iteration)
        except BaseException as error:  # the step does not begin: whoever catches it and goes on is not in one
            self.step_end(error)
            raise

    def step_end(self, error: BaseException | None = None, *, is_complete: bool = True) -> None:
        """End the training step that began last.

        Args:
            error: The exception that leaves it, so that it does not count.
            is_complete: False where it does not count for another reason.
        """
        if error is not None:
            note_error(error)  # while the section is still open
            is_complete = False
        iteration = self.open_step
        if iteration is None:
            return
        self.open_step = None
        if is_complete:
            self.completed_steps = iteration + 1
        if error is None:
            self.bus.step_end(iteration=iteration)
        else:
            with self.client.leaving_sections():
                self.bus.step_end(iteration=iteration)

    def evaluation_start(self) -> None:
        """Begin a new evaluation: its steps are counted from zero."""
        self.eval_step_end()
        self._evals_begun = 0

    def eval_step_start(self, iteration: int | None = None, eval_index: int | None = None) -> None:
        """Begin an evaluation step.

        Args:
            iteration: Training steps completed so far; None: as counted here.
            eval_index: Steps since this evaluation began; None: as counted here.
        """
        if not self.is_running:
            return
        self.eval_step_end()
        iteration = whole_number("iteration of an evaluation step", iteration, self.completed_steps)
        index = whole_number("eval_index", eval_index, self._evals_begun)
        self.open_eval = (iteration, index)
        self._evals_begun = index + 1
        self._handled = id(exc_info()[1])
        self._step_thread = get_ident()
        try:
            self.bus.eval_step_start(iteration=iteration, eval_index=index)
        except BaseException as error:
            self.eval_step_end(error)
            raise

    def eval_step_end(self, error: BaseException | None = None) -> None:
        """End the evaluation step that began last; with the exception that leaves it, if one does."""
        if error is not None:
            note_error(error)
        if self.open_eval is None:
            return
        iteration, index = self.open_eval
        self.open_eval = None
        self.bus.eval_step_end(iteration=iteration, eval_index=index)

    def end_open_steps(self) -> None:
        """End the steps that are open; a framework that skips the rest of a step may not have said so."""
        if not self._has_raised:
            self.step_end()
            self.eval_step_end()

    def _end_steps_that_were_left(self) -> None:
        """End steps that an exception has left, without a word of the framework, where it is being handled now.

        Of a framework that saves while it handles an exception nothing else may tell that the step is over, whose limit
        would go on and condemn the save.
        """
        error = exc_info()[1]
        if error is not None and id(error) != self._handled and get_ident() == self._step_thread:
            self.step_end(error)
            self.eval_step_end(error)


_lock = threading.Lock()
_translators: weakref.WeakKeyDictionary[Any, Translator] = weakref.WeakKeyDictionary()
_running: weakref.WeakKeyDictionary[EventBus, Translator] = weakref.WeakKeyDictionary()  # who began last on each bus
