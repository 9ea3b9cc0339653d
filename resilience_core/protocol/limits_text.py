"""The text in a cell that says where limits come from. Pure; the standard library only.

A rank leaves one JSON document in its cell whenever its limits change, or it uses a section with a limit for the first
time (never on the hot path)::

    {"mode": "relax", "state_file": "ft_state.json", "names_sections": true,
     "limits": {"section step": [60.0, "learned", 180.0, false, 5.0, 0.64, 812, 60.0, 0, null]},
     "shared": [["configured", "configured", [9.0, 20.0]]]}

Each limit is a row of what ``FIELDS`` names; one that was not learned has the first two of them. What is shared are
the sections without a slot of their own (see :mod:`resilience_core.protocol.cell`): source and basis, with the
limits in seconds
that have both.

The monitor, which imports neither attrs nor torch, turns it into a phrase when it has to explain a verdict, and takes
the basis from it when a learned limit has passed. So every section that has a slot must be in it: only those are
listed, and names are cut as in the cell where they would not fit otherwise; then a name has a list of rows, one of each
section whose name begins so. A kind has the name as it is listed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from resilience_core.protocol.cell_layout import shown_name
from resilience_core.protocol.limit_kinds import FIELDS, basis, section_kind, section_name

__all__ = ["SharedOrigin", "shared_origin", "write_limits"]

_LONGEST_PATH = 200
"""Characters of a state file's path that are kept where it does not fit: the last."""


class SharedOrigin(NamedTuple):
    """What is told of a limit of a section without a slot of its own."""

    source: str
    basis: str | None
    seconds: float


def shared_origin(mode: str, entry: Mapping[str, Any], digits: int = 4) -> SharedOrigin:
    """Return what is told of a limit.

    Args:
        mode: The configuration's ``learned_limits``.
        entry: Of a document of :class:`resilience_core.monitoring.learned_limits.LearnedLimits`.
        digits: How many significant digits of the seconds are told.
    """
    return SharedOrigin(entry["source"], basis(mode, entry), float(f"{entry['seconds']:.{digits}g}"))


def write_limits(document: Mapping[str, Any], size: int) -> str:
    """Write a document of :class:`resilience_core.monitoring.learned_limits.LearnedLimits` as text.

    Where it does not fit into ``size`` bytes, the path of the state file is cut, then names, then digits of the limits
    of sections that share a slot; then these are left out, and limits from the end.
    """
    rows: dict[str, Any] = {kind: _row(entry) for kind, entry in document["limits"].items()}
    shared = _grouped(document)
    text = _text(document, rows, shared)
    if len(text.encode()) > size:
        document = {**document, "state_file": _end_of(document["state_file"])}
        text = _text(document, rows, shared)
    if len(text.encode()) > size:
        rows = _cut(rows)
        text = _text(document, rows, shared)
    for digits in (3, 2):
        if len(text.encode()) > size and not _have_one_in_common(fewer := _grouped(document, digits)):
            shared = fewer
            text = _text(document, rows, shared)
    if len(text.encode()) > size:
        shared = [[source, chosen_by, []] for source, chosen_by, _ in shared]
        text = _text(document, rows, shared)
    while rows and len(text.encode()) > size:
        for kind in list(rows)[-max(1, len(rows) // 8) :]:
            del rows[kind]
        text = _text(document, rows, shared)
    return text


def _text(document: Mapping[str, Any], rows: Mapping[str, Any], shared: list[list[Any]]) -> str:
    known = {key: document[key] for key in ("mode", "state_file", "names_sections")}
    text = json.dumps({**known, "limits": rows, "shared": shared}, separators=(",", ":"), ensure_ascii=False)
    # A path or a name may have what is no UTF-8; JSON reads it back.
    return text.encode(errors="backslashreplace").decode()


def _end_of(path: str | None) -> str | None:
    return path if path is None or len(path) <= _LONGEST_PATH else f"...{path[-_LONGEST_PATH:]}"


def _row(entry: Mapping[str, Any]) -> list[Any]:
    row = [entry[field] for field in FIELDS if field in entry]
    return [float(f"{value:.9g}") if isinstance(value, float) else value for value in row]


def _grouped(document: Mapping[str, Any], digits: int = 4) -> list[list[Any]]:
    groups: dict[tuple[str, str | None], set[float]] = {}
    for entry in document.get("shared", {}).values():
        source, chosen_by, seconds = shared_origin(document["mode"], entry, digits)
        groups.setdefault((source, chosen_by), set()).add(seconds)
    return [[source, chosen_by, sorted(limits)] for (source, chosen_by), limits in groups.items()]


def _have_one_in_common(groups: list[list[Any]]) -> bool:
    limits = [limit for _, _, limits in groups for limit in limits]
    return len(set(limits)) < len(limits)


def _cut(rows: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Cut names as the cell does; what has the same name then becomes a list of rows."""
    found: dict[str, list[list[Any]]] = {}
    for kind, row in rows.items():
        name = section_name(kind)
        found.setdefault(kind if name is None else section_kind(shown_name(name)), []).append(row)
    return {kind: same if len(same) > 1 else same[0] for kind, same in found.items()}
