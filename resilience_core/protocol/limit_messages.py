"""Where a limit comes from, in words, and what switches it off. Pure; the standard library only.

Both are derived from the text of :mod:`~resilience_core.protocol.limits_text`.
"""

from __future__ import annotations

from typing import NamedTuple

from resilience_core.protocol.cell_layout import SHARED_SECTION, shown_name
from resilience_core.protocol.limit_entry import LimitEntry, LimitsDocument
from resilience_core.protocol.limit_kinds import (
    FIRST_HEARTBEAT,
    HEARTBEAT,
    LEARNED,
    RELAXATION,
    SECTION,
    option_for,
    section_kind,
)
from resilience_core.protocol.limits_text import LimitsText, SharedLimits, read_limits

__all__ = ["LimitOrigin", "origin_of", "undercutting"]


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
    """``configured`` if a person has chosen the limit, also if learning has lengthened it; ``learned`` if nobody has;
    None for a default, and if learned limits may undercut configured ones."""


def undercutting(document: LimitsDocument) -> str:
    """Say which learned limits of a document are shorter than what somebody has configured; empty: none."""
    return ", ".join(
        f"{kind} {_short(entry.seconds)} s (configured {entry.configured:g} s)"
        for kind, entry in document.limits.items()
        if entry.source == LEARNED
        and not entry.is_default
        and entry.configured is not None
        and entry.seconds < entry.configured
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
    document = read_limits(text)
    if document is None:
        return None
    if cause == "section" and section == SHARED_SECTION:
        return _origin_of_shared(document.shared, seconds)
    limits = document.limits
    if cause == "section":
        kinds = [k for k in limits if k.startswith(SECTION) and shown_name(k.removeprefix(SECTION)) == section]
    else:
        kinds = [k for k in (_heartbeat_kinds(has_beaten) if cause == HEARTBEAT else [cause]) if k in limits]
    known = [(kind, entry) for kind in kinds for entry in limits[kind]]
    if not known:
        return None
    kind, entry = min(known, key=lambda each: abs(each[1].seconds - seconds))
    return LimitOrigin(
        kind,
        entry.source,
        _changed(entry, seconds) + _phrase(document, kind, entry),
        _advice(document, kind, entry),
        entry.basis(document.mode),
    )


def _origin_of_shared(groups: tuple[SharedLimits, ...], seconds: float) -> LimitOrigin | None:
    """Of one of the sections that share a slot: nobody knows which, but its limit tells learned from configured."""
    if not groups or (len(groups) > 1 and not all(group.seconds for group in groups)):
        return None
    nearest = [min((abs(each - seconds) for each in group.seconds), default=0.0) for group in groups]
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


def _changed(entry: LimitEntry, seconds: float) -> str:
    """Say so if a deadline was not set by the present limit, or was set after the interval began.

    The latter happens when ``load_state_dict`` follows the call that began the interval.
    """
    if abs(entry.seconds - seconds) <= max(0.001, 0.01 * entry.seconds):
        return ""
    or_later = ", or began to count later" if seconds > entry.seconds else ""
    return f"it changed meanwhile{or_later}, and is {entry.seconds:g} s now; "


def _phrase(document: LimitsText, kind: str, entry: LimitEntry) -> str:
    if entry.source != LEARNED:
        return f"{entry.source}: {option_for(kind).split(' ')[0]}"
    parts = [_made_of(kind, entry)]
    if entry.configured is not None:
        parts.append(f"{'default' if entry.is_default else 'configured'} {entry.configured:g} s")
    if document.state_file:
        parts.append(document.state_file)
    parts.append("--ft-learned-limits off switches it off")
    return "; ".join(parts)


def _made_of(kind: str, entry: LimitEntry) -> str:
    if not entry.intervals:
        made = "learned in an earlier run"
    else:
        unit = "step" if kind == section_kind("step") else "interval"
        unit += "s" if entry.intervals != 1 else ""
        made = f"learned: {entry.factor:g} x {_short(entry.longest)} s over {entry.intervals} {unit}"
    if entry.else_seconds is not None:
        floor = f"at least {entry.seconds:g} s where no restart is left"
        return f"{made}, {floor}, else {entry.else_seconds:.4g} s"
    before_relaxing = entry.seconds / RELAXATION**entry.relaxed
    if _is_close(before_relaxing, entry.floor):
        made += f", at least {entry.floor:g} s"
    elif entry.intervals and not _is_close(before_relaxing, entry.factor * entry.longest):
        # Of shorter intervals, of another factor, or under a floor that is no more.
        made += ", averaged with, or kept from, other calculations"
    if entry.relaxed:
        times = "a verdict" if entry.relaxed == 1 else f"{entry.relaxed} verdicts"
        made += f", {RELAXATION**entry.relaxed} times as long after {times}"
    return made


def _advice(document: LimitsText, kind: str, entry: LimitEntry) -> str:
    option = option_for(kind)
    if entry.source != LEARNED:
        return f"If this is legitimately slow, raise the limit: {option}"
    off = "switch learned limits off: --ft-learned-limits off"
    if document.mode == "replace":
        return f"If this is legitimately slow, keep learned limits from undercutting configured ones: {off} (or relax)"
    if kind.startswith(SECTION) and not document.names_sections:
        # Naming one section would make every other name an error.
        return f"If this is legitimately slow, {off}, or name a limit for every section that is used"
    return f"If this is legitimately slow, configure a limit, which learning never undercuts: {option}; or {off}"


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other))


def _short(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 1000 else f"{seconds:.0f}"
