"""What takes the place of a coroutine function or a generator: it stays one, and each of its steps is timed.

What is timed was chosen among two:

A. One entry for each call, from its first step to its end. That holds what others do between two steps: of a coroutine
   the rest of the event loop, of a generator of batches the training on each of them. A rank would look slow for what
   others did.
B. One entry for each step: from where it goes on until it next waits, yields or ends. That is what it takes itself,
   and an entry is left on the thread that has entered it.

B is what this does. The call itself, which makes the coroutine or generator and runs none of its code, is no entry.

What is sent, thrown, returned and raised passes through. Wrong arguments are refused in the first step, and not by the
call: a function of these kinds runs nothing before.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from straggler.measurement.section import Section

__all__ = ["timed_steps"]

_Timed = Callable[[], AbstractContextManager[object]]
"""Times what is inside, if it is to be timed."""


def timed_steps(
    function: Callable[..., Any],
    finds: Mapping[int, Callable[[], Section]],
    key: int | None,
    is_compiling: Callable[[], bool],
) -> Callable[..., Any] | None:
    """Return a function of the same kind whose steps are timed; None where the original does not run in steps.

    Args:
        function: The original.
        finds: The sections, by ``id``; it may change.
        key: The ``id`` that counts; None: that of the first argument.
        is_compiling: Says whether ``torch.compile`` traces.
    """
    flags = _flags(function)

    def timed_for(args: tuple[Any, ...]) -> _Timed:
        wanted = key if key is not None else id(args[0]) if args else 0

        def timed() -> AbstractContextManager[object]:
            find = finds.get(wanted)
            return nullcontext() if find is None else find()

        return timed

    driver: Callable[..., Any]
    if flags & inspect.CO_GENERATOR:
        driver = _driver(function, timed_for, is_compiling)
    elif flags & inspect.CO_COROUTINE:
        steps = types.coroutine(_driver(function, timed_for, is_compiling))

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await steps(*args, **kwargs)

        driver = coroutine
    elif flags & inspect.CO_ASYNC_GENERATOR:
        driver = _asynchronous(function, timed_for, is_compiling)
    else:
        return None
    return functools.update_wrapper(driver, function)


def _flags(function: Any) -> int:
    """Return the flags of the code that a call runs, as ``inspect`` finds it."""
    if isinstance(getattr(function, "__wrapped__", None), functools.partialmethod):
        function = function.__wrapped__
    while True:
        if isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, (functools.partial, functools.partialmethod)):
            function = function.func
        else:
            break
    if not isinstance(function, types.FunctionType):
        function = inspect.getattr_static(type(function), "__call__", None)
    return function.__code__.co_flags if isinstance(function, types.FunctionType) else 0


def _driver(
    begin: Callable[..., Any],
    timed_for: Callable[[tuple[Any, ...]], _Timed],
    is_compiling: Callable[[], bool],
    ends: type[Exception] | tuple[()] = (),
) -> Callable[..., Generator[Any, Any, Any]]:
    """Return a generator function that makes what runs in steps, and does each of them while it is timed.

    Args:
        begin: Makes it; it has ``send`` and ``throw``.
        timed_for: Takes the arguments that ``begin`` gets.
        is_compiling: As for :func:`timed_steps`.
        ends: What is raised at the end, as by an asynchronous generator; it is returned.
    """

    def driver(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = begin(*args, **kwargs)
        if is_compiling():
            return (yield from inner)
        timed = timed_for(args)
        step, value = inner.send, None
        while True:
            with timed():
                try:
                    value = step(value)
                except StopIteration as ended:  # caught in here, so that the last step counts
                    return ended.value
                except ends as ended:
                    return ended
                except BaseException:
                    value = step = inner = args = ()  # they may hold what is raised, which would hold itself
                    raise
            # One name for both ways: what was yielded is not held while the next one is made.
            try:
                value = yield value
                step = inner.send
            except BaseException as error:  # noqa: BLE001  # GeneratorExit, too: the original says how it ends
                step, value = inner.throw, error

    return driver


def _asynchronous(
    function: Callable[..., AsyncGenerator[Any, Any]],
    timed_for: Callable[[tuple[Any, ...]], _Timed],
    is_compiling: Callable[[], bool],
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return an asynchronous generator function: what each ``asend`` and ``athrow`` of the original does is timed."""
    stepping: Callable[..., Any] = types.coroutine(
        _driver(lambda _, step: step, lambda args: args[0], is_compiling, ends=StopAsyncIteration),
    )

    async def generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner, timed = function(*args, **kwargs), timed_for(args)
        step: Any = _first_step(inner)
        while True:
            try:
                value = await stepping(timed, step)
                if isinstance(value, StopAsyncIteration):
                    return
            finally:
                step = None  # as above
            try:
                value = yield value
                step = inner.asend(value)
            except BaseException as error:  # noqa: BLE001  # as above
                step = inner.athrow(error)

    return generator


def _first_step(inner: AsyncGenerator[Any, Any]) -> Any:
    """Begin an asynchronous generator of which no event loop is told: it would end it beside its driver."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)
