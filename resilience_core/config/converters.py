"""Raw values from YAML, the command line or Python code -> checked values of the configuration.

Each function takes whatever a person wrote and returns the value to use, or raises ``ValueError`` with the
*fix* alone; the caller knows the place and the value and puts them in front. Text is accepted wherever it can
mean only one thing, because the command line has nothing but text (and YAML 1.1 reads ``6e2`` as text).

The type of a parameter is what type checkers let a user pass to the field. A file may hold anything, so other
types are refused at run time, too.
"""

from __future__ import annotations

import logging
import math
import os
import re
import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from resilience_core.protocol.limit_kinds import MODES
from resilience_core.suggestions import nearest

__all__ = [
    "Entry",
    "boolean",
    "count",
    "duration",
    "exit_code",
    "factor",
    "folder",
    "learning",
    "level",
    "modules",
    "one_of",
    "optional_count",
    "path",
    "positive_count",
    "sections",
    "start_method",
    "termination_signal",
    "timeout",
]

_NOTHING = frozenset({"", "null", "none", "~"})
_UNITS = {"ms": 0.001, "s": 1, "sec": 1, "secs": 1, "m": 60, "min": 60, "mins": 60, "h": 3600, "d": 86400}
_WITH_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_SECTION_NAME = re.compile(r"[^\s,:=;]+")
_NO_LIMIT = "write null for no limit"

# A deadline is a 64-bit count of nanoseconds, and its largest value means "without limit".
_LONGEST_SECONDS = 1e9
_HIGHEST_COUNT = 10**9

# None of these signals ends a process by default, so a hung rank would survive its termination.
_HARMLESS = frozenset(
    {"SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH", "SIGCLD"}
)


@attrs.frozen
class Entry:
    """One setting as a person wrote it.

    Args:
        key: The field's name, as written.
        value: The raw value.
        place: Where it stands, as ``ft.yaml line 3``.
        written: How it stands there, if the value is no text; for errors.
    """

    key: str
    value: Any
    place: str
    written: str | None = None


def timeout(value: float | str | None) -> float | None:
    """Seconds above zero; ``null``, ``none`` and nothing at all are no limit."""
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    seconds = _number(value, f"give seconds as a number, for example 600, or {_NO_LIMIT}")
    if seconds <= 0:
        raise ValueError(f"a timeout must be above 0 seconds; {_NO_LIMIT}")
    if seconds > _LONGEST_SECONDS:
        raise ValueError(f"a timeout is at most {_LONGEST_SECONDS:.0f} seconds; {_NO_LIMIT}")
    return seconds


def duration(value: float | str, least: float = 0, most: float = _LONGEST_SECONDS) -> float:
    """Read seconds, zero or more unless there are other bounds."""
    if not least <= (seconds := _number(value, "give seconds as a number, for example 2.5")) <= most:
        raise ValueError(f"must be {least:g} to {most:.0f} seconds")
    return seconds


def factor(value: float | str) -> float:
    """Read a multiple, 1 or more: below 1 every healthy step would be overdue."""
    ratio = _number(value, "give a number of 1 or more, for example 5", unit="")
    if ratio < 1:
        raise ValueError("must be 1 or more: a smaller factor condemns steps that are no slower than usual")
    if ratio > _LONGEST_SECONDS:
        raise ValueError(f"must be at most {_LONGEST_SECONDS:.0f}")
    return ratio


def count(value: float | str) -> int:
    """Read a whole number, 0 or more."""
    return _count(value, 0)


def positive_count(value: float | str) -> int:
    """Read a whole number, 1 or more."""
    return _count(value, 1)


def optional_count(value: float | str | None) -> int | None:
    """As :func:`positive_count`; ``null`` and nothing at all are None."""
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    return _count(value, 1)


def _count(value: float | str, at_least: int, at_most: int = _HIGHEST_COUNT) -> int:
    number = _number(value, f"give a whole number of {at_least} or more", unit="")
    if number != int(number) or number < at_least:
        raise ValueError(f"must be a whole number of {at_least} or more")
    if number > at_most:
        raise ValueError(f"must be at most {at_most}")
    return int(number)


def exit_code(value: float | str) -> int:
    """Read the exit code of a process that has failed, 1 to 255."""
    return _count(value, 1, 255)


def boolean(value: bool | str) -> bool:
    """Read ``true`` or ``false``, also ``yes``, ``no``, ``on``, ``off``, ``1`` and ``0`` as text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in {"true", "yes", "on", "1"}:
            return True
        if word in {"false", "no", "off", "0"}:
            return False
    raise ValueError("give true or false")


def termination_signal(value: float | str) -> signal.Signals:
    """Read a signal by name (``SIGTERM``, ``TERM``) or number, one that ends a process by default."""
    names = {s.name: s for s in signal.Signals}
    found: signal.Signals | None = None
    if isinstance(value, str) and not value.strip().isdigit():
        word = value.strip().upper()
        found = names.get(word) or names.get(f"SIG{word}")
        if found is None:
            wanted = word if word.startswith("SIG") else f"SIG{word}"
            raise ValueError(f"not a signal of this system{nearest(wanted, names)}")
    else:
        number = _number(value, "give a signal by name or number, for example SIGKILL", unit="")
        try:
            found = signal.Signals(number)  # type: ignore[arg-type]  # 9.0 is 9, and 9.5 is refused
        except ValueError:
            raise ValueError("not a signal's number on this system; give a name, for example SIGKILL") from None
    if found.name in _HARMLESS:
        raise ValueError(f"{found.name} does not end a process; SIGKILL always does, SIGTERM may be handled")
    return found


_LEVEL = "give a level of Python's logging by name, for example DEBUG or INFO, or as a whole number of 0 or more"


def level(value: float | str) -> int:
    """Read a level of the logging module, by name or number, as its number.

    0 (``NOTSET``) becomes DEBUG: to a logger it means "as its parent", and to the monitor it would mean everything.
    """
    names = {"DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL", "NOTSET"}
    if isinstance(value, str) and not value.strip().isdigit():
        word = value.strip().upper()
        if word == "DBG":  # nvidia-resiliency-ext's short form
            word = "DEBUG"
        if word not in names:
            raise ValueError(f"no whole number of 0 or more, and not a level of Python's logging{nearest(word, names)}")
        return int(getattr(logging, word)) or logging.DEBUG
    number = _number(value, _LEVEL)
    if number != int(number) or not 0 <= number <= _HIGHEST_COUNT:
        raise ValueError(_LEVEL)
    return int(number) or logging.DEBUG


def path(value: str | os.PathLike[str] | None) -> str | None:
    """Read a file's path; ``null`` and nothing are none."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    if not isinstance(value, str):
        raise ValueError("give a path as text")
    if "\0" in value:
        raise ValueError("a path holds no null character")
    return value


def folder(value: str | os.PathLike[str]) -> str:
    """Read a folder's path; there must be one."""
    checked = path(value)
    if checked is None:
        raise ValueError("name a folder")
    return checked


def learning(value: str | Literal[False]) -> str:
    """Read what a learned limit may do: ``off``, ``relax`` or ``replace``."""
    if value is False:  # as YAML 1.1 reads the word without quotation marks
        return "off"
    return one_of(value, MODES)


def start_method(value: str) -> str:
    """Read how workers are started: ``warm`` or ``spawn``."""
    return one_of(value, ("warm", "spawn"))


def one_of(value: object, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if isinstance(value, str) and value.strip().lower() in choices:
        return value.strip().lower()
    raise ValueError(f"must be one of: {', '.join(choices)}")


def modules(value: str | list[str] | tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Read module names as a list or as text with commas between; ``null`` and nothing are none."""
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
        raise ValueError("give module names with commas between, for example numpy,torch.distributed")
    stripped = tuple(n.strip() for n in names)
    for name in stripped:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is not the name of a module, as in 'import {name or 'numpy'}'")
    return stripped


def sections(value: Mapping[str, float | str | None] | str | None) -> Mapping[str, float | None]:
    """Section names to timeouts: a mapping, or text such as ``setup:600,step:180,checkpointing:``."""
    if value is None:
        return MappingProxyType({})
    pairs = _pairs(value) if isinstance(value, str) else value
    if not isinstance(pairs, Mapping):
        raise ValueError("give each section its seconds, for example setup:600,step:180")
    timeouts: dict[str, float | None] = {}
    for name, limit in pairs.items():
        if not isinstance(name, str) or not _SECTION_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a section's name: text without spaces, commas, colons")
        try:
            timeouts[name] = timeout(limit)
        except ValueError as error:
            raise ValueError(f"section '{name}' is {limit!r}: {error}") from None
    return MappingProxyType(timeouts)


def _pairs(text: str) -> dict[str, str]:
    if text.strip().lower() in _NOTHING:
        return {}
    pairs: dict[str, str] = {}
    for item in text.split(","):
        name, colon, limit = item.partition(":")
        if not colon:
            raise ValueError(f"{item!r} lacks its seconds, for example {name.partition('=')[0].strip() or 'step'}:180")
        if name.strip() in pairs:
            raise ValueError(f"section '{name.strip()}' stands there twice")
        pairs[name.strip()] = limit
    return pairs


def _number(value: object, fix: str, unit: str = "seconds") -> float:
    # A bool is an int to Python, but nobody means one second by `true`.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or (isinstance(value, str) and "_" in value):
        raise ValueError(fix)  # with 1_0, which Python would take for 10
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"too large; {fix}") from None
    except ValueError:
        with_unit = _WITH_UNIT.fullmatch(str(value))
        if with_unit and with_unit[2].lower() in _UNITS:
            plain = f"{float(with_unit[1]) * _UNITS[with_unit[2].lower()]:g}"
            meant = f"{unit} are meant: {plain}" if unit else f"a plain number is meant; {fix}"
            raise ValueError(f"no unit is written, {meant}") from None
        raise ValueError(fix) from None
    if not math.isfinite(number):
        raise ValueError(fix)
    return number
