"""The kinds of limits, where they come from, and the options that set them."""

from __future__ import annotations

__all__ = [
    "CONFIGURED",
    "DEFAULT",
    "FIRST_HEARTBEAT",
    "HEARTBEAT",
    "LEARNED",
    "MODES",
    "MOST_VERDICTS",
    "OUT_OF_SECTION",
    "RELAXATION",
    "SECTION",
    "option_for",
    "section_kind",
    "section_name",
]

FIRST_HEARTBEAT = "first heartbeat"

HEARTBEAT = "heartbeat"

OUT_OF_SECTION = "out of section"

SECTION = "section "

LEARNED = "learned"

CONFIGURED = "configured"

DEFAULT = "default"

MODES = ("off", "relax", "replace")
"""What ``learned_limits`` may be."""

RELAXATION = 4
"""How many times longer a learned limit becomes with each verdict that it leads to."""

MOST_VERDICTS = 10
"""How many verdicts make a limit longer; after these it is a million times as long."""


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
