"""Refuse a record, read from a file or a message, in which a value has not the type that is written of it."""

from __future__ import annotations

import reprlib
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

__all__ = ["check_types"]

_PLAIN = frozenset({bool, float, int, str, NoneType})
_BOUND = 1 << 63
"""Of numbers: no word of ours is longer than 64 bits, and a larger one may not fit into a float."""


class _Fields(NamedTuple):
    """What is compared of one kind of record."""

    plain: dict[str, tuple[type, ...]]
    texts: tuple[str, ...]
    """Names of fields that are tuples of text."""


_known: dict[type, _Fields] = {}


def check_types(record: Any) -> None:
    """Compare the plain fields of a named tuple with their annotations, and tuples of text item by item.

    What else it holds checks its own.

    Raises:
        TypeError: One has another type, or is a number that no clock and no counter shows; the text names it.
    """
    kind = type(record)
    if kind not in _known:  # looking annotations up takes longer than all the rest
        _known[kind] = _fields_of(kind)
    fields = _known[kind]
    for name, allowed in fields.plain.items():
        if type(value := getattr(record, name)) not in allowed or not _is_sound(value):
            raise TypeError(f"{name} is {reprlib.repr(value)}")
    for name in fields.texts:
        value = getattr(record, name)
        if type(value) is not tuple or not all(type(each) is str for each in value):
            raise TypeError(f"{name} is {reprlib.repr(value)}")


def _is_sound(value: object) -> bool:
    """Return whether something is no number, or one that can be reckoned with."""
    return not isinstance(value, (int, float)) or -_BOUND <= value < _BOUND  # not a number (NaN) is neither


def _fields_of(kind: type) -> _Fields:
    hints = get_type_hints(kind)
    allowed = {name: get_args(hint) or (hint,) for name, hint in hints.items()}
    plain = {
        name: (*types, int) if float in types else types  # JSON has one sort of numbers
        for name, types in allowed.items()
        if _PLAIN.issuperset(types)
    }
    return _Fields(plain, tuple(name for name, hint in hints.items() if hint == tuple[str, ...]))
