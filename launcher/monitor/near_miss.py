"""A verdict that was withdrawn, and by how much the rank had missed its limit. Pure."""

from __future__ import annotations

from typing import NamedTuple

from launcher.monitor.verdict import HEARTBEAT, OUT_OF_SECTION, STARTUP, HangVerdict
from resilience_core.protocol.cell_layout import WATCHED
from resilience_core.protocol.cell_view import CellView
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["Lateness", "NearMiss", "announced", "lateness", "withdrawn"]


class NearMiss(NamedTuple):
    """A rank that was spared: when it was looked at for the last time, it was no longer late.

    One that had not been overdue itself (``was_late``) is none: it was only to be terminated with one that was. It
    travels with the others, since the launcher must learn of every verdict that no longer holds.
    """

    rank: int
    local_rank: int
    pid: int
    cause: str
    section: str | None
    limit_seconds: float
    late_seconds: float | None
    """By how much the rank missed its limit; None when that is not known exactly, or it was only due with others."""
    late_at_most_seconds: float | None = None
    """The same or more: an upper bound; None where nothing is known."""
    was_asked: bool = False
    """A signal has asked it, or another rank, for its stack, which may have ended the call that it was stuck in."""
    waited_for: int | None = None
    """The rank that it waited for, which came back; it has not moved itself, and is looked at again."""
    was_late: bool = True
    """Whether it was overdue itself."""
    was_announced: bool = False
    """Whether the launcher has been told that it would be signalled."""

    def __str__(self) -> str:
        """Return why it was spared, as the report of its incident says."""
        if not self.was_late:
            return f"{self._who} was not overdue itself: {self._what}"
        if self.waited_for is not None:
            return f"{self._who} waited for rank {self.waited_for}, which came back: {self._where}"
        asked = ", perhaps because a signal asked for stacks" if self.was_asked else ""
        return f"{self._who} came back{self._late}{asked}: {self._what}"

    @property
    def _who(self) -> str:
        return f"rank {self.rank} (pid {self.pid})"

    @property
    def _where(self) -> str:
        return f"section '{self.section}'" if self.section is not None else self.cause

    @property
    def _what(self) -> str:
        return f"{self._where}, limit {self.limit_seconds:g} s"

    @property
    def _late(self) -> str:
        if self.late_seconds is not None:
            return f" {self.late_seconds * 1000:.1f} ms late"
        known = self.late_at_most_seconds
        return "" if known is None else f" at most {known * 1000:.1f} ms late"


def announced(miss: NearMiss, count: int) -> str:
    """Return one line about a rank whose verdict was withdrawn, for people at a terminal.

    Args:
        miss: Which.
        count: How many there were so far, this one included.
    """
    rank, limit = f"near miss {count}: {miss._who}", f"({miss._what})"
    if miss.waited_for is not None:
        return f"{rank} waits for rank {miss.waited_for}, which came back {limit}; it was spared, and is still watched"
    if miss.was_asked:
        return (
            f"{rank} came back{miss._late} {limit} when a signal asked for stacks; it was spared. Either the limit is "
            "too close to what is normal, or it or a rank that it waited for was stuck in a call that any signal ends"
        )
    return (
        f"{rank} came back{miss._late} {limit} before it was signalled; it was spared. The limit is too close to what "
        "is normal"
    )


def withdrawn(miss: NearMiss) -> str:
    """Return one line about a rank that was announced to be terminated, and was not, where that tells no more."""
    if miss.was_late:
        return (
            f"withdrawn: {miss._who} came back ({miss._what}), perhaps because a peer that it waited for has ended, "
            "and is not signalled after all"
        )
    return f"withdrawn: {miss._who} was not overdue itself, and is not signalled after all; it is still watched"


class Lateness(NamedTuple):
    """By how much a rank missed its limit, as far as it is known."""

    seconds: float | None = None
    """Exactly."""
    at_most_seconds: float | None = None
    """The same, or an upper bound where it is not known exactly."""


def lateness(before: CellView, verdict: HangVerdict, after: CellView, seen_ns: int) -> Lateness:
    """By how much a rank missed the limit of a verdict that it has answered since.

    A cell tells when the rank closed its last section and how many it has closed, but not when it closed each. So the
    close of the overdue one is known exactly only while none has followed it.

    Args:
        before: What the rank said when it was overdue.
        verdict: What it was overdue with.
        after: What it said when it had answered.
        seen_ns: When it said so.
    """
    if (after.pid, after.start_time) != (before.pid, before.start_time) and verdict.cause != STARTUP:
        return Lateness()
    exact_ns, bounds = None, [seen_ns]
    has_left = after.left_section_ns != before.left_section_ns
    if after.state != WATCHED:
        pass
    elif verdict.cause == "section":
        bounds += [after.left_section_ns] if has_left else []  # whatever was closed last was closed no earlier
        is_alone = before.closings >= 0 and after.closings == before.closings + 1
        # The instant of a close is stored first, then its count, then that it is closed: none was under way.
        was_quiet = before.left_section_ns < verdict.deadline_ns
        if is_alone and was_quiet and all(s.opened_ns >= after.left_section_ns for s in after.sections):
            exact_ns = after.left_section_ns
    elif verdict.cause == OUT_OF_SECTION:
        bounds += [section.opened_ns for section in after.sections]
        if has_left:
            bounds.append(after.left_section_ns)
        elif after.sections:
            exact_ns = min(section.opened_ns for section in after.sections)
    elif verdict.cause == HEARTBEAT:
        bounds.append(after.last_heartbeat_ns)
    elif verdict.cause == STARTUP:
        bounds.append(after.left_section_ns)
    known_ns = [at_ns for at_ns in bounds if at_ns >= verdict.deadline_ns]
    if exact_ns is not None and exact_ns >= verdict.deadline_ns:
        return Lateness(
            (exact_ns - verdict.deadline_ns) / NS_PER_SECOND, (exact_ns - verdict.deadline_ns) / NS_PER_SECOND
        )
    return Lateness(None, (min(known_ns) - verdict.deadline_ns) / NS_PER_SECOND if known_ns else None)
