"""Descriptors that act on an instance, or on the class's default instance when they are used on the class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

__all__ = ["EitherFlag", "on_either"]

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class on_either(Generic[S, P, R]):
    """A method of a class that has a ``default()`` instance, kept in ``_default`` once it is made."""

    def __init__(self, function: Callable[Concatenate[S, P], R]) -> None:
        self._function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def __get__(self, instance: S | None, owner: Any) -> Callable[P, R]:
        # __get__ of a plain function: a bound method, made in C.
        return self._function.__get__(instance or owner._default or owner.default())  # type: ignore[no-any-return]


class EitherFlag:
    """A read-only flag of such a class.

    Args:
        is_set: Reads it from an instance.
    """

    def __init__(self, is_set: Callable[[Any], bool]) -> None:
        self._is_set = is_set

    def __get__(self, instance: object | None, owner: Any) -> bool:
        return self._is_set(instance or owner._default or owner.default())
