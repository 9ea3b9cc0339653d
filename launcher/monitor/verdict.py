"""sight(view, now) -> Sighting, and the verdict on it. Pure: no clock, no process, no I/O.

Every running deadline is judged by itself: an expired outer section is a verdict even while a younger inner one
still has time. Out-of-section time is a deadline like any other, heeded only while no section is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.monitor.lost_time import Freeze, moved_by_ns
from resilience_core.protocol.cell_layout import CLOSED, NO_LIMIT, SHUT_DOWN, WATCHED
from resilience_core.protocol.cell_view import CellView
from resilience_core.system.clock import NS_PER_SECOND

__all__ = [
    "FRESH_MONITOR_DOUBT_NS",
    "HEARTBEAT",
    "OUT_OF_SECTION",
    "SECTION",
    "STARTUP",
    "Deadline",
    "Sighting",
    "HangVerdict",
    "deadlines_in_force",
    "sight",
    "verdict_on",
]

SECTION = "section"
HEARTBEAT = "heartbeat"
OUT_OF_SECTION = "out of section"
STARTUP = "startup"

FRESH_MONITOR_DOUBT_NS = NS_PER_SECOND
"""A deadline that passed before this monitor began to watch is believed only after watching for so long."""


class Deadline(NamedTuple):
    """One instant by which a rank must have said something. Times are ``CLOCK_MONOTONIC`` nanoseconds."""

    cause: str
    """``section``, ``heartbeat``, ``out of section`` or ``startup``."""
    section: str | None
    slot: int
    """Where the word stands: the section's slot; -1 for the others."""
    at_ns: int
    since_ns: int


class HangVerdict(NamedTuple):
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
        return (self.deadline_ns - self.since_ns) / NS_PER_SECOND

    def open_seconds(self, now_ns: int) -> float:
        """Return how long the rank has been silent at ``now_ns``."""
        return (now_ns - self.since_ns) / NS_PER_SECOND


def deadlines_in_force(view: CellView) -> list[Deadline]:
    """Return every deadline that is running and has an end."""
    if view.state != WATCHED:
        return []
    running = [
        Deadline(SECTION, section.name, section.slot, section.deadline_ns, section.opened_ns)
        for section in view.sections
        if section.deadline_ns != NO_LIMIT
    ]
    if _runs(view.heartbeat_ns):
        running.append(Deadline(HEARTBEAT, None, -1, view.heartbeat_ns, view.last_heartbeat_ns))
    if not view.sections and _runs(view.out_of_section_ns):
        running.append(Deadline(OUT_OF_SECTION, None, -1, view.out_of_section_ns, view.left_section_ns))
    return running


class Sighting(NamedTuple):
    """One rank in one look: what it said, and what follows from just that."""

    view: CellView
    late: tuple[Deadline, ...]
    """Deadlines that have passed, the first to pass first."""
    pending: tuple[tuple[int, Deadline], ...]
    """The others, each with the instant at which it will have passed, lost time included."""
    held: tuple[Deadline, ...] = ()
    """Deadlines that have passed and are no verdict by themselves (:mod:`launcher.monitor.withheld_verdicts`)."""

    @property
    def verdict(self) -> HangVerdict | None:
        """On the deadline that passed first; None when all is well."""
        return verdict_on(self.view, self.late)

    @property
    def next_ns(self) -> int:
        """When this rank will next be late, or was first; ``NO_LIMIT`` when nothing runs."""
        if self.late:
            return self.late[0].at_ns
        return min((at_ns for at_ns, _ in self.pending), default=NO_LIMIT)

    def due_by(self, instant_ns: int) -> tuple[Deadline, ...]:
        """Return deadlines that have passed, whether or not they are a verdict by themselves, or will have by then."""
        return (*self.late, *self.held, *(deadline for at_ns, deadline in self.pending if at_ns <= instant_ns))


def sight(
    view: CellView,
    now_ns: int,
    freezes: Sequence[Freeze] = (),
    *,
    startup: Deadline | None = None,
    watched_since_ns: int = 0,
) -> Sighting:
    """Judge one rank at one instant.

    Args:
        view: What its cell says.
        now_ns: ``CLOCK_MONOTONIC``. At its deadline a rank is late; one nanosecond before, it is not.
        freezes: When everybody lost time, oldest first.
        startup: By when the rank must have initialised monitoring, if that is limited; heeded until it has.
        watched_since_ns: When the one who judges began to watch.
    """
    running = deadlines_in_force(view)
    if startup is not None and view.pid == 0 and view.state != SHUT_DOWN:
        running.append(startup)
    late, pending = [], []
    for deadline in running:
        at_ns = deadline.at_ns
        if freezes:
            at_ns += moved_by_ns(deadline.since_ns, at_ns, freezes)
        if deadline.at_ns < watched_since_ns:
            at_ns = max(at_ns, watched_since_ns + FRESH_MONITOR_DOUBT_NS)
        if now_ns >= at_ns:
            late.append(deadline)
        else:
            pending.append((at_ns, deadline))
    late.sort(key=lambda deadline: deadline.at_ns)
    return Sighting(view, tuple(late), tuple(pending))


def verdict_on(view: CellView, deadlines: Iterable[Deadline]) -> HangVerdict | None:
    """Return why a rank is terminated, given the deadlines that it has not met; None without any."""
    first = min(deadlines, key=lambda deadline: deadline.at_ns, default=None)
    if first is None:
        return None
    return HangVerdict(first.cause, first.section, first.since_ns, first.at_ns, view.iteration)


def _runs(deadline_ns: int) -> bool:
    return deadline_ns not in (CLOSED, NO_LIMIT)
