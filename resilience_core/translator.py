"""Translator: what every adapter of a framework would otherwise write again.

A framework calls back in its own words and at its own moments; the contract of the events asks for pairs, for one
``setup`` and one ``teardown`` around a run, for saves that nest, and for an iteration that counts on. The adapter
says what happened, the translator keeps the contract. It decides nothing about sections or timeouts.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from resilience_core.environment import FAULTS_VARIABLE
from resilience_core.errors import ConfigError, PluginError, StopTraining
from resilience_core.event_bus import EventBus
from resilience_core.event_bus import bus as default_bus
from resilience_core.faults import Fault, FaultInjector, parse_faults
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext
from resilience_core.monitoring.client import RankMonitorClient

__all__ = ["STATE_FILE_NAME", "Translator", "state_path_in"]

STATE_FILE_NAME = "ft_state.json"
"""Learned timeouts are kept under this name in whatever folder an adapter is given."""

logger = logging.getLogger(__name__)


class Translator:
    """The events of one trainer, run after run.

    Every method may be called at any time: outside of a run nothing is fired, an end without a start is passed
    over, and a start whose predecessor had no end gives it one.

    Args:
        framework: The word for ``RunContext.framework``.
        on: The bus; the process's default one when None.
    """

    def __init__(self, framework: str, on: EventBus | None = None) -> None:
        self.framework = framework
        self.bus = default_bus() if on is None else on
        self.client = RankMonitorClient()
        self.is_running = False
        self.completed_steps = 0
        self._reason = "completed"
        self._has_raised = False
        self._plugins: list[object] = []
        self._undo: list[Callable[[], None]] = []
        self._forget_spans()

    @classmethod
    def of(cls, trainer: object, framework: str, on: EventBus | None = None) -> Translator:
        """The one translator of a trainer, made at the first call.

        Args:
            trainer: Whatever object stands for one training; it must be hashable and take weak references.
            framework: As in the constructor.
            on: As in the constructor; heeded at the first call.
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

    # ---- one run of the loop ----------------------------------------------------------------------------

    def begin(self, context: RunContext, plugins: Iterable[object] = (), faults: Iterable[Fault] = ()) -> None:
        """A run begins: subscribe its plugins and fire ``setup``. A run that was never ended ends here.

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
        simulated = list(faults)
        # Whoever has installed the environment's faults already has them strike once, not twice.
        if not any(isinstance(plugin, FaultInjector) for plugin in self.bus.plugins()):
            simulated += parse_faults(os.environ.get(FAULTS_VARIABLE, ""))
        before = _running.get(self.bus)
        if before is not None and before.has_failed:
            before.end()  # its framework was kept from saying so, most likely by an exception in its own handling
        self.completed_steps = 0
        self._reason = "completed"
        self._has_raised = False
        self._forget_spans()
        try:
            for plugin in plugins:
                self._add(plugin)
            if simulated:
                self._add(FaultInjector(*simulated))
        except BaseException:
            self._remove_plugins()
            raise
        self.is_running = True
        _running[self.bus] = self
        self.bus.setup(context=context)

    def _add(self, plugin: object) -> None:
        self._refuse_twice(plugin)
        self.bus.register(plugin)
        self._plugins.append(plugin)

    def _refuse_twice(self, plugin: object) -> None:
        for other in self.bus.plugins():
            if hasattr(plugin, "client") and type(other) is type(plugin):
                raise PluginError(
                    f"the bus has a {type(plugin).__name__} already, and a rank has one monitor: use one adapter, and "
                    "each of its callbacks once"
                )

    def loaded(self, iteration: int, source: LoadSource = "persistent") -> None:
        """A checkpoint was loaded; training resumes from ``iteration``."""
        if self.is_running:
            self.completed_steps = iteration
            self.bus.checkpoint_loaded(iteration=iteration, source=source)

    def failed(self, error: BaseException, reason: str | None = None) -> None:
        """An exception is leaving the loop; the run goes on until :meth:`end`, saves included.

        Args:
            error: The exception.
            reason: Why the run will have ended; ``exception`` when None, or ``signal`` for an interrupt from the
                keyboard and ``stopped`` where a plugin asked for it.
        """
        if not self.is_running or self._has_raised:
            return
        self._reason = reason or _reason(error)
        self._has_raised = True
        self._step = self._eval = None
        self.bus.training_error(error=error, iteration=self.completed_steps)

    def stopped(self, reason: str) -> None:
        """The loop is about to end by itself, but not because training is complete."""
        if self._reason == "completed":
            self._reason = reason

    @property
    def has_failed(self) -> bool:
        """Whether this run is ending otherwise than by itself."""
        return self._reason != "completed"

    def end(self, reason: str | None = None) -> None:
        """The run is over: fire ``teardown``, unsubscribe its plugins, undo what was wrapped. Twice is no error.

        Args:
            reason: The reason of ``teardown``; by default what :meth:`failed` and :meth:`stopped` said, else
                ``completed``.
        """
        if not self.is_running:
            self._restore()
            return
        try:
            self.between_steps()
            self.bus.teardown(reason=reason or self._reason)
        finally:
            self.is_running = False
            self._forget_spans()
            self._remove_plugins()
            self._restore()

    def _remove_plugins(self) -> None:
        while self._plugins:
            self.bus.unregister(self._plugins.pop())

    # ---- steps ------------------------------------------------------------------------------------------

    def step_start(self, iteration: int) -> None:
        """A training step begins."""
        if not self.is_running:
            return
        if self._step is not None:
            self.step_end()
        if self._eval is not None:
            self.eval_step_end()
        self._evals_begun = 0
        self._step = self.completed_steps = iteration
        self.bus.step_start(iteration=iteration)

    def step_end(self, *, is_complete: bool = True) -> None:
        """End the training step that began last.

        Args:
            is_complete: False where an exception leaves it, so that it does not count.
        """
        iteration = self._step
        if iteration is None:
            return
        self._step = None
        if is_complete:
            self.completed_steps = iteration + 1
        self.bus.step_end(iteration=iteration)

    def evaluation_begins(self) -> None:
        """A new evaluation: its steps are counted from zero."""
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

    def eval_step_end(self) -> None:
        """The evaluation step that began last is complete."""
        if self._eval is None:
            return
        iteration, index = self._eval
        self._eval = None
        self.bus.eval_step_end(iteration=iteration, eval_index=index)

    def between_steps(self) -> None:
        """No step is running now; a framework that skips the rest of a step may not have said so."""
        if not self._has_raised:
            self.step_end()
            self.eval_step_end()

    # ---- saves ------------------------------------------------------------------------------------------

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
        """Saving is over.

        Args:
            kind: What it was, where the framework says so only now; as it began when None.
            error: What went wrong, or None.
        """
        if not self._saves_open:
            return
        self._saves_open -= 1
        if not self._saves_open:
            iteration, began_as = self._save
            self.bus.checkpoint_end(iteration=iteration, kind=kind or began_as, error=error)

    def saving(self, kind: CheckpointKind = "save") -> _Saving:
        """A ``with`` block around everything that saving does. One inside another is part of it."""
        return _Saving(self, kind)

    def wrap_saving(self, owner: object, method: str, kind: CheckpointKind = "save") -> None:
        """Put :meth:`saving` around a method of one object until the run ends."""

        def around(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            with self.saving(kind):
                return original(*arguments, **named)

        self.wrap(owner, method, around)

    def wrap(self, owner: object, method: str, around: Callable[..., Any]) -> None:
        """Replace a method of one object until the run ends; outside of a run the original is called.

        Args:
            owner: The object; its class is left alone.
            method: The method's name; an object that has none of that name is left alone.
            around: Called with the original and the arguments.
        """
        original = getattr(owner, method, None)
        if original is None:
            return

        @functools.wraps(original)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            if not self.is_running:
                return original(*arguments, **named)
            return around(original, *arguments, **named)

        attributes = vars(owner)
        before = attributes.get(method, _ABSENT)
        setattr(owner, method, wrapper)

        def undo() -> None:
            # Somebody may have wrapped the wrapper meanwhile; then it stays, and only passes through.
            if attributes.get(method) is wrapper:
                if before is _ABSENT:
                    delattr(owner, method)
                else:
                    setattr(owner, method, before)

        self._undo.append(undo)

    def when_over(self, undo: Callable[[], None]) -> None:
        """Have this called when the run ends, however it ends; the last one first."""
        self._undo.append(undo)

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()


class _Saving:
    __slots__ = ("_counts", "_kind", "_translator")

    def __init__(self, translator: Translator, kind: CheckpointKind) -> None:
        self._translator = translator
        self._kind: CheckpointKind = kind
        self._counts = False

    def __enter__(self) -> None:
        self._counts = self._translator.is_running
        self._translator.checkpoint_start(self._kind)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._counts:
            self._translator.checkpoint_end(error=error)


def state_path_in(exp_dir: str | os.PathLike[str] | None, default: str | os.PathLike[str]) -> str:
    """Where learned timeouts are kept: in ``exp_dir``, else in ``default``, which is made when they are saved.

    Raises:
        ConfigError: ``exp_dir`` was named and is no folder.
    """
    if exp_dir is None:
        return os.path.join(os.fspath(default), STATE_FILE_NAME)
    folder = os.fspath(exp_dir)
    if not os.path.isdir(folder):
        what = "is not a folder" if os.path.exists(folder) else "does not exist"
        raise ConfigError(
            f"exp_dir {folder!r} {what}; it must be there, and be the same folder, in every job of this training. "
            "Make it, or leave exp_dir out"
        )
    return os.path.join(folder, STATE_FILE_NAME)


def _reason(error: BaseException) -> str:
    if isinstance(error, StopTraining):
        return "stopped"
    return "signal" if isinstance(error, KeyboardInterrupt) else "exception"


_ABSENT = object()
_lock = threading.Lock()
_translators: weakref.WeakKeyDictionary[Any, Translator] = weakref.WeakKeyDictionary()
_running: weakref.WeakKeyDictionary[EventBus, Translator] = weakref.WeakKeyDictionary()
"""Who began a run last on each bus, and may be in it still."""
