"""What one look at a rank has found, and what follows from it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from launcher.monitor.verdict import Deadline, deadlines_in_force
from launcher.processes.usage import ProcessUsage
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import SHUT_DOWN, WATCHED
from resilience_core.protocol.cell_view import CellView
from resilience_core.system.clock import NS_PER_SECOND

__all__ = [
    "ENDED",
    "NO_MONITORING",
    "OUT_OF_SECTION",
    "OVER",
    "UNREADABLE",
    "RankLook",
    "nearest_deadline",
]

UNREADABLE = "unreadable"
NO_MONITORING = "not monitored"
OVER = "monitoring ended"
ENDED = "ended"
OUT_OF_SECTION = "out of section"
"""What :attr:`RankLook.activity` says where no section is open."""

_PATIENCE_NS = 60 * NS_PER_SECOND
"""A rank without a deadline that was silent for so long is as pressing as one that has used half of its limit."""


class RankLook(NamedTuple):
    """One rank at one moment. Instants are ``CLOCK_MONOTONIC`` nanoseconds."""

    local_rank: int
    generation: int
    seen_ns: int
    """When the look was taken."""
    rank: int | None
    """Global rank; None while it could never be read."""
    cell: Cell | None
    """A copy, for its texts and counts; None where it could not be read."""
    view: CellView | None
    """What the cell says; None where it could not be read, or makes no sense."""
    problem: str | None
    """What is wrong with the cell."""
    process: ProcessUsage | None
    """The rank's process; None where it has none yet, has ended, or cannot be seen from here."""
    has_ended: bool
    """Its process is known to have ended."""
    deadline: Deadline | None
    """The nearest of those that run."""
    last_sign_ns: int | None
    """When it last opened or left a section or sent a heartbeat; None before monitoring began."""
    steps_per_second: float | None

    @property
    def activity(self) -> str:
        """Say what the rank does: its open sections, the outermost first, or one of the constants above."""
        view = self.view
        if view is None:
            return UNREADABLE
        if view.state == SHUT_DOWN:
            return ENDED if self.has_ended else OVER
        if view.state != WATCHED:
            return NO_MONITORING
        opened = sorted(view.sections, key=lambda section: section.opened_ns)
        return " > ".join(section.name for section in opened) or OUT_OF_SECTION

    @property
    def iteration(self) -> int | None:
        """The iteration that the rank is in; None when unknown."""
        return self.view.iteration if self.view is not None and self.view.iteration >= 0 else None

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the last sign of life."""
        return None if self.last_sign_ns is None else max(0, self.seen_ns - self.last_sign_ns) / NS_PER_SECOND

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the nearest deadline, negative once it has passed; None where none runs."""
        return None if self.deadline is None else (self.deadline.at_ns - self.seen_ns) / NS_PER_SECOND

    @property
    def is_late(self) -> bool:
        """Whether its nearest deadline has passed. The monitor decides; it gives lost time back first."""
        return self.deadline is not None and self.deadline.at_ns <= self.seen_ns

    @property
    def used(self) -> float:
        """How much of its limit the rank has used, 0 to 1 and more once it is late.

        Without a deadline, what the age amounts to: it comes near 1 and never reaches it.
        """
        if self.deadline is not None:
            limit_ns = max(1, self.deadline.at_ns - self.deadline.since_ns)
            return max(0.0, (self.seen_ns - self.deadline.since_ns) / limit_ns)
        if self.last_sign_ns is None or self.view is None or self.view.state != WATCHED:
            return 0.0
        age_ns = max(0, self.seen_ns - self.last_sign_ns)
        return age_ns / (age_ns + _PATIENCE_NS)


def nearest_deadline(view: CellView) -> Deadline | None:
    """Return the deadline of a rank that will pass first; None where none runs."""
    return min(deadlines_in_force(view), key=lambda deadline: deadline.at_ns, default=None)
