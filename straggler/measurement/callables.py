"""CallableId and the wrapping of callables, for code that cannot be edited.

A second :meth:`CallableWrapper.wrap` adds to the first, and everything that was wrapped is restored exactly: an
attribute that an object had of its own is put back, one that it had from its class is uncovered again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import attrs

from resilience_core.suggestions import suggestion
from straggler.measurement.section import Section

__all__ = ["CallableId", "CallableWrapper"]

_MISSING = object()


@attrs.frozen
class CallableId:
    """Names one callable to be timed: the attribute ``name`` of ``obj``.

    The last three exist because nvidia-resiliency-ext has them. It never reads them, and neither does anything here:
    every call is timed, whatever its arguments are, and they do not tell two callables apart.

    Args:
        obj: A module, a class or any object.
        name: The attribute that is called.
        arg_filter_fn: Without effect.
        extra_args_fn: Without effect.
        ignored_args: Without effect; nvidia-resiliency-ext's examples give ``("self",)``.

    Raises:
        ValueError: The object has no such attribute, or it cannot be called.
    """

    obj: Any
    name: str
    arg_filter_fn: Callable[[inspect.BoundArguments], bool] | None = attrs.field(default=None, eq=False, repr=False)
    extra_args_fn: Callable[[inspect.BoundArguments], dict[str, Any]] | None = attrs.field(
        default=None, eq=False, repr=False
    )
    ignored_args: tuple[str, ...] | None = attrs.field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        found = getattr(self.obj, self.name, _MISSING)
        if found is _MISSING:
            raise ValueError(f"{_owner(self.obj)} has no attribute {self.name!r}{suggestion(self.name, dir(self.obj))}")
        if not callable(found):
            raise ValueError(f"{_owner(self.obj)}.{self.name} is {type(found).__name__}, which cannot be called")

    def __str__(self) -> str:
        return f"{_owner(self.obj)}.{self.name}"


def _owner(obj: Any) -> str:
    if isinstance(obj, ModuleType):
        return obj.__name__
    if isinstance(obj, type):
        return f"{obj.__module__}.{obj.__name__}"
    return type(obj).__name__


class CallableWrapper:
    """Puts sections around callables, and takes them off again."""

    def __init__(self, finder_of: Callable[[str, bool], Callable[[], Section]]) -> None:
        self._finder_of = finder_of
        self._wrapped: list[tuple[Any, str, Any]] = []
        self._names: set[str] = set()

    def wrap(self, callable_ids: Sequence[CallableId], profile_cuda: bool = True) -> None:
        """Time every call of these from now on; one that is wrapped already stays as it is.

        Args:
            callable_ids: What to wrap. Each becomes a section called after its object's type and its own
                name; a second object of the same type gets ``#2``, so that their times are not mixed.
            profile_cuda: Time their CUDA work too, where a probe can.

        Raises:
            ValueError: Something else than a :class:`CallableId` was given; nothing has been wrapped then.
        """
        for given in callable_ids:
            if not isinstance(given, CallableId):
                raise ValueError(f"wrap_callables takes CallableId(obj, name), not {given!r}")
        for callable_id in callable_ids:
            if not self._is_wrapped(callable_id):
                self._wrap(callable_id, profile_cuda)

    def restore(self) -> None:
        """Restore every original."""
        while self._wrapped:
            obj, name, own = self._wrapped.pop()
            if own is _MISSING:
                delattr(obj, name)
            else:
                setattr(obj, name, own)
        self._names.clear()

    def _is_wrapped(self, callable_id: CallableId) -> bool:
        return any(obj is callable_id.obj and name == callable_id.name for obj, name, _ in self._wrapped)

    def _wrap(self, callable_id: CallableId, profile_cuda: bool) -> None:
        obj, name = callable_id.obj, callable_id.name
        own = vars(obj).get(name, _MISSING) if hasattr(obj, "__dict__") else _MISSING
        find = self._finder_of(self._unique(str(callable_id)), profile_cuda)
        raw = inspect.getattr_static(obj, name) if isinstance(obj, type) else None
        replacement: Any
        if isinstance(raw, (staticmethod, classmethod)):
            replacement = type(raw)(_timed(raw.__func__, find))
        else:
            replacement = _timed(getattr(obj, name), find)
        setattr(obj, name, replacement)
        self._wrapped.append((obj, name, own))

    def _unique(self, wished: str) -> str:
        name, number = wished, 1
        while name in self._names:
            number += 1
            name = f"{wished}#{number}"
        self._names.add(name)
        return name


def _timed(function: Callable[..., Any], find: Callable[[], Section]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with find():
            return function(*args, **kwargs)

    return timed
