"""Where a limit comes from, in words, and what switches it off. Pure; the standard library only.

A rank leaves one JSON document in its cell whenever its limits change, or it uses a section with a limit for the first
time (never on the hot path)::

    {"mode": "relax", "state_file": "ft_state.json", "names_sections": true,
     "limits": {"section step": [60.0, "learned", 180.0, false, 5.0, 0.64, 812, 60.0, 0, null]},
     "shared": [["configured", "configured", [9.0, 20.0]]]}

Each limit is a row of what ``_FIELDS`` names; one that was not learned has the first two of them. What is shared are
the sections without a slot of their own (see :mod:`resilience_core.monitoring.cell`): source and basis, with the
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

from resilience_core.monitoring.cell import SHARED_SECTION, shown_name

__all__ = [
    "CONFIGURED",
    "DEFAULT",
    "FIRST_HEARTBEAT",
    "HEARTBEAT",
    "LEARNED",
    "OUT_OF_SECTION",
    "RELAXATION",
    "LimitOrigin",
    "SharedOrigin",
    "option_for",
    "origin_of",
    "section_kind",
    "section_name",
    "shared_origin",
    "undercutting",
    "write_limits",
]

FIRST_HEARTBEAT = "first heartbeat"
HEARTBEAT = "heartbeat"
OUT_OF_SECTION = "out of section"
_SECTION = "section "
_FIELDS = (
    "seconds",
    "source",
    "configured",
    "is_default",
    "factor",
    "longest",
    "intervals",
    "floor",
    "relaxed",
    "else_seconds",
)

_LONGEST_PATH = 200
"""Characters of a state file's path that are kept where it does not fit: the last."""

LEARNED = "learned"
CONFIGURED = "configured"
DEFAULT = "default"

RELAXATION = 4
"""How many times longer a learned limit becomes with each verdict that it leads to."""


class LimitOrigin(NamedTuple):
    """Where one limit comes from."""

    kind: str
    """Which limit: ``section NAME``, ``out of section``, ``first heartbeat``, ``heartbeat`` or ``startup``."""
    source: str
    """``learned``, ``configured`` or ``default``."""
    phrase: str
    """For people: what it was made of, and what switches it off."""
    advice: str
    """What to do when the work was legitimately slow; only what has an effect."""
    basis: str | None = None
    """``configured`` where a person has chosen it, or one that learning has lengthened; ``learned`` where nobody has;
    None for a default, and where learned limits are to undercut configured ones."""


class SharedOrigin(NamedTuple):
    """What is told of a limit of a section without a slot of its own."""

    source: str
    basis: str | None
    seconds: float


def shared_origin(mode: str, entry: Mapping[str, Any], digits: int = 4) -> SharedOrigin:
    """What is told of a limit of :class:`resilience_core.monitoring.learned_limits.LearnedLimits`, with so many
    digits."""
    return SharedOrigin(entry["source"], _basis(mode, entry), float(f"{entry['seconds']:.{digits}g}"))


def section_kind(name: str) -> str:
    """The kind of a section's limit."""
    return _SECTION + name


def section_name(kind: str) -> str | None:
    """The section of a kind of limit; None of another kind."""
    return kind.removeprefix(_SECTION) if kind.startswith(_SECTION) else None


def option_for(kind: str) -> str:
    """The option that sets a limit, with a placeholder for its value."""
    if kind.startswith(_SECTION):
        return f"--ft-rank-section-timeouts {kind.removeprefix(_SECTION)}:SECONDS"
    return {
        FIRST_HEARTBEAT: "--ft-initial-rank-heartbeat-timeout SECONDS",
        HEARTBEAT: "--ft-rank-heartbeat-timeout SECONDS",
        OUT_OF_SECTION: "--ft-rank-out-of-section-timeout SECONDS",
    }.get(kind, "--ft-rank-startup-timeout SECONDS")


def write_limits(document: Mapping[str, Any], size: int) -> str:
    """Write a document of :class:`resilience_core.monitoring.learned_limits.LearnedLimits` as text of at most
    ``size`` bytes.

    Where it does not fit, the path of the state file is cut, then names, then digits of the limits of sections that
    share a slot; then these are left out, and limits from the end.
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
        shared = [[source, basis, []] for source, basis, _ in shared]
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
    row = [entry[field] for field in _FIELDS if field in entry]
    return [float(f"{value:.9g}") if isinstance(value, float) else value for value in row]


def _grouped(document: Mapping[str, Any], digits: int = 4) -> list[list[Any]]:
    groups: dict[tuple[str, str | None], set[float]] = {}
    for entry in document.get("shared", {}).values():
        source, basis, seconds = shared_origin(document["mode"], entry, digits)
        groups.setdefault((source, basis), set()).add(seconds)
    return [[source, basis, sorted(limits)] for (source, basis), limits in groups.items()]


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


def undercutting(document: Mapping[str, Any]) -> str:
    """The learned limits of a document that are shorter than what somebody has configured, in words; empty: none."""
    return ", ".join(
        f"{kind} {_short(entry['seconds'])} s (configured {entry['configured']:g} s)"
        for kind, entry in document["limits"].items()
        if entry["source"] == LEARNED
        and not entry["is_default"]
        and entry["configured"] is not None
        and entry["seconds"] < entry["configured"]
    )


def origin_of(
    text: str | None, cause: str, section: str | None, seconds: float, has_beaten: bool | None = None
) -> LimitOrigin | None:
    """Where the limit of a verdict comes from.

    Args:
        text: What the rank has left in its cell; None where it has left nothing that can be read.
        cause: The verdict's: ``section``, ``heartbeat`` or ``out of section``.
        section: The section's name, as the cell has it.
        seconds: The limit that was in force; tells long names apart that begin alike.
        has_beaten: Whether the rank has sent a heartbeat, which tells the two limits of heartbeats apart; where that is
            not known, the seconds do.

    Returns:
        None where the rank has said nothing about it.
    """
    try:
        document = json.loads(text or "")
        if cause == "section" and section == SHARED_SECTION:
            return _origin_of_shared(document["shared"], seconds)
        limits = document["limits"]
        if cause == "section":
            kinds = [k for k in limits if k.startswith(_SECTION) and shown_name(k.removeprefix(_SECTION)) == section]
        else:
            kinds = [k for k in (_heartbeat_kinds(has_beaten) if cause == HEARTBEAT else [cause]) if k in limits]
        known = [(kind, entry) for kind in kinds for entry in _entries(limits[kind])]
        if not known:
            return None
        kind, entry = min(known, key=lambda each: abs(each[1]["seconds"] - seconds))
        return LimitOrigin(
            kind,
            entry["source"],
            _changed(entry, seconds) + _phrase(document, kind, entry),
            _advice(document, kind, entry),
            _basis(document["mode"], entry),
        )
    except (AttributeError, KeyError, TypeError, ValueError):  # cut, or of another version
        return None


def _entries(row: list[Any]) -> list[dict[str, Any]]:
    rows = row if isinstance(row[0], list) else [row]
    return [dict(zip(_FIELDS, each, strict=False)) for each in rows]


def _origin_of_shared(groups: list[list[Any]], seconds: float) -> LimitOrigin | None:
    """Of one of the sections that share a slot: nobody knows which, but its limit tells learned from configured."""
    if not groups or (len(groups) > 1 and not all(limits for _, _, limits in groups)):
        return None
    nearest = [min((abs(each - seconds) for each in limits), default=0.0) for _, _, limits in groups]
    source, basis, _ = groups[nearest.index(min(nearest))]
    is_learned = source == LEARNED
    switch = "--ft-learned-limits off" if is_learned else option_for(section_kind("")).split(" ")[0]
    return LimitOrigin(
        section_kind(SHARED_SECTION),
        source,
        f"{source}; {switch} switches it off" if is_learned else f"{source}: {switch}",
        f"If this is legitimately slow, switch learned limits off: {switch}" if is_learned else "",
        basis,
    )


def _heartbeat_kinds(has_beaten: bool | None) -> list[str]:
    if has_beaten is None:
        return [FIRST_HEARTBEAT, HEARTBEAT]
    return [HEARTBEAT if has_beaten else FIRST_HEARTBEAT]


def _changed(entry: Mapping[str, Any], seconds: float) -> str:
    """What to say of a deadline that another limit than the present one has set, or this one later than the interval
    began, as when ``load_state_dict`` follows a call that has begun it."""
    if abs(entry["seconds"] - seconds) <= max(0.001, 0.01 * entry["seconds"]):
        return ""
    or_later = ", or began to count later" if seconds > entry["seconds"] else ""
    return f"it changed meanwhile{or_later}, and is {entry['seconds']:g} s now; "


def _basis(mode: str, entry: Mapping[str, Any]) -> str | None:
    if mode == "replace" or entry["source"] == DEFAULT:
        return None
    if entry["source"] == LEARNED and (entry["configured"] is None or entry["is_default"]):
        return LEARNED
    return CONFIGURED


def _phrase(document: Mapping[str, Any], kind: str, entry: Mapping[str, Any]) -> str:
    if entry["source"] != LEARNED:
        return f"{entry['source']}: {option_for(kind).split(' ')[0]}"
    parts = [_made_of(kind, entry)]
    if entry["configured"] is not None:
        parts.append(f"{'default' if entry['is_default'] else 'configured'} {entry['configured']:g} s")
    if document["state_file"]:
        parts.append(document["state_file"])
    parts.append("--ft-learned-limits off switches it off")
    return "; ".join(parts)


def _made_of(kind: str, entry: Mapping[str, Any]) -> str:
    if not entry["intervals"]:
        made = "learned in an earlier run"
    else:
        unit = "step" if kind == section_kind("step") else "interval"
        unit += "s" if entry["intervals"] != 1 else ""
        made = f"learned: {entry['factor']:g} x {_short(entry['longest'])} s over {entry['intervals']} {unit}"
    if entry["else_seconds"] is not None:
        floor = f"at least {entry['seconds']:g} s where no restart is left"
        return f"{made}, {floor}, else {entry['else_seconds']:.4g} s"
    before_relaxing = entry["seconds"] / RELAXATION ** entry["relaxed"]
    if _is_close(before_relaxing, entry["floor"]):
        made += f", at least {entry['floor']:g} s"
    elif entry["intervals"] and not _is_close(before_relaxing, entry["factor"] * entry["longest"]):
        # Of shorter intervals, of another factor, or under a floor that is no more.
        made += ", averaged with, or kept from, other calculations"
    if entry["relaxed"]:
        times = "a verdict" if entry["relaxed"] == 1 else f"{entry['relaxed']} verdicts"
        made += f", {RELAXATION ** entry['relaxed']} times as long after {times}"
    return made


def _advice(document: Mapping[str, Any], kind: str, entry: Mapping[str, Any]) -> str:
    option = option_for(kind)
    if entry["source"] != LEARNED:
        return f"If this is legitimately slow, raise the limit: {option}"
    off = "switch learned limits off: --ft-learned-limits off"
    if document["mode"] == "replace":
        return f"If this is legitimately slow, keep learned limits from undercutting configured ones: {off} (or relax)"
    if kind.startswith(_SECTION) and not document["names_sections"]:
        # Naming one section would make every other name an error.
        return f"If this is legitimately slow, {off}, or name a limit for every section that is used"
    return f"If this is legitimately slow, configure a limit, which learning never undercuts: {option}; or {off}"


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other))


def _short(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 1000 else f"{seconds:.0f}"
