"""One flat function per event, in place of pluggy's calling loop: signatures, generated source, hook wrappers.

Two shapes were considered for the compiled call: a loop over a tuple of bound methods, and generated source.
The generated function is about twice as fast with three listeners (no loop, no argument tuple), and the text
that is generated is a dozen fixed lines with no user input in it, so generated source it is.
"""

from __future__ import annotations

import inspect
import logging
import types
from collections.abc import Callable
from typing import Any, Protocol

import pluggy

from resilience_core.errors import SectionError, StopTraining
from resilience_core.hookspecs import (
    PROJECT_NAME,
    CheckpointKind,
    LoadSource,
    RunContext,
    TrainingEvents,
    hookimpl,
)
from resilience_core.suggestions import nearest

__all__ = [
    "CheckpointEnd",
    "CheckpointLoaded",
    "CheckpointStart",
    "EvalStep",
    "EventCalls",
    "Setup",
    "Step",
    "Teardown",
    "TrainingError",
    "describe",
    "why_unusable",
]

_PASSED_TO_TRAINING = (SectionError, StopTraining)


class Setup(Protocol):
    def __call__(self, *, context: RunContext) -> None: ...


class Step(Protocol):
    def __call__(self, *, iteration: int) -> None: ...


class EvalStep(Protocol):
    def __call__(self, *, iteration: int, eval_index: int) -> None: ...


class CheckpointStart(Protocol):
    def __call__(self, *, iteration: int, kind: CheckpointKind) -> None: ...


class CheckpointEnd(Protocol):
    def __call__(self, *, iteration: int, kind: CheckpointKind, error: BaseException | None = None) -> None: ...


class CheckpointLoaded(Protocol):
    def __call__(self, *, iteration: int, source: LoadSource) -> None: ...


class TrainingError(Protocol):
    def __call__(self, *, error: BaseException, iteration: int) -> None: ...


class Teardown(Protocol):
    def __call__(self, *, reason: str) -> None: ...


class EventCalls:
    """Compiles events into functions.

    Args:
        logger: Where a listener that raises is logged, once per event.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._already_logged: set[tuple[str, str]] = set()

    def compiled(self, event: str, caller: pluggy.HookCaller) -> Callable[..., None]:
        """Return the function that calls what is registered for an event now, by keyword arguments."""
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
        namespace: dict[str, Any] = {
            "_passed": _PASSED_TO_TRAINING,
            "_log": self._log_listener_error,
            "_log_end": self._log_end,
        }
        lines = [f"def {event}({signature}):"]
        if implementations:
            lines.append("    raised = None")
        for number, implementation in enumerate(implementations):
            namespace[f"_call{number}"] = implementation.function
            namespace[f"_name{number}"] = describe(implementation.plugin)
            lines += [
                "    try:",
                f"        _call{number}({', '.join(implementation.argnames)})",
                "    except _passed as passed:",
                "        raised = raised or passed",
                "    except Exception as error:",
                f"        _log({event!r}, _name{number}, error)",
                "    except KeyboardInterrupt:",
                "        raise",
                "    except BaseException as error:",
                f"        _log_end({event!r}, _name{number}, error)",
                "        raise",
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
            self._logger.error(
                "plugin %s failed in %s and was passed over (said once; training goes on): %s: %s",
                plugin_name,
                event,
                type(error).__name__,
                error,
                exc_info=error,
            )

    def _log_end(self, event: str, plugin_name: str, error: BaseException) -> None:
        """Name the listener in which an exit was raised.

        The exit is passed on: it may stem from a signal handler that ran meanwhile, and must then end the process.
        """
        if (event, plugin_name) not in self._already_logged:
            self._already_logged.add((event, plugin_name))
            self._logger.error(
                "%s was raised while plugin %s handled %s, and is passed on to the training, which it may end",
                type(error).__name__,
                plugin_name,
                event,
                exc_info=error,
            )


def describe(plugin: object) -> str:
    """Return the module and class of a plugin, for messages."""
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"


def why_unusable(implementation: pluggy.HookImpl, caller: pluggy.HookCaller) -> str | None:
    """Return why a hook would be called in vain, or with other arguments than it wants; None where it is usable.

    Args:
        implementation: One listener of an event.
        caller: The event.
    """
    if caller.spec is None:
        return None  # an optional hook, for an event of another version
    function = implementation.function
    parameters = inspect.signature(function).parameters.values()
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "it is an async function, and nothing awaits it; make it a plain one"
    if inspect.isgeneratorfunction(function) and not (implementation.wrapper or implementation.hookwrapper):
        return "it is a generator, whose body nothing runs; remove the yield, or mark it with hookimpl(wrapper=True)"
    if any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters):
        return f"*args and **kwargs stay empty; name the arguments that it wants, of {', '.join(_arguments(caller))}"
    if any(each.kind is each.KEYWORD_ONLY for each in parameters):
        return "its arguments are keyword-only and are passed by position; remove the *"
    for name in implementation.kwargnames:
        if name not in _arguments(caller):
            hint = nearest(name, _arguments(caller))
            return f"the event has no argument '{name}', which would always have its default{hint}"
    return None


def _arguments(caller: pluggy.HookCaller) -> tuple[str, ...]:
    return tuple(caller.spec.argnames) if caller.spec is not None else ()
