"""What takes the place of a callable and times it, without hindering those who copy, save or compile its owner.

A method that is to be timed for one object is replaced in the object's class, and only calls with that object are
timed: the object itself holds nothing of ours, so its copies compute with their own state, and it is pickled as ever.
What an object has of its own is replaced by a :class:`TimedAttribute`, which is copied and pickled as the original.
Of a class that is named its ``__init__`` is timed, which leaves the class itself what it is.

``torch.jit.script`` reads the source of the original (``__wrapped__``), and looks its names up where the replacement
says; so that has the original's globals. While ``torch.compile`` traces, the original is called and nothing is timed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import operator
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

from straggler.measurement.section import Section
from straggler.measurement.timed_steps import timed_steps

__all__ = [
    "Find",
    "as_function",
    "give_back",
    "TimedAttribute",
    "timed_attribute",
    "timed_construction",
    "timed_for_all",
    "timed_for_some",
]

Find = Callable[[], Section]
"""Returns the section of now: that of training, or that of an evaluation."""

_TAKE_THE_OBJECT = (type(functools.lru_cache(len)), MethodDescriptorType, WrapperDescriptorType)
"""Types in C whose objects are called with the object first, as functions are."""

_OF_A_CACHE = ("cache_info", "cache_clear")
"""Of :func:`functools.lru_cache`."""


def timed_for_some(function: Callable[..., Any], finds: Mapping[int, Find]) -> Callable[..., Any]:
    """Return a function for a class in place of one of its methods.

    Args:
        function: The method, called with the object first.
        finds: The sections of the objects that are timed, by ``id``; it may change.
    """
    is_compiling = _is_compiling()
    steps = timed_steps(function, finds, None, is_compiling)
    if steps is not None:
        return steps

    def timed(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(self, *args, **kwargs)
        find = finds.get(id(self))
        if find is None:
            return function(self, *args, **kwargs)
        with find():
            return function(self, *args, **kwargs)

    return _like(timed, function)


def timed_for_all(function: Callable[..., Any], finds: Mapping[int, Find], owner: object) -> Callable[..., Any]:
    """Return a function that is timed whatever it is called with.

    Args:
        function: The original.
        finds: Has the section at the owner's ``id``; without it nothing is timed any more.
        owner: The module or class.
    """
    is_compiling, key = _is_compiling(), id(owner)
    steps = timed_steps(function, finds, key, is_compiling)
    if steps is not None:
        return steps

    def timed(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        find = finds.get(key)
        if find is None:
            return function(*args, **kwargs)
        with find():
            return function(*args, **kwargs)

    return _like(timed, function)


def timed_construction(init: FunctionType, finds: Mapping[int, Find], owner: object, made: type) -> Callable[..., Any]:
    """Return a function for a class in place of its ``__init__``; that of a subclass's object is not timed.

    Args:
        init: The original.
        finds: Has the section at the owner's ``id``; without it nothing is timed any more.
        owner: What has the class as an attribute.
        made: The class.
    """
    is_compiling, key = _is_compiling(), id(owner)

    def timed(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or type(self) is not made:
            return init(self, *args, **kwargs)
        find = finds.get(key)
        if find is None:
            return init(self, *args, **kwargs)
        with find():
            return init(self, *args, **kwargs)

    return _like(timed, init)


def timed_attribute(original: Callable[..., Any], finds: Mapping[int, Find], owner: object) -> TimedAttribute:
    """Return what takes the place of a callable in an object's own ``__dict__``.

    Args:
        original: What it stands for.
        finds: Has the section at the owner's ``id``; without it nothing is timed any more.
        owner: The object.
    """
    steps = timed_steps(original, finds, id(owner), _is_compiling())
    return TimedAttribute(original, finds, owner) if steps is None else _TimedSteps(original, finds, owner, steps)


class TimedAttribute:
    """A callable in an object's own ``__dict__`` that is timed; everything but calling it is left to the original.

    Args:
        original: What it stands for.
        finds: Has the section at the owner's ``id``; without it nothing is timed any more.
        owner: The object.
    """

    def __init__(self, original: Callable[..., Any], finds: Mapping[int, Find], owner: object) -> None:
        own = {"__wrapped__": original, "_finds": finds, "_is_compiling": _is_compiling(), "_key": id(owner)}
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original, and time it."""
        if self._is_compiling():
            return self.__wrapped__(*args, **kwargs)
        find = self._finds.get(self._key)
        if find is None:
            return self.__wrapped__(*args, **kwargs)
        with find():
            return self.__wrapped__(*args, **kwargs)

    # So that isinstance and inspect take it for the original, which torch.jit.script asks.
    @property  # type: ignore[misc]  # object has a setter
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        return type(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # while it is being made
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__wrapped__, name, value)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __copy__(self) -> Any:
        return copy.copy(self.__wrapped__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__wrapped__, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # What is read back is the original itself, made by the standard library alone.
        return operator.getitem, ((self.__wrapped__,), 0)


class _TimedSteps(TimedAttribute):
    """One that is timed in steps."""

    def __init__(
        self, original: Callable[..., Any], finds: Mapping[int, Find], owner: object, steps: Callable[..., Any]
    ) -> None:
        super().__init__(original, finds, owner)
        object.__setattr__(self, "_steps", steps)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what takes its steps."""
        return self._steps(*args, **kwargs)


def as_function(raw: Any) -> Callable[..., Any]:
    """Return what a class has there as a function that takes the object first."""
    if isinstance(raw, (FunctionType, *_TAKE_THE_OBJECT)):
        return raw

    def bound(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return raw.__get__(self, type(self))(*args, **kwargs)

    return functools.update_wrapper(bound, raw)


def _is_compiling() -> Callable[[], bool]:
    import torch

    return torch.compiler.is_compiling


def _like(timed: FunctionType | Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function under the name of the original, that finds the original's names as its globals.

    It gets no ``__defaults__``: with more of them than it has arguments, ``self`` would have one, too. What asks for
    the signature finds them at ``__wrapped__``.
    """
    if isinstance(function, FunctionType) and isinstance(timed, FunctionType):
        timed = FunctionType(timed.__code__, _names(function), timed.__name__, None, timed.__closure__)
    made = functools.update_wrapper(timed, function)
    for name in _OF_A_CACHE:
        if hasattr(function, name):  # methods of the object in C, so its __dict__ does not have them
            setattr(made, name, getattr(function, name))
    _at_first[made] = _attributes_of(made)
    return made


def give_back(replacement: object) -> None:
    """Give the original what was set on the function in its place, as by one that counts its calls."""
    timed = getattr(replacement, "__func__", replacement)  # of a static or class method
    original = getattr(timed, "__wrapped__", None)
    if not isinstance(timed, FunctionType) or not isinstance(original, FunctionType):
        return
    before, now = _at_first.get(timed, {}), _attributes_of(timed)
    vars(original).update({name: value for name, value in now.items() if value is not before.get(name, now)})
    for name in before.keys() - now.keys():
        vars(original).pop(name, None)


def _attributes_of(function: object) -> dict[str, Any]:
    return {name: value for name, value in vars(function).items() if name not in ("__wrapped__", *_OF_A_CACHE)}


_at_first: weakref.WeakKeyDictionary[Callable[..., Any], dict[str, Any]] = weakref.WeakKeyDictionary()
"""The attributes that a function which replaces another one had from that."""


def _names(function: FunctionType) -> dict[str, Any]:
    """Return the names that a function sees; the globals themselves, unless others must be added to them."""
    free = function.__code__.co_freevars
    if not free:
        return function.__globals__
    # Only what it uses: the rest would be kept alive.
    used = {"__builtins__", "__name__", *_used(function.__code__)}
    source = inspect.unwrap(function)
    used |= _used(source.__code__) if isinstance(source, FunctionType) else set()
    names = {name: value for name, value in function.__globals__.items() if name in used}
    for name, cell in zip(free, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not yet assigned
            names[name] = cell.cell_contents
    return names


def _used(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_used, inner))
