"""How long a section is open, and how long this rank may wait for others before a limit of its own passes."""

from __future__ import annotations

from time import monotonic_ns

from resilience_core.monitoring.client_state import ClientState
from resilience_core.protocol.cell_layout import HEARTBEAT, NO_LIMIT, NOT_SHOWN, OUT_OF_SECTION
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["seconds_left", "seconds_open"]


def seconds_open(state: ClientState, name: str) -> float:
    """Return for how long a section has been open; 0 where it is not."""
    section = state.open.get(name)
    return 0.0 if section is None else (monotonic_ns() - section.opened_ns) / NS_PER_SECOND


def seconds_left(state: ClientState) -> float | None:
    """Return the time until the first deadline of what is open, of out-of-section time and of heartbeats.

    Returns:
        Seconds; None where nothing limits this rank now.
    """
    words = state.words
    deadlines = [
        section.due[1] if section.deadline_word == NOT_SHOWN else words[section.deadline_word]
        for section in list(state.open.values())
    ] or [words[OUT_OF_SECTION]]
    deadlines = [deadline for deadline in (*deadlines, words[HEARTBEAT]) if 0 < deadline < NO_LIMIT]
    return (min(deadlines) - monotonic_ns()) / NS_PER_SECOND if deadlines else None
