"""EventBus: pluggy's registry, without pluggy on the hot path.

Pluggy holds the registry, the signatures, the entry points and the order. A call through it costs about a
microsecond, so whenever a plugin comes or goes the bus compiles each event into one flat function that calls
the registered implementations directly, each under its own guard. Hook wrappers need pluggy's own calling
loop, so an event that has one falls back to it.

Two shapes were considered for the compiled call: a loop over a tuple of bound methods, and generated source.
The generated function is about twice as fast with three listeners (no loop, no argument tuple), and the text
that is generated is a dozen fixed lines with no user input in it, so generated source it is.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, Protocol

import pluggy

from resilience_core.errors import PluginError, SectionError, StopTraining
from resilience_core.hookspecs import (
    PROJECT_NAME,
    CheckpointKind,
    LoadSource,
    RunContext,
    TrainingEvents,
    hookimpl,
)

__all__ = ["EVENTS", "EventBus", "bus"]

logger = logging.getLogger(__name__)

EVENTS: tuple[str, ...] = tuple(name for name, member in vars(TrainingEvents).items() if inspect.isfunction(member))

_PASSED_TO_TRAINING = (SectionError, StopTraining)


class _Setup(Protocol):
    def __call__(self, *, context: RunContext) -> None: ...


class _Step(Protocol):
    def __call__(self, *, iteration: int) -> None: ...


class _EvalStep(Protocol):
    def __call__(self, *, iteration: int, eval_index: int) -> None: ...


class _CheckpointStart(Protocol):
    def __call__(self, *, iteration: int, kind: CheckpointKind) -> None: ...


class _CheckpointEnd(Protocol):
    def __call__(self, *, iteration: int, kind: CheckpointKind, error: BaseException | None = None) -> None: ...


class _CheckpointLoaded(Protocol):
    def __call__(self, *, iteration: int, source: LoadSource) -> None: ...


class _TrainingError(Protocol):
    def __call__(self, *, error: BaseException, iteration: int) -> None: ...


class _Teardown(Protocol):
    def __call__(self, *, reason: str) -> None: ...


class EventBus:
    """Carries the events of one training process to its plugins.

    An event is fired by calling it, with keyword arguments: ``bus.step_start(iteration=7)``. A listener that
    raises is logged once, with its name, and neither stops training nor hides the event from the others;
    :class:`SectionError` and :class:`StopTraining` are raised to the caller after every listener has heard
    the event.
    """

    setup: _Setup
    step_start: _Step
    step_end: _Step
    eval_step_start: _EvalStep
    eval_step_end: _EvalStep
    checkpoint_start: _CheckpointStart
    checkpoint_end: _CheckpointEnd
    checkpoint_loaded: _CheckpointLoaded
    training_error: _TrainingError
    teardown: _Teardown

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        self._manager.add_hookspecs(TrainingEvents)
        self._lock = threading.RLock()
        self._already_logged: set[tuple[str, str]] = set()
        self._compile()

    def register(self, plugin: object, name: str | None = None) -> str:
        """Subscribe a plugin; its ``@hookimpl`` methods hear events from now on.

        Args:
            plugin: Any object with methods marked by ``resilience_core.hookimpl``.
            name: What to call it in logs; by default pluggy's choice.

        Returns:
            The plugin's name.

        Raises:
            PluginError: It is registered already, is a class, marks no method, or a hook or an argument is not in
                the contract.
        """
        with self._lock:
            _refuse_class(plugin)
            try:
                registered = self._manager.register(plugin, name)
            except pluggy.PluginValidationError as error:
                self._forget(plugin)
                raise PluginError(f"plugin {_describe(plugin)}: {_first_line(error)}") from error
            except ValueError as error:
                raise PluginError(f"plugin {_describe(plugin)} is registered already ({error})") from error
            try:
                self.check_pending()
                if registered is not None:
                    self._refuse_deaf(plugin)
            except PluginError:
                self._forget(plugin)
                raise
            self._compile()
            if registered is None:
                raise PluginError(f"plugin {_describe(plugin)} is blocked by name; unblock {name!r} first")
            return registered

    def unregister(self, plugin: object) -> None:
        """Unsubscribe a plugin; one that is not registered is no error, so that teardown may run twice."""
        with self._lock:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
                self._compile()

    def is_registered(self, plugin: object) -> bool:
        """Whether the plugin hears events."""
        return self._manager.is_registered(plugin)

    def plugins(self) -> list[object]:
        """The registered plugins, in no promised order."""
        return [plugin for _, plugin in self._manager.list_name_plugin() if plugin is not None]

    def load_entry_points(self) -> int:
        """Register every installed plugin of the entry-point group ``resilience``.

        Returns:
            How many were added.

        Raises:
            PluginError: As :meth:`register`; the plugin at fault is not registered.
        """
        with self._lock:
            before = self.plugins()
            added = self._manager.load_setuptools_entrypoints(PROJECT_NAME)
            for plugin in self.plugins():
                if any(plugin is other for other in before):
                    continue
                try:
                    _refuse_class(plugin)
                    self._refuse_deaf(plugin)
                except PluginError:
                    self._forget(plugin)
                    raise
            self.check_pending()
            self._compile()
            return added

    def check_pending(self) -> None:
        """Raise if a registered plugin implements a hook that is not in the contract.

        Raises:
            PluginError: Names the plugin, the hook and the nearest event.
        """
        for name in vars(self._manager.hook):
            if name.startswith("_") or name in EVENTS:
                continue
            caller = getattr(self._manager.hook, name)
            for implementation in caller.get_hookimpls():
                if implementation.optionalhook:
                    continue
                nearest = difflib.get_close_matches(name, EVENTS, n=1)
                hint = f"; did you mean '{nearest[0]}'?" if nearest else f"; events are: {', '.join(EVENTS)}"
                raise PluginError(f"plugin {_describe(implementation.plugin)} has an unknown hook '{name}'{hint}")

    def _refuse_deaf(self, plugin: object) -> None:
        if self._manager.get_hookcallers(plugin):
            return
        unmarked = [name for name in EVENTS if callable(getattr(plugin, name, None))]
        of_an_event = f"; mark {', '.join(unmarked)}" if unmarked else f"; events are: {', '.join(EVENTS)}"
        raise PluginError(
            f"plugin {_describe(plugin)} would hear nothing: none of its methods is marked with "
            f"@resilience_core.hookimpl{of_an_event}"
        )

    def _forget(self, plugin: object) -> None:
        if self._manager.is_registered(plugin):
            self._manager.unregister(plugin)
        self._compile()

    def _compile(self) -> None:
        for event in EVENTS:
            setattr(self, event, self._compiled(event))

    def _compiled(self, event: str) -> Callable[..., None]:
        caller: pluggy.HookCaller = getattr(self._manager.hook, event)
        arguments = tuple(inspect.signature(getattr(TrainingEvents, event)).parameters)[1:]
        implementations = list(reversed(caller.get_hookimpls()))
        wrappers = [i for i in caller.get_hookimpls() if i.hookwrapper or i.wrapper]
        inner = [i for i in implementations if i not in wrappers]
        if wrappers:
            flat = self._flat(event, ", ".join(arguments), inner)
            return self._through_pluggy(event, flat, wrappers)
        signature = ", ".join(f"{a}=None" if (event, a) == ("checkpoint_end", "error") else a for a in arguments)
        return self._flat(event, f"*, {signature}", inner)

    def _flat(self, event: str, signature: str, implementations: list[pluggy.HookImpl]) -> Callable[..., None]:
        namespace: dict[str, Any] = {"_passed": _PASSED_TO_TRAINING, "_log": self._log_listener_error}
        lines = [f"def {event}({signature}):"]
        if implementations:
            lines.append("    raised = None")
        for number, implementation in enumerate(implementations):
            namespace[f"_call{number}"] = implementation.function
            namespace[f"_name{number}"] = _describe(implementation.plugin)
            lines += [
                "    try:",
                f"        _call{number}({', '.join(implementation.argnames)})",
                "    except _passed as passed:",
                "        raised = raised or passed",
                "    except Exception as error:",
                f"        _log({event!r}, _name{number}, error)",
            ]
        lines += ["    if raised is not None:", "        raise raised"] if implementations else ["    return None"]
        exec("\n".join(lines), namespace)
        compiled: Callable[..., None] = namespace[event]
        return compiled

    def _through_pluggy(
        self, event: str, flat: Callable[..., None], wrappers: list[pluggy.HookImpl]
    ) -> Callable[..., None]:
        """Pluggy's own calling loop for the wrappers, around one listener: all others, each under its guard.

        Handed to pluggy one by one, a listener that raises would hide the event from those behind it.
        """
        manager = pluggy.PluginManager(PROJECT_NAME)
        manager.add_hookspecs(TrainingEvents)
        manager.register(types.SimpleNamespace(**{event: hookimpl(flat)}))
        for wrapper in wrappers:
            manager.register(types.SimpleNamespace(**{event: wrapper.function}))
        through: pluggy.HookCaller = getattr(manager.hook, event)

        def call(**arguments: Any) -> None:
            if event == "checkpoint_end":
                arguments.setdefault("error", None)
            try:
                through(**arguments)
            except _PASSED_TO_TRAINING:
                raise
            except Exception as error:  # noqa: BLE001 - a foreign listener
                self._log_listener_error(event, "a hook wrapper's chain", error)

        return call

    def _log_listener_error(self, event: str, plugin_name: str, error: Exception) -> None:
        if (event, plugin_name) not in self._already_logged:
            self._already_logged.add((event, plugin_name))
            logger.error(
                "plugin %s failed in %s and was passed over (said once; training goes on): %s: %s",
                plugin_name,
                event,
                type(error).__name__,
                error,
                exc_info=error,
            )


def _describe(plugin: object) -> str:
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"


def _refuse_class(plugin: object) -> None:
    if inspect.isclass(plugin):
        name = plugin.__qualname__
        raise PluginError(f"plugin {plugin.__module__}.{name} is a class; register an instance of it: {name}(...)")


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())


_default: EventBus | None = None
_default_lock = threading.Lock()


def bus() -> EventBus:
    """The process's default bus, made at the first call."""
    global _default
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = EventBus()
    return _default


class _CallableModule(types.ModuleType):
    """Importing this submodule binds it to ``resilience_core.event_bus``, where the function of that name belongs.

    So the module answers a call as the function does, whichever of the two a caller got hold of.
    """

    def __call__(self) -> EventBus:
        return bus()


sys.modules[__name__].__class__ = _CallableModule
