"""The kinds of limits, where they come from, and the options that set them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "CONFIGURED",
    "DEFAULT",
    "FIELDS",
    "FIRST_HEARTBEAT",
    "HEARTBEAT",
    "LEARNED",
    "OUT_OF_SECTION",
    "RELAXATION",
    "SECTION",
    "basis",
    "option_for",
    "section_kind",
    "section_name",
]

FIRST_HEARTBEAT = "first heartbeat"

HEARTBEAT = "heartbeat"

OUT_OF_SECTION = "out of section"

SECTION = "section "

FIELDS = (
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

LEARNED = "learned"

CONFIGURED = "configured"

DEFAULT = "default"

RELAXATION = 4
"""How many times longer a learned limit becomes with each verdict that it leads to."""


def section_kind(name: str) -> str:
    """Return the kind of a section's limit."""
    return SECTION + name


def section_name(kind: str) -> str | None:
    """Return the section of a kind of limit; None of another kind."""
    return kind.removeprefix(SECTION) if kind.startswith(SECTION) else None


def option_for(kind: str) -> str:
    """Return the option that sets a limit, with a placeholder for its value."""
    if kind.startswith(SECTION):
        return f"--ft-rank-section-timeouts {kind.removeprefix(SECTION)}:SECONDS"
    return {
        FIRST_HEARTBEAT: "--ft-initial-rank-heartbeat-timeout SECONDS",
        HEARTBEAT: "--ft-rank-heartbeat-timeout SECONDS",
        OUT_OF_SECTION: "--ft-rank-out-of-section-timeout SECONDS",
    }.get(kind, "--ft-rank-startup-timeout SECONDS")


def basis(mode: str, entry: Mapping[str, Any]) -> str | None:
    """Return what a limit rests on: see ``LimitOrigin.basis``.

    Args:
        mode: The configuration's ``learned_limits``.
        entry: Of a document of :class:`resilience_core.monitoring.learned_limits.LearnedLimits`.
    """
    if mode == "replace" or entry["source"] == DEFAULT:
        return None
    if entry["source"] == LEARNED and (entry["configured"] is None or entry["is_default"]):
        return LEARNED
    return CONFIGURED
