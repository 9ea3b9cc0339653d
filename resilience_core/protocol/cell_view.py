"""What a cell said at one moment, and whether a rank can have stored that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from resilience_core.protocol.cell_layout import (
    CLOSED,
    FIRST_CLOSED,
    FIRST_LINE,
    FIRST_REPORT,
    FIRST_SECTION,
    HEARTBEAT,
    INITIALISED,
    ITERATION,
    LAST_HEARTBEAT,
    LEFT_GROUP,
    LEFT_SECTION,
    MAX_SECTIONS,
    NOT_COUNTED,
    OUT_OF_SECTION,
    PID,
    PID_NAMESPACE,
    RANK,
    RESUMED_FROM,
    SAVED,
    SHARED_SECTION,
    SHUT_DOWN,
    SMALLEST_LIMIT,
    START_TIME,
    STATE,
    UNUSED,
    WATCHED,
    WENT_BACK,
)
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["CellView", "OpenSection", "implausible", "read_view", "section_deadlines", "sections_closed", "stamps"]

_LARGEST_PID = 1 << 22  # PID_MAX_LIMIT of Linux

_SKEW_NS = NS_PER_SECOND
"""How far in the future an instant of a cell may lie."""


class OpenSection(NamedTuple):
    """One section that is open."""

    name: str
    slot: int
    deadline_ns: int
    opened_ns: int


class CellView(NamedTuple):
    """What a cell said at one moment. Times are ``CLOCK_MONOTONIC`` nanoseconds."""

    pid: int
    start_time: int
    state: int
    smallest_limit_ns: int
    iteration: int
    heartbeat_ns: int
    out_of_section_ns: int
    last_heartbeat_ns: int
    left_section_ns: int
    rank: int
    sections: tuple[OpenSection, ...]
    pid_namespace: int = 0
    closings: int = -1
    """How many times sections were closed, all together; -1 where not all of them are counted."""
    left_group_ns: int = 0
    """When the default process group was destroyed; 0 where it was not."""
    went_back: int = 0
    resumed_from: int = -1
    saved: int = -1

    @property
    def last_sign_ns(self) -> int:
        """When the rank last opened or closed a section or sent a heartbeat; 0 before the first time."""
        return max(self.last_heartbeat_ns, self.left_section_ns, *(section.opened_ns for section in self.sections), 0)


def section_deadlines(words: memoryview) -> list[int]:
    """Return the deadline word of every section slot, in order of first use; ``CLOSED`` where none is open."""
    return words[FIRST_SECTION : FIRST_SECTION + 2 * MAX_SECTIONS : 2].tolist()


def read_view(words: memoryview, name_of: Callable[[int], str]) -> CellView:
    """Read a cell.

    Args:
        words: Its word view.
        name_of: From a slot to the name of its section.
    """
    sections = tuple(
        OpenSection(name_of(slot), slot, deadline, words[FIRST_SECTION + 2 * slot + 1])
        for slot, deadline in enumerate(section_deadlines(words))
        if deadline != CLOSED
    )
    return CellView(
        pid=words[PID],
        start_time=words[START_TIME],
        state=words[STATE],
        smallest_limit_ns=words[SMALLEST_LIMIT],
        iteration=words[ITERATION],
        heartbeat_ns=words[HEARTBEAT],
        out_of_section_ns=words[OUT_OF_SECTION],
        last_heartbeat_ns=words[LAST_HEARTBEAT],
        left_section_ns=words[LEFT_SECTION],
        rank=words[RANK],
        sections=sections,
        pid_namespace=words[PID_NAMESPACE],
        closings=-1 if words[NOT_COUNTED] else sum(words[FIRST_CLOSED:NOT_COUNTED].tolist()),
        went_back=words[WENT_BACK],
        resumed_from=words[RESUMED_FROM],
        saved=words[SAVED],
        left_group_ns=words[LEFT_GROUP],
    )


def stamps(words: memoryview) -> dict[str, int | None]:
    """Return when the rank reached its first line, its monitor and its first sign of life; None for what is unknown."""
    names = {"first_line_ns": FIRST_LINE, "initialised_ns": INITIALISED, "first_sign_ns": FIRST_REPORT}
    return {name: words[index] or None for name, index in names.items()}


def sections_closed(words: memoryview, name_of: Callable[[int], str]) -> dict[str, int]:
    """Return how often each section was closed, by name, without those that share a slot."""
    counts = words[FIRST_CLOSED : FIRST_CLOSED + MAX_SECTIONS].tolist()
    named = {name: count for slot, count in enumerate(counts) if (name := name_of(slot))}
    named.pop(SHARED_SECTION, None)
    return named


def implausible(view: CellView, now_ns: int) -> str | None:
    """Say which words of a cell no rank would store; None when all make sense.

    A rank may store while its cell is read, so believe only what is found twice.

    Args:
        view: What the cell said.
        now_ns: ``CLOCK_MONOTONIC``.
    """
    if view.state not in (UNUSED, WATCHED, SHUT_DOWN) or not 0 <= view.pid <= _LARGEST_PID:
        return f"its state is {view.state}, its pid {view.pid}"
    if view.smallest_limit_ns < 0:
        return f"its smallest limit is {view.smallest_limit_ns} ns"
    if view.state != WATCHED:
        return None
    latest_ns = now_ns + _SKEW_NS
    for name, deadline_ns, since_ns, earliest_ns in (
        ("heartbeat", view.heartbeat_ns, view.last_heartbeat_ns, 0),
        ("out of section", view.out_of_section_ns, view.left_section_ns, 0),
        *[(f"section slot {section.slot}", section.deadline_ns, section.opened_ns, 1) for section in view.sections],
    ):
        if deadline_ns != CLOSED and not earliest_ns <= since_ns <= min(deadline_ns, latest_ns):
            return f"{name}: deadline {deadline_ns}, running since {since_ns}"
    return None
