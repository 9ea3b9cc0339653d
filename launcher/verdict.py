"""judge(cell, now) -> Verdict. Pure: no clock, no process, no I/O.

Every running deadline is judged by itself: an expired outer section is a verdict even while a younger inner one
still has time. Out-of-section time is a deadline like any other, heeded only while no section is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from resilience_core.cell import CLOSED, NO_LIMIT, WATCHED, CellView

__all__ = ["HEARTBEAT", "OUT_OF_SECTION", "STARTUP", "Deadline", "Verdict", "deadlines_in_force", "judge"]

HEARTBEAT = "heartbeat"
OUT_OF_SECTION = "out of section"
STARTUP = "startup"

NS = 1_000_000_000


class Deadline(NamedTuple):
    """One instant by which a rank must have said something. Times are ``CLOCK_MONOTONIC`` nanoseconds."""

    cause: str
    """``section``, ``heartbeat``, ``out of section`` or ``startup``."""
    section: str | None
    slot: int
    """Where the word stands: the section's slot; -1 for the others."""
    at_ns: int
    since_ns: int


class Verdict(NamedTuple):
    """Why a rank is to be terminated."""

    cause: str
    section: str | None
    since_ns: int
    deadline_ns: int
    """As the rank set it; time that was given back is not in it."""
    iteration: int

    @property
    def limit_seconds(self) -> float:
        """The limit that was in force."""
        return (self.deadline_ns - self.since_ns) / NS

    def open_seconds(self, now_ns: int) -> float:
        """How long the rank has been silent at ``now_ns``."""
        return (now_ns - self.since_ns) / NS


def deadlines_in_force(view: CellView) -> list[Deadline]:
    """Every deadline that is running and has an end."""
    if view.state != WATCHED:
        return []
    running = [
        Deadline("section", section.name, section.slot, section.deadline_ns, section.opened_ns)
        for section in view.sections
        if section.deadline_ns != NO_LIMIT
    ]
    if _runs(view.heartbeat_ns):
        running.append(Deadline(HEARTBEAT, None, -1, view.heartbeat_ns, view.last_heartbeat_ns))
    if not view.sections and _runs(view.out_of_section_ns):
        running.append(Deadline(OUT_OF_SECTION, None, -1, view.out_of_section_ns, view.left_section_ns))
    return running


def judge(
    view: CellView,
    now_ns: int,
    given_back_ns: Callable[[Deadline], int] = lambda deadline: 0,
    startup: Deadline | None = None,
) -> Verdict | None:
    """The verdict on one rank at one instant.

    Args:
        view: What its cell says.
        now_ns: ``CLOCK_MONOTONIC``. At its deadline a rank is late; one nanosecond before, it is not.
        given_back_ns: Time that a deadline has been moved by because everybody lost it (a freeze).
        startup: By when the rank must have initialised monitoring, if that is limited; heeded until it has.

    Returns:
        The deadline that passed first, or None when all is well.
    """
    running = deadlines_in_force(view)
    if startup is not None and view.pid == 0:
        running.append(startup)
    late = [deadline for deadline in running if now_ns >= deadline.at_ns + given_back_ns(deadline)]
    if not late:
        return None
    first = min(late, key=lambda deadline: deadline.at_ns)
    return Verdict(first.cause, first.section, first.since_ns, first.at_ns, view.iteration)


def _runs(deadline_ns: int) -> bool:
    return deadline_ns not in (CLOSED, NO_LIMIT)
