"""Where a limit comes from, in words, and what switches it off. Pure; the standard library only.

A rank leaves one JSON document in its cell whenever its limits change (never on the hot path)::

    {"mode": "relax", "state_file": "ft_state.json", "names_sections": true,
     "limits": {"section step": {"seconds": 60.0, "source": "learned", "configured": 180.0, "is_default": false,
                                 "factor": 5.0, "longest": 0.64, "intervals": 812, "floor": 60.0, "relaxed": 0,
                                 "else_seconds": null}}}

The monitor, which imports neither attrs nor torch, turns it into a phrase when it has to explain a verdict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from resilience_core.cell import shown_name

__all__ = [
    "CONFIGURED",
    "DEFAULT",
    "FIRST_HEARTBEAT",
    "HEARTBEAT",
    "LEARNED",
    "OUT_OF_SECTION",
    "RELAXATION",
    "LimitOrigin",
    "option_for",
    "origin_of",
    "section_kind",
    "undercutting",
    "write_limits",
]

FIRST_HEARTBEAT = "first heartbeat"
HEARTBEAT = "heartbeat"
OUT_OF_SECTION = "out of section"
_SECTION = "section "

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


def section_kind(name: str) -> str:
    """The kind of a section's limit."""
    return _SECTION + name


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
    """The document as text of at most ``size`` bytes; what does not fit is left out from the end."""
    limits = dict(document["limits"])
    while True:
        text = json.dumps({**document, "limits": limits}, separators=(",", ":"))  # ASCII: characters are bytes
        if len(text) <= size or not limits:
            return text
        for name in list(limits)[-max(1, len(limits) // 8) :]:
            del limits[name]


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
        limits = document["limits"]
        if cause == "section":
            known = [k for k in limits if k.startswith(_SECTION) and shown_name(k.removeprefix(_SECTION)) == section]
        else:
            known = [k for k in (_heartbeat_kinds(has_beaten) if cause == HEARTBEAT else [cause]) if k in limits]
        if not known:
            return None
        kind = min(known, key=lambda each: abs(limits[each]["seconds"] - seconds))
        entry = limits[kind]
        return LimitOrigin(
            kind,
            entry["source"],
            _changed(entry, seconds) + _phrase(document, kind, entry),
            _advice(document, kind, entry),
            _basis(document, entry),
        )
    except (AttributeError, KeyError, TypeError, ValueError):  # cut, or of another version
        return None


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


def _basis(document: Mapping[str, Any], entry: Mapping[str, Any]) -> str | None:
    if document["mode"] == "replace" or entry["source"] == DEFAULT:
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
        made += ", averaged with earlier ones"
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
