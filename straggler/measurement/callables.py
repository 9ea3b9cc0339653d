"""CallableId and the wrapping of callables, for code that cannot be edited.

A second :meth:`CallableWrapper.wrap` adds to the first, and everything that was wrapped is restored exactly: an
attribute that an object had of its own is put back, one that it had from its class is uncovered again. What somebody
else has put in the place meanwhile stays, and the replacement beneath it only hands calls on from then on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import attrs

from resilience_core.errors import ConfigError
from resilience_core.suggestions import suggestion
from straggler.measurement.timed import (
    Find,
    as_function,
    give_back,
    timed_attribute,
    timed_construction,
    timed_for_all,
    timed_for_some,
)

__all__ = ["CallableId", "CallableWrapper", "checked_ids"]

_MISSING = object()
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
"""Flags of types in C, Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_IMMUTABLETYPE."""


@attrs.frozen
class CallableId:
    """Names one callable to be timed: the attribute ``name`` of ``obj``.

    The last three exist because nvidia-resiliency-ext has them. It never reads them, and neither does anything here:
    every call is timed, whatever its arguments are, and they do not tell two callables apart.

    Args:
        obj: A module, a class or any object.
        name: The attribute that is called. Where it is a class, its ``__init__`` is timed.
        arg_filter_fn: Without effect.
        extra_args_fn: Without effect.
        ignored_args: Without effect; nvidia-resiliency-ext's examples give ``("self",)``.

    Raises:
        ConfigError: The object has no such attribute, or it cannot be called.
    """

    obj: Any
    name: str
    arg_filter_fn: Callable[[inspect.BoundArguments], bool] | None = attrs.field(default=None, eq=False, repr=False)
    extra_args_fn: Callable[[inspect.BoundArguments], dict[str, Any]] | None = attrs.field(
        default=None, eq=False, repr=False
    )
    ignored_args: tuple[str, ...] | None = attrs.field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigError(f'CallableId.name is {self.name!r}; expected the name of an attribute, such as "forward"')
        found = getattr(self.obj, self.name, _MISSING)
        if found is _MISSING:
            raise ConfigError(
                f"{_owner(self.obj)} has no attribute {self.name!r}{suggestion(self.name, dir(self.obj))}"
            )
        if not callable(found):
            raise ConfigError(f"{_owner(self.obj)}.{self.name} is {type(found).__name__}, which cannot be called")

    def __str__(self) -> str:
        return f"{_owner(self.obj)}.{self.name}"


def _owner(obj: Any) -> str:
    if isinstance(obj, ModuleType):
        return obj.__name__
    if isinstance(obj, type):
        return f"{obj.__module__}.{obj.__name__}"
    return type(obj).__name__


def checked_ids(call: str, given: Iterable[CallableId]) -> list[CallableId]:
    """Return the callables that a call was given.

    Args:
        call: Its name, for the message.
        given: What it was given.

    Raises:
        ConfigError: It is no list of them.
    """
    if isinstance(given, (CallableId, str, bytes)) or not isinstance(given, Iterable):
        raise ConfigError(f"{call} takes a list, as in [CallableId(model, 'forward')], not {given!r}")
    listed = list(given)
    for one in listed:
        if not isinstance(one, CallableId):
            raise ConfigError(f"{call} takes CallableId(obj, name), not {one!r}")
    return listed


@attrs.frozen(eq=False)
class _Replaced:
    """An attribute that was replaced.

    Args:
        owner: Whose attribute: a class, a module or another object.
        name: Of the attribute.
        own: What the owner itself had there, ``_MISSING`` where it had it from elsewhere.
        replacement: What is there now.
        finds: The sections of what is timed, by the ``id`` of the object; empty: nothing is any more.
        is_for_some: It is a class in which only calls with some objects are timed.
    """

    owner: Any
    name: str
    own: Any
    replacement: Any
    finds: dict[int, Find]
    is_for_some: bool = False

    @property
    def is_there(self) -> bool:
        """Return whether nobody has put something else in its place."""
        return vars(self.owner).get(self.name, _MISSING) is self.replacement

    def put(self, value: Any) -> None:
        """Put something in its place, ``_MISSING``: nothing."""
        if isinstance(self.owner, type):  # its __dict__ cannot be written to
            delattr(self.owner, self.name) if value is _MISSING else setattr(self.owner, self.name, value)
        elif value is _MISSING:
            del vars(self.owner)[self.name]
        else:
            vars(self.owner)[self.name] = value


_covered: dict[int, _Replaced] = {}
"""By the ``id`` of the replacement: ended, and not yet taken away, because something else was put over it."""


class CallableWrapper:
    """Puts sections around callables, and takes them off again."""

    def __init__(self, finder_of: Callable[[str, bool], Find]) -> None:
        self._finder_of = finder_of
        self._replaced: list[_Replaced] = []
        self._wrapped: list[tuple[Any, str]] = []
        self._names: set[str] = set()

    def wrap(self, callable_ids: Iterable[CallableId], profile_cuda: bool = True) -> None:
        """Time every call of these from now on; one that is wrapped already stays as it is.

        Nothing is timed while ``torch.compile`` traces, nor in what it has compiled.

        Args:
            callable_ids: What to wrap. Each becomes a section called after its object's type and its own
                name; a second object of the same type gets ``#2``, so that their times are not mixed.
            profile_cuda: Time their CUDA work too, where a probe can.

        Raises:
            ConfigError: Something else than a list of :class:`CallableId` was given, or one of them cannot be
                wrapped; nothing has been wrapped by this call then.
        """
        listed = checked_ids("wrap_callables", callable_ids)
        before = len(self._replaced), len(self._wrapped), set(self._names)
        for callable_id in listed:
            if self._is_wrapped(callable_id):
                continue
            try:
                self._wrap(callable_id, profile_cuda)
            except (ConfigError, TypeError, AttributeError) as error:
                self._undo(*before)
                raise ConfigError(
                    f"wrap_callables cannot replace {callable_id}: {error}; leave it out, or wrap a method instead"
                ) from None

    def restore(self) -> None:
        """Restore every original."""
        self._undo(0, 0, set())

    def _undo(self, replaced: int, wrapped: int, names: set[str]) -> None:
        for obj, name in self._wrapped[wrapped:]:
            for change in self._replaced:
                if change.name == name:
                    change.finds.pop(id(obj), None)
        for change in reversed(self._replaced[replaced:]):
            change.finds.clear()
            _take_away(change)
        del self._replaced[replaced:], self._wrapped[wrapped:]
        self._names = names

    def _is_wrapped(self, callable_id: CallableId) -> bool:
        return any(obj is callable_id.obj and name == callable_id.name for obj, name in self._wrapped)

    def _wrap(self, callable_id: CallableId, profile_cuda: bool) -> None:
        obj, name = callable_id.obj, callable_id.name
        change = _of_class_named(obj, name) or self._in_class_of(obj, name) or _in_itself(obj, name)
        change.finds[id(obj)] = self._finder_of(self._unique(str(callable_id)), profile_cuda)
        if change not in self._replaced:
            change.put(change.replacement)
            self._replaced.append(change)
        self._wrapped.append((obj, name))

    def _in_class_of(self, obj: Any, name: str) -> _Replaced | None:
        """Return how to time a method that an object has from its class; None for anything else."""
        owner = type(obj)
        if isinstance(obj, (type, ModuleType)) or name in _own(obj) or _is_immutable(owner):
            return None
        raw = _of_class(owner, name)
        if isinstance(raw, (staticmethod, classmethod)) or not hasattr(raw, "__get__") or _is_computed(raw):
            return None
        for change in self._replaced:
            if change.is_for_some and change.owner is owner and change.replacement is raw:
                return change
        finds: dict[int, Find] = {}
        own = vars(owner).get(name, _MISSING)
        return _Replaced(owner, name, own, timed_for_some(as_function(raw), finds), finds, is_for_some=True)

    def _unique(self, wished: str) -> str:
        name, number = wished, 1
        while name in self._names:
            number += 1
            name = f"{wished}#{number}"
        self._names.add(name)
        return name


def _of_class_named(obj: Any, name: str) -> _Replaced | None:
    """Return how to time the making of a class's objects, None for anything else.

    The class itself stays where it is: with something else there, ``isinstance``, ``pickle`` and subclasses fail.
    """
    made = getattr(obj, name)
    if not issubclass(type(made), type):
        return None
    init = _of_class(made, "__init__")
    if not isinstance(init, FunctionType):
        raise ConfigError("it is a class without an __init__ in Python, which is what would be timed")
    finds: dict[int, Find] = {}
    own = vars(made).get("__init__", _MISSING)
    return _Replaced(made, "__init__", own, timed_construction(init, finds, obj, made), finds)


def _in_itself(obj: Any, name: str) -> _Replaced:
    """Return how to time what a class or module has, or what any object has of its own."""
    finds: dict[int, Find] = {}
    replacement: Any
    if isinstance(obj, type):
        raw = _of_class(obj, name)
        if isinstance(raw, (staticmethod, classmethod)):
            replacement = type(raw)(timed_for_all(raw.__func__, finds, obj))
        elif hasattr(raw, "__get__"):
            replacement = timed_for_all(as_function(raw), finds, obj)
        else:
            replacement = timed_attribute(getattr(obj, name), finds, obj)
    elif not hasattr(obj, "__dict__"):
        raise ConfigError("the object has no __dict__")
    elif _is_computed(_of_class(type(obj), name)):
        raise ConfigError("it is a property, and what that returns is no attribute")
    elif isinstance(obj, ModuleType) and isinstance(getattr(obj, name), (FunctionType, BuiltinFunctionType)):
        replacement = timed_for_all(getattr(obj, name), finds, obj)
    else:
        replacement = timed_attribute(getattr(obj, name), finds, obj)
    return _Replaced(obj, name, _own(obj).get(name, _MISSING), replacement, finds)


def _take_away(change: _Replaced) -> None:
    give_back(change.replacement)
    if not change.is_there:
        if change.name in _own(change.owner):
            _covered[id(change.replacement)] = change
        return
    own = change.own
    while (beneath := _covered.pop(id(own), None)) is not None:
        own = beneath.own
    change.put(own)


def _own(obj: Any) -> Mapping[str, Any]:
    return vars(obj) if hasattr(obj, "__dict__") else {}


def _of_class(owner: type, name: str) -> Any:
    """Return what a class or one above it has there, without asking it to be bound."""
    return next((vars(each)[name] for each in owner.__mro__ if name in vars(each)), _MISSING)


def _is_computed(raw: Any) -> bool:
    """Return whether what is in a class goes before what an object has of its own, as a property does."""
    return hasattr(raw, "__set__") or hasattr(raw, "__delete__")


def _is_immutable(owner: type) -> bool:
    return not owner.__flags__ & _HEAP_TYPE or bool(owner.__flags__ & _IMMUTABLE_TYPE)
