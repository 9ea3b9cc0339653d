"""The text in a cell that says where limits come from. Pure; the standard library only.

A rank writes one JSON document into its cell whenever its limits change, and when it first uses a section that has a
limit (never on the hot path)::

    {"version": 1, "mode": "relax", "state_file": "ft_state.json", "names_sections": true,
     "limits": {"section step": [[60.0, "learned", 180.0, false, 5.0, 0.64, 812, 60.0, 0, null]]},
     "shared": [["configured", "configured", [9.0, 20.0]]]}

Each limit is a list of rows with the fields of :class:`~resilience_core.protocol.limit_entry.LimitEntry`; the row of a
limit that was not learned has the first two fields. ``shared`` describes the sections without a slot of their own (see
:mod:`resilience_core.protocol.cell`): for each source and basis, the limits in seconds that have both.

The monitor turns the document into a phrase when it explains a verdict, and takes the basis from it when a learned
limit has passed. So every section with a slot must be in the document. Only these sections are listed, and if the
document is too long, names are cut as in the cell. If truncated names collide, the entry holds one row per section.

The reader accepts exactly what the writer of the same version produces. Of anything else it reads nothing: a guess
could end a healthy rank.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from resilience_core.protocol.cell_layout import shown_name
from resilience_core.protocol.limit_entry import LimitEntry, LimitsDocument
from resilience_core.protocol.limit_kinds import (
    CONFIGURED,
    DEFAULT,
    LEARNED,
    MODES,
    MOST_VERDICTS,
    section_kind,
    section_name,
)

__all__ = ["VERSION", "LimitsText", "SharedLimits", "read_limits", "write_limits"]

VERSION = 1
"""Of the text; raised with every change of its keys, or of the fields of a limit."""

_LONGEST_PATH = 200
"""Characters of a state file's path that are kept if the path does not fit: the last ones."""

_LARGEST_SECONDS = 1e30
"""More than the longest learned limit after the most verdicts."""
_MOST_INTERVALS = 2**63


class SharedLimits(NamedTuple):
    """Limits of sections without a slot of their own that have one source and one basis."""

    source: str
    basis: str | None
    seconds: tuple[float, ...]


class LimitsText(NamedTuple):
    """What the text of a cell says."""

    mode: str
    state_file: str | None
    names_sections: bool
    limits: Mapping[str, tuple[LimitEntry, ...]]
    """By kind; several entries for sections whose names are equal where they are cut."""
    shared: tuple[SharedLimits, ...]


# ---- in the rank ----------------------------------------------------------------------------------------

Rows = Mapping[str, list[list[Any]]]


def write_limits(document: LimitsDocument, size: int) -> str:
    """Write a document as text of at most ``size`` bytes.

    If the document does not fit, the path of the state file is cut, then names, then digits of the limits of sections
    that share a slot. If that is not enough, the latter are left out, and then limits from the end.
    """
    rows: dict[str, list[list[Any]]] = {kind: [_row(entry)] for kind, entry in document.limits.items()}
    shared = _grouped(document)
    text = _text(document, rows, shared)
    if len(text.encode()) > size:
        document = document._replace(state_file=_end_of(document.state_file))
        text = _text(document, rows, shared)
    if len(text.encode()) > size:
        rows = _cut(rows)
        text = _text(document, rows, shared)
    for digits in (3, 2):
        if len(text.encode()) > size and not _have_one_in_common(fewer := _grouped(document, digits)):
            shared = fewer
            text = _text(document, rows, shared)
    if len(text.encode()) > size:
        shared = [each._replace(seconds=()) for each in shared]
        text = _text(document, rows, shared)
    while rows and len(text.encode()) > size:
        for kind in list(rows)[-max(1, len(rows) // 8) :]:
            del rows[kind]
        text = _text(document, rows, shared)
    return text


def _text(document: LimitsDocument, rows: Rows, shared: list[SharedLimits]) -> str:
    plain = {
        "version": VERSION,
        "mode": document.mode,
        "state_file": document.state_file,
        "names_sections": document.names_sections,
        "limits": rows,
        "shared": shared,
    }
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    # A path or a name may hold bytes that are no UTF-8; JSON reads the escape back.
    return text.encode(errors="backslashreplace").decode()


def _end_of(path: str | None) -> str | None:
    return path if path is None or len(path) <= _LONGEST_PATH else f"...{path[-_LONGEST_PATH:]}"


def _row(entry: LimitEntry) -> list[Any]:
    row = list(entry if entry.source == LEARNED else entry[:2])
    return [float(f"{value:.9g}") if isinstance(value, float) else value for value in row]


def _grouped(document: LimitsDocument, digits: int = 4) -> list[SharedLimits]:
    groups: dict[tuple[str, str | None], set[float]] = {}
    for entry in document.shared.values():
        source, basis, seconds = entry.shared_origin(document.mode, digits)
        groups.setdefault((source, basis), set()).add(seconds)
    return [SharedLimits(source, basis, tuple(sorted(limits))) for (source, basis), limits in groups.items()]


def _have_one_in_common(groups: list[SharedLimits]) -> bool:
    limits = [limit for group in groups for limit in group.seconds]
    return len(set(limits)) < len(limits)


def _cut(rows: Rows) -> dict[str, list[list[Any]]]:
    """Cut names as the cell does, and put the rows of names that are equal then under one name."""
    found: dict[str, list[list[Any]]] = {}
    for kind, same in rows.items():
        name = section_name(kind)
        found.setdefault(kind if name is None else section_kind(shown_name(name)), []).extend(same)
    return found


# ---- in the monitor -------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=32)
def read_limits(text: str | None) -> LimitsText | None:
    """Read the text of a cell; None if it is not exactly what :func:`write_limits` of this version writes.

    A monitor asks for each deadline of a rank, so the last texts are remembered.
    """
    try:
        return _document(json.loads(text or "null", parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(what: object) -> NoReturn:
    raise ValueError(f"{what!r} is not part of a text of limits")


def _document(plain: object) -> LimitsText:
    if not isinstance(plain, dict) or type(plain.get("version")) is not int or plain["version"] != VERSION:
        _refuse("its version")
    if plain.keys() != {"version", *LimitsText._fields}:
        _refuse("a key")
    mode, names_sections, limits = plain["mode"], plain["names_sections"], plain["limits"]
    if mode not in MODES or not isinstance(names_sections, bool) or not isinstance(limits, dict):
        _refuse("a value")
    path = plain["state_file"]
    return LimitsText(
        mode,
        path if path is None or isinstance(path, str) else _refuse(path),
        names_sections,
        {kind: tuple(map(_entry, _list(rows))) for kind, rows in limits.items()},
        tuple(map(_shared, _list(plain["shared"]))),
    )


def _entry(row: object) -> LimitEntry:
    seconds, source, *learned = _list(row, at_least=2)
    if source in (CONFIGURED, DEFAULT) and not learned:
        return LimitEntry(_number(seconds), source)
    if source != LEARNED or len(learned) != len(LimitEntry._fields) - 2:
        _refuse(row)
    configured, is_default, factor, longest, intervals, floor, relaxed, else_seconds = learned
    return LimitEntry(
        _number(seconds),
        source,
        configured if configured is None else _number(configured),
        is_default if isinstance(is_default, bool) else _refuse(is_default),
        _number(factor),
        _number(longest),
        _count(intervals, _MOST_INTERVALS),
        _number(floor),
        _count(relaxed, MOST_VERDICTS),
        else_seconds if else_seconds is None else _number(else_seconds),
    )


def _shared(group: object) -> SharedLimits:
    row = _list(group)
    if len(row) != 3 or row[0] not in (LEARNED, CONFIGURED, DEFAULT) or row[1] not in (LEARNED, CONFIGURED, None):
        _refuse(group)
    return SharedLimits(row[0], row[1], tuple(map(_number, _list(row[2]))))


def _list(value: object, at_least: int = 0) -> list[Any]:
    return value if isinstance(value, list) and len(value) >= at_least else _refuse(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST_SECONDS:
        _refuse("a number")
    return float(value)


def _count(value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        _refuse("a count")
    return value
