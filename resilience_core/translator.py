"""Translator: the part that all adapters of frameworks have in common.

Each framework has callbacks of its own. The contract of the events asks for starts and ends in pairs, one ``setup`` and
one ``teardown`` around a run, saves that nest, and an iteration that counts on. The adapter tells what happened, and
the translator keeps the contract. It decides nothing about limits.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from resilience_core._adapter_support import (
    STATE_FILE_NAME,
    Cleanups,
    RunPlugins,
    reason_of,
    simulated_faults,
    state_path_in,
)
from resilience_core.event_bus import EventBus
from resilience_core.event_bus import bus as default_bus
from resilience_core.faults import Fault
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.monitoring.error_capture import note_error

__all__ = ["STATE_FILE_NAME", "Translator", "state_path_in"]


class Translator:
    """The events of one trainer, run after run.

    Every method may be called at any time: outside of a run nothing is fired, an end without a start is
    passed over, and a start whose predecessor had no end gives it one.

    Args:
        framework: The word for ``RunContext.framework``.
        on: The bus; the process's default one when None.
        client: The rank's client; one of its own when None.
    """

    def __init__(self, framework: str, on: EventBus | None = None, *, client: RankMonitorClient | None = None) -> None:
        self.framework = framework
        self.bus = default_bus() if on is None else on
        self.client = RankMonitorClient() if client is None else client
        self.is_running = False
        self.completed_steps = 0
        self._reason = "completed"
        self._has_raised = False
        self._plugins = RunPlugins(self.bus)
        self._cleanups = Cleanups()
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
        self._step: int | None = None
        self._eval: tuple[int, int] | None = None
        self._evals_begun = 0
        self._saves_open = 0
        self._save: tuple[int, CheckpointKind] = (0, "save")

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
            self.completed_steps = iteration
            self.bus.checkpoint_loaded(iteration=iteration, source=source)

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
        self._step = self._eval = None
        self.bus.training_error(error=error, iteration=self.completed_steps)

    def stopped(self, reason: str) -> None:
        """Say that the loop is about to end by itself, but not because training is complete."""
        if self._reason == "completed":
            self._reason = reason

    @property
    def has_failed(self) -> bool:
        """Whether this run is ending otherwise than by itself."""
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
        if self._step is not None:
            self.step_end()
        if self._eval is not None:
            self.eval_step_end()
        self._evals_begun = 0
        self._step = self.completed_steps = iteration
        self.bus.step_start(iteration=iteration)

    def step_end(self, error: BaseException | None = None, *, is_complete: bool = True) -> None:
        """End the training step that began last.

        Args:
            error: The exception that leaves it, so that it does not count.
            is_complete: False where it does not count for another reason.
        """
        if error is not None:
            note_error(error)  # while the section is still open
            is_complete = False
        iteration = self._step
        if iteration is None:
            return
        self._step = None
        if is_complete:
            self.completed_steps = iteration + 1
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
        iteration = self.completed_steps if iteration is None else iteration
        index = self._evals_begun if eval_index is None else eval_index
        self._eval = (iteration, index)
        self._evals_begun = index + 1
        self.bus.eval_step_start(iteration=iteration, eval_index=index)

    def eval_step_end(self, error: BaseException | None = None) -> None:
        """End the evaluation step that began last; with the exception that leaves it, if one does."""
        if error is not None:
            note_error(error)
        if self._eval is None:
            return
        iteration, index = self._eval
        self._eval = None
        self.bus.eval_step_end(iteration=iteration, eval_index=index)

    def end_open_steps(self) -> None:
        """End the steps that are open; a framework that skips the rest of a step may not have said so."""
        if not self._has_raised:
            self.step_end()
            self.eval_step_end()

    def checkpoint_start(self, kind: CheckpointKind = "save", iteration: int | None = None) -> None:
        """Begin saving; inside another save this is part of it.

        Args:
            kind: What is done.
            iteration: Training steps completed so far; None: as counted here.
        """
        if not self.is_running:
            return
        self._saves_open += 1
        if self._saves_open == 1:
            iteration = self.completed_steps if iteration is None else iteration
            self._save = (iteration, kind)
            self.bus.checkpoint_start(iteration=iteration, kind=kind)

    def checkpoint_end(self, kind: CheckpointKind | None = None, error: BaseException | None = None) -> None:
        """End saving.

        Args:
            kind: What it was, where the framework says so only now; as it began when None.
            error: What went wrong, or None.
        """
        if error is not None:
            note_error(error)
        if not self._saves_open:
            return
        self._saves_open -= 1
        if not self._saves_open:
            iteration, began_as = self._save
            self.bus.checkpoint_end(iteration=iteration, kind=kind or began_as, error=error)

    @contextlib.contextmanager
    def saving(self, kind: CheckpointKind = "save") -> Iterator[None]:
        """Make a ``with`` block around everything that saving does. One inside another is part of it."""
        counts = self.is_running
        self.checkpoint_start(kind)
        try:
            yield
        except BaseException as error:
            if counts:
                self.checkpoint_end(error=error)
            raise
        if counts:
            self.checkpoint_end()

    def wrap_saving(self, owner: object, method: str, kind: CheckpointKind = "save") -> None:
        """Put :meth:`saving` around a method of one object until the run ends."""

        def around(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            with self.saving(kind):
                return original(*arguments, **named)

        self.wrap(owner, method, around)

    def wrap(self, owner: object, method: str, around: Callable[..., Any]) -> None:
        """Replace a method of one object, where it has one of that name, until the run ends.

        Args:
            owner: The object; its class is left alone.
            method: The method's name.
            around: Called with the original and the arguments.
        """
        self._cleanups.wrap(owner, method, around, lambda: self.is_running)

    def add_cleanup(self, undo: Callable[[], None]) -> None:
        """Call this when the run ends, however it ends; what was added last is called first."""
        self._cleanups.add(undo)


_lock = threading.Lock()
_translators: weakref.WeakKeyDictionary[Any, Translator] = weakref.WeakKeyDictionary()
_running: weakref.WeakKeyDictionary[EventBus, Translator] = weakref.WeakKeyDictionary()  # who began last on each bus
