"""EventBus: pluggy's registry, without pluggy on the hot path.

Pluggy holds the registry, the signatures and the order. A call through it costs about a microsecond, so whenever a
plugin comes or goes the bus compiles each event into one flat function that calls the registered implementations
directly, each under its own guard. Only an event that has hook wrappers takes the longer way of
:mod:`resilience_core._hook_wrappers`.
"""

from __future__ import annotations

import inspect
import logging
import threading

import pluggy

from resilience_core._event_calls import (
    CheckpointEnd,
    CheckpointLoaded,
    CheckpointStart,
    EvalStep,
    EventCalls,
    Setup,
    Step,
    Teardown,
    TrainingError,
    describe,
    why_unusable,
)
from resilience_core.errors import PluginError
from resilience_core.exception_text import text_of
from resilience_core.hookspecs import PROJECT_NAME, TrainingEvents
from resilience_core.plugins.installed import installed_plugins, is_switched_on, register_installed
from resilience_core.suggestions import suggestion

__all__ = ["EVENTS", "EventBus", "bus"]

logger = logging.getLogger(__name__)

EVENTS: tuple[str, ...] = tuple(name for name, member in vars(TrainingEvents).items() if inspect.isfunction(member))


class EventBus:
    """Carries the events of one training process to its plugins.

    An event is fired by calling it, with keyword arguments: ``bus.step_start(iteration=7)``. A listener that
    raises is logged once, with its name, and neither stops training nor hides the event from the others;
    :class:`SectionError` and :class:`StopTraining` are raised to the caller after every listener has heard
    the event.
    """

    setup: Setup
    step_start: Step
    step_end: Step
    eval_step_start: EvalStep
    eval_step_end: EvalStep
    checkpoint_start: CheckpointStart
    checkpoint_end: CheckpointEnd
    checkpoint_loaded: CheckpointLoaded
    training_error: TrainingError
    teardown: Teardown

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        self._manager.add_hookspecs(TrainingEvents)
        self._lock = threading.RLock()
        self._calls = EventCalls(logger)
        self._compile()

    def register(self, plugin: object, name: str | None = None) -> str:
        """Subscribe a plugin; its ``@hookimpl`` methods hear events from now on.

        Args:
            plugin: Any object with methods marked by ``resilience_core.hookimpl``.
            name: What to call it in logs; by default pluggy's choice.

        Returns:
            The plugin's name.

        Raises:
            PluginError: It is registered already, its name is taken, it is a class, marks no method, or a hook or an
                argument is not in the contract.
        """
        with self._lock:
            _refuse_class(plugin)
            _refuse_incomparable(plugin)
            try:
                registered = self._manager.register(plugin, name)
            except pluggy.PluginValidationError as error:
                self._forget(plugin)
                raise PluginError(f"plugin {describe(plugin)}: {_first_line(error)}") from error
            except ValueError as error:
                raise PluginError(self._why_not_registered(plugin, name)) from error
            try:
                self.check_pending()
                if registered is not None:
                    self._refuse_deaf(plugin)
                    self._refuse_what_cannot_be_called(plugin)
            except PluginError:
                self._forget(plugin)
                raise
            except Exception as error:
                self._forget(plugin)
                why = f"{type(error).__name__}: {text_of(error)}"
                raise PluginError(f"plugin {describe(plugin)} has a hook that cannot be called ({why})") from error
            self._compile()
            if registered is None:
                raise PluginError(f"plugin {describe(plugin)} is blocked by name; unblock {name!r} first")
            return registered

    def unregister(self, plugin: object) -> None:
        """Unsubscribe a plugin; one that is not registered is no error, so that teardown may run twice."""
        with self._lock:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
                self._compile()

    def is_registered(self, plugin: object) -> bool:
        """Return whether the plugin hears events."""
        return self._manager.is_registered(plugin)

    def plugins(self) -> list[object]:
        """Return the registered plugins, in no promised order."""
        return [plugin for _, plugin in self._manager.list_name_plugin() if plugin is not None]

    def load_entry_points(self) -> int:
        """Register every installed plugin of the entry-point group ``resilience`` that is not registered by its name.

        The process's default bus does this by itself. One that is a class is instantiated without arguments.

        Returns:
            How many were added.

        Raises:
            PluginError: As :meth:`register`; the plugin at fault is not registered.
        """
        added = 0
        with self._lock:
            for plugin in installed_plugins():
                if not self._manager.has_plugin(plugin.name):
                    self.register(plugin.load(), plugin.name)
                    added += 1
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
                hint = suggestion(name, EVENTS) or f"; events are: {', '.join(EVENTS)}"
                raise PluginError(f"plugin {describe(implementation.plugin)} has an unknown hook '{name}'{hint}")

    def _why_not_registered(self, plugin: object, name: str | None) -> str:
        for registered_as, other in self._manager.list_name_plugin():
            if other == plugin:
                chosen = f", as '{registered_as}'" if registered_as != str(id(other)) else ""
                if other is plugin:
                    return f"plugin {describe(plugin)} is registered already{chosen}"
                return (
                    f"plugin {describe(plugin)} equals one that is registered already{chosen}, and would be taken for "
                    "it; remove its __eq__, or what makes one (a dataclass takes eq=False), or register one of them"
                )
        name = name or self._manager.get_canonical_name(plugin)
        owner = self._manager.get_plugin(name)
        return (
            f"plugin {describe(plugin)}: the name '{name}' is taken by plugin {describe(owner)}"
            f"{_distribution(name, owner)}. Give one of them another name: in register(plugin, name), or, of an "
            "installed plugin, in the entry point of its package"
        )

    def _refuse_deaf(self, plugin: object) -> None:
        if self._manager.get_hookcallers(plugin):
            return
        unmarked = [name for name in EVENTS if callable(getattr(plugin, name, None))]
        of_an_event = f"; mark {', '.join(unmarked)}" if unmarked else f"; events are: {', '.join(EVENTS)}"
        raise PluginError(
            f"plugin {describe(plugin)} would hear nothing: none of its methods is marked with "
            f"@resilience_core.hookimpl{of_an_event}"
        )

    def _refuse_what_cannot_be_called(self, plugin: object) -> None:
        for caller in self._manager.get_hookcallers(plugin) or ():
            for implementation in caller.get_hookimpls():
                if implementation.plugin is plugin and (why := why_unusable(implementation, caller)):
                    raise PluginError(f"plugin {describe(plugin)} would not hear '{caller.name}': {why}")

    def _forget(self, plugin: object) -> None:
        if self._manager.is_registered(plugin):
            self._manager.unregister(plugin)
        self._compile()

    def _compile(self) -> None:
        for event in EVENTS:
            setattr(self, event, self._calls.compiled(event, getattr(self._manager.hook, event)))


def _refuse_incomparable(plugin: object) -> None:
    """Refuse what raises when it is compared, or equals everything: pluggy compares each plugin with all others."""
    try:
        equals_all = bool(plugin == object())
    except Exception as error:
        raise PluginError(
            f"plugin {describe(plugin)}: its __eq__ raises {type(error).__name__} for an object of another class; "
            "return NotImplemented there"
        ) from error
    try:
        equals_itself = bool(plugin == plugin)  # pluggy does the same, to find it again
    except Exception as error:
        raise PluginError(
            f"plugin {describe(plugin)}: its __eq__ does not tell whether it equals itself "
            f"({type(error).__name__}: {text_of(error)})"
        ) from error
    if not equals_itself:
        raise PluginError(f"plugin {describe(plugin)}: its __eq__ says that it does not equal itself")
    if equals_all:
        raise PluginError(f"plugin {describe(plugin)}: its __eq__ says that it equals any other object")


def _refuse_class(plugin: object) -> None:
    if inspect.isclass(plugin):
        name = plugin.__qualname__
        raise PluginError(f"plugin {plugin.__module__}.{name} is a class; register an instance of it: {name}(...)")
    if plugin is None:
        raise PluginError("the plugin is None; register an object with methods marked by @resilience_core.hookimpl")
    if inspect.isfunction(plugin):
        name = f"{plugin.__module__}.{plugin.__qualname__}"
        raise PluginError(f"plugin {name} is a function, which is not called; register what it returns: {name}(...)")


def _distribution(name: str, plugin: object) -> str:
    """Return which distribution offers a plugin by this name, for messages; an empty text where none is known to."""
    package = describe(plugin).partition(".")[0]
    try:
        offers = [each for each in installed_plugins() if each.name == name]
    except Exception:  # noqa: BLE001 - whatever a damaged installation leads to; the message has the class
        return ""
    for offer in offers:
        if offer.entry_point.value.partition(":")[0].partition(".")[0] == package:
            return f" of {offer.distribution} {offer.version}"
    return ""


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())


_default: EventBus | None = None
_default_lock = threading.RLock()  # a plugin that is being loaded may ask for the bus itself


def bus() -> EventBus:
    """Return the process's default bus; the first call makes it and loads the installed plugins.

    Plugins are entry points of the group ``resilience``. ``FT_LOAD_PLUGINS=0`` loads none, and so does
    ``load_plugins: false`` in the configuration of the launcher.

    Raises:
        ConfigError: ``FT_LOAD_PLUGINS`` is neither true nor false.
    """
    global _default
    if _default is None:
        with _default_lock:
            if _default is None:
                wanted = is_switched_on()
                _default = EventBus()
                if wanted:
                    register_installed(_default.register, _default.unregister)
    return _default
