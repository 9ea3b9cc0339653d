"""One flat function per event, in place of pluggy's calling loop: signatures, generated source.

Two shapes were considered for the compiled call: a loop over a tuple of bound methods, and generated source.
The generated function is about twice as fast with three listeners (no loop, no argument tuple), and the text
that is generated is a dozen fixed lines with no user input in it, so generated source it is.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import pluggy

from resilience_core._hook_wrappers import (
    PASSED_TO_TRAINING,
    HookWrapper,
    WrappedEvent,
    is_of_a_signal_handler,
    place,
)
from resilience_core.exception_text import text_of
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext, TrainingEvents
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
        outermost_first = list(reversed(caller.get_hookimpls()))
        wrappers = [each for each in outermost_first if each.hookwrapper or each.wrapper]
        listeners = self._flat(event, arguments, [each for each in outermost_first if each not in wrappers])
        return self._wrapped(event, arguments, listeners, wrappers) if wrappers else listeners

    def _flat(
        self, event: str, arguments: tuple[str, ...], implementations: list[pluggy.HookImpl]
    ) -> Callable[..., None]:
        namespace: dict[str, Any] = {
            "_passed": PASSED_TO_TRAINING,
            "_log": self._log_listener_error,
            "_log_end": self._log_end,
        }
        lines = [_head(event, arguments)]
        if implementations:
            lines.append("    _raised = None")
        for number, implementation in enumerate(implementations):
            namespace[f"_call{number}"] = implementation.function
            namespace[f"_name{number}"] = describe(implementation.plugin)
            lines += [
                "    try:",
                f"        _call{number}({', '.join(_taken(implementation))})",
                "    except _passed as _stop:",
                "        if _raised is None:",
                "            _raised = _stop",
                "    except Exception as _failure:",  # no name of an argument: it would be deleted
                f"        if _log({event!r}, _name{number}, _failure) and _raised is None:",
                "            _raised = _failure",
                "    except BaseException as _failure:",
                f"        _log_end({event!r}, _name{number}, _failure)",
                # An exit goes before what is meant for the training.
                "        if _raised is None or isinstance(_raised, Exception):",
                "            _raised = _failure",
            ]
        raising = [
            "    if _raised is not None:",
            "        try:",
            "            raise _raised",
            "        finally:",  # a frame that keeps what its traceback leads to would keep it from being freed
            "            _raised = None",
        ]
        lines += raising if implementations else ["    return None"]
        return _executed(event, lines, namespace)

    def _wrapped(
        self,
        event: str,
        arguments: tuple[str, ...],
        listeners: Callable[..., None],
        wrappers: list[pluggy.HookImpl],
    ) -> Callable[..., None]:
        wrapped = WrappedEvent(
            [
                HookWrapper(_full_name(each), each.function, _taken(each), is_old_style=bool(each.hookwrapper))
                for each in wrappers
            ],
            listeners,
            partial(self._log_listener_error, event),
            partial(self._log_end, event),
        )
        given = ", ".join(f"{name!r}: {name}" for name in arguments)
        return _executed(event, [_head(event, arguments), f"    _fire({{{given}}})"], {"_fire": wrapped.fire})

    def _log_listener_error(self, event: str, plugin_name: str, error: Exception) -> bool:
        """Log an exception, and return whether it is to be passed on: a plugin's is not, a signal handler's is."""
        if is_of_a_signal_handler(error):
            self._log_end(event, plugin_name, error)
            return True
        if (event, plugin_name) not in self._already_logged:
            self._already_logged.add((event, plugin_name))
            self._logger.error(
                "plugin %s failed in %s and was passed over (said once; training goes on): %s: %s",
                plugin_name,
                event,
                type(error).__name__,
                text_of(error),
                exc_info=error if error.__traceback__ is not None else None,
            )
        return False

    def _log_end(self, event: str, plugin_name: str, error: BaseException) -> None:
        """Name the listener in which an exit (``SystemExit``, ``KeyboardInterrupt``) was raised.

        The exit is passed on when the others have heard the event: it may stem from a signal handler that ran meanwhile
        (Ctrl-C is one), and must then end the process. Without the others a section would stay open, and a rank that
        catches the exit, or saves on its way out, would be killed as hung.
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
    """Return the module and class of a plugin, for messages; the name of one that is a module."""
    if inspect.ismodule(plugin):
        return plugin.__name__
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"


def _full_name(implementation: pluggy.HookImpl) -> str:
    """Return the plugin of a hook, the name that it is registered by where somebody chose it, and its file."""
    plugin, name = implementation.plugin, implementation.plugin_name
    known = [f"'{name}'" if name != str(id(plugin)) else "", place(implementation.function)]
    more = ", ".join(filter(None, known))
    return f"{describe(plugin)} ({more})" if more else describe(plugin)


def _head(event: str, arguments: tuple[str, ...]) -> str:
    names = [f"{name}=None" if (event, name) == ("checkpoint_end", "error") else name for name in arguments]
    return f"def {event}(*, {', '.join(names)}):"


def _taken(implementation: pluggy.HookImpl) -> tuple[str, ...]:
    """Return the arguments that a hook is called with, by position: those with a default follow the others."""
    own = _own(implementation)
    return (*implementation.argnames, *(name for name in implementation.kwargnames if name not in own))


def _executed(event: str, lines: list[str], namespace: dict[str, Any]) -> Callable[..., None]:
    # The file's name says in a stack whose code it is.
    exec(compile("\n".join(lines), f"<resilience_core: {event}>", "exec"), namespace)
    compiled: Callable[..., None] = namespace[event]
    return compiled


def why_unusable(implementation: pluggy.HookImpl, caller: pluggy.HookCaller) -> str | None:
    """Return why a hook would be called in vain, or with other arguments than it wants; None where it is usable.

    A last parameter with a default whose name begins with an underscore is the hook's own (``_now=time.monotonic``).

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
    if (taken := _taken_for_self(function)) in _arguments(caller):
        return f"its first parameter, '{taken}', is given the plugin itself; write self before it"
    if any(each.kind is each.KEYWORD_ONLY and each.name not in _own(implementation) for each in parameters):
        return "its arguments are keyword-only and are passed by position; remove the *"
    own = _own(implementation)
    for name in implementation.kwargnames:
        if name not in _arguments(caller) and name not in own:
            if name.startswith("_"):
                return f"'{name}' stands before an argument of the event; put what the hook has for itself last"
            hint = nearest(name, _arguments(caller))
            return f"the event has no argument '{name}', which would always have its default{hint}"
    return None


def _taken_for_self(function: Callable[..., object]) -> str | None:
    """Return the first parameter of a bound method, which is given its object; None for any other function."""
    code = getattr(getattr(function, "__func__", None), "__code__", None)
    if not inspect.ismethod(function) or code is None or not code.co_argcount:
        return None
    return str(code.co_varnames[0])


def _own(implementation: pluggy.HookImpl) -> set[str]:
    """Return the parameters that a hook has for itself: they come last, since the others are passed by position."""
    own: set[str] = set()
    for each in reversed([*inspect.signature(implementation.function).parameters.values()]):
        if not each.name.startswith("_") or each.default is each.empty:
            break
        own.add(each.name)
    return own


def _arguments(caller: pluggy.HookCaller) -> tuple[str, ...]:
    return tuple(caller.spec.argnames) if caller.spec is not None else ()
