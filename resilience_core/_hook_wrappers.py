"""Hook wrappers around the listeners of one event, run so that a broken one takes the event away from nobody.

In pluggy's own loop a wrapper that raises before its yield, or never yields, ends the call before any listener is
reached. One of them is the section monitor: without ``step_end`` a healthy rank is killed as hung, without
``step_start`` a hung one is never found. So each half of each wrapper is called here under a guard of its own, and the
listeners are called between the halves in any case. Hooks of this project have no results, which leaves little of
pluggy's rules to follow: the order, the two styles of wrapper, and what each is shown.
"""

from __future__ import annotations

import inspect
import itertools
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import attrs
import pluggy

from resilience_core.errors import PluginError, SectionError, StopTraining

__all__ = ["PASSED_TO_TRAINING", "HookWrapper", "WrappedEvent", "is_of_a_signal_handler", "place"]

PASSED_TO_TRAINING = (SectionError, StopTraining)
"""What a listener may raise to the training."""


@attrs.frozen
class HookWrapper:
    """One wrapper.

    Args:
        name: Its plugin, for messages.
        function: Makes the generator.
        arguments: Names of those that it is called with, in the order of its parameters.
        is_old_style: It is given a ``pluggy.Result``, instead of the exception at its yield.
    """

    name: str
    function: Callable[..., object]
    arguments: tuple[str, ...]
    is_old_style: bool


@attrs.frozen
class WrappedEvent:
    """One event with its wrappers.

    An exception that a listener means for the training reaches it even if a wrapper catches it: otherwise a wrapper
    that logs every exception would keep ``StopTraining`` from ending the job. Of several, the first in time is raised.
    Any other exception of a wrapper is reported and shown to no other wrapper.

    An exit (``KeyboardInterrupt``, ``SystemExit``) goes before whatever else is raised: it may stem from a signal
    handler. It is raised once everybody has heard the event, as one in a listener.

    Args:
        wrappers: The outermost first.
        listeners: Calls all listeners, by keyword arguments. Raises only what is meant for the training, and exits.
        report: Called with the name of a wrapper and the exception that was passed over; whether it is to be raised all
            the same.
        report_exit: Called with the name of a wrapper and the exit that it has raised.
    """

    wrappers: Sequence[HookWrapper]
    listeners: Callable[..., None]
    report: Callable[[str, Exception], bool]
    report_exit: Callable[[str, BaseException], None]

    def fire(self, arguments: Mapping[str, Any]) -> None:
        """Call the wrappers and the listeners.

        Args:
            arguments: All arguments of the event.

        Raises:
            SectionError: A listener or a wrapper has raised it.
            StopTraining: Likewise.
        """
        raised = self._run(0, arguments)
        if raised is not None:
            raise raised

    def _run(self, depth: int, arguments: Mapping[str, Any]) -> BaseException | None:
        """Call what is within the first ``depth`` wrappers, and return what is to be raised."""
        if depth == len(self.wrappers):
            try:
                self.listeners(**arguments)
            except BaseException as error:  # noqa: BLE001 - it is raised when the wrappers have ended
                return error
            return None
        wrapper = self.wrappers[depth]
        generator, before = self._begin(wrapper, arguments)
        within = self._run(depth + 1, arguments)
        after = None if generator is None else self._end(wrapper, generator, within)
        raised = [error for error in (before, within, after) if error is not None]
        return next(filter(_is_exit, raised), raised[0] if raised else None)

    def _begin(
        self, wrapper: HookWrapper, arguments: Mapping[str, Any]
    ) -> tuple[Generator[None, object, object] | None, BaseException | None]:
        """Run the half before the yield; return what waits at the yield, and what is to be raised."""
        try:
            generator: Any = wrapper.function(*(arguments[name] for name in wrapper.arguments))
            next(generator)
        except StopIteration:
            return None, self._judged(wrapper, PluginError("the hook wrapper returned without a yield"))
        except BaseException as error:  # noqa: BLE001 - foreign code
            return None, self._judged(wrapper, error)
        return generator, None

    def _end(
        self, wrapper: HookWrapper, generator: Generator[None, object, object], within: BaseException | None
    ) -> BaseException | None:
        """Run the half after the yield; return what the wrapper adds to what was raised within it."""
        result: pluggy.Result[list[object]] = pluggy.Result([], within)
        try:
            if wrapper.is_old_style:
                generator.send(result)
            elif within is None:
                generator.send([])
            else:
                generator.throw(within)
        except StopIteration:
            forced = result.exception
            return None if forced is None or forced is within else self._judged(wrapper, forced)
        except BaseException as error:  # noqa: BLE001 - foreign code
            return None if error is within else self._judged(wrapper, error)
        raised = self._judged(wrapper, PluginError("the hook wrapper yielded a second time"))
        try:
            generator.close()
        except BaseException as error:  # noqa: BLE001 - foreign code
            raised = self._judged(wrapper, error)
        return raised

    def _judged(self, wrapper: HookWrapper, error: BaseException) -> BaseException | None:
        """Return what is to be raised of an exception of a wrapper; report it, unless it is meant for the training."""
        if isinstance(error, PASSED_TO_TRAINING):
            return error
        if isinstance(error, Exception):
            return error if self.report(wrapper.name, error) else None
        self.report_exit(wrapper.name, error)
        return error


def is_of_a_signal_handler(error: BaseException) -> bool:
    """Return whether an exception was raised by a handler of a signal, which runs wherever the training is.

    It is meant for the training and not for the plugin that ran when the signal came.
    """
    handlers = filter(callable, map(signal.getsignal, signal.valid_signals()))
    codes = {_code_of(handler) for handler in handlers}
    trace = error.__traceback__
    interrupted: FrameType | None = None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in codes or _is_called_as_handler(frame, interrupted):
            return True
        trace, interrupted = trace.tb_next, frame
    return False


def _code_of(handler: object) -> CodeType | None:
    function = handler if inspect.isroutine(handler) else type(handler).__call__
    return getattr(inspect.unwrap(function), "__code__", None)


def _is_called_as_handler(frame: FrameType, interrupted: FrameType | None) -> bool:
    """Return whether the arguments have a signal's number, followed by the frame that was interrupted: the caller.

    A handler may have removed itself, or be called through another one, as of ``functools.partial``.
    """
    code, held = frame.f_code, frame.f_locals
    given = [held.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        more = held.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
        given += more if isinstance(more, tuple) else ()
    signals = signal.valid_signals()
    return any(
        where is interrupted is not None and isinstance(number, int) and number in signals
        for number, where in itertools.pairwise(given)
    )


def place(function: Callable[..., object]) -> str:
    """Return the file and line of a function, for messages; an empty text where it was not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _is_exit(error: BaseException | None) -> bool:
    return error is not None and not isinstance(error, Exception)
