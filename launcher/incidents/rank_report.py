"""What an incident says of one rank."""

from __future__ import annotations

from typing import Any, NamedTuple

from launcher.incidents.children import Child
from launcher.incidents.frames import Frame, Thread
from launcher.processes.evidence import Evidence, unmonitored
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.error_record import ErrorRecord
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["RankReport", "rank_report", "stack_from_json", "stack_to_json"]


class RankReport(NamedTuple):
    """One rank in an incident. Seconds are as of the moment the incident was seen."""

    rank: int
    local_rank: int
    pid: int
    is_condemned: bool = False
    is_culprit: bool = False
    cause: str | None = None
    """Which deadline: ``section``, ``out of section``, ``heartbeat``, ``startup``; ``exit`` for a failure; or None."""
    section: str | None = None
    """The section whose deadline passed; else the one opened last; None when out of section."""
    open_seconds: float | None = None
    limit_seconds: float | None = None
    limit_origin: str | None = None
    """Where that limit comes from, and what switches it off."""
    limit_advice: str | None = None
    limit_learned: str | None = None
    """The kind of that limit (``resilience_core.protocol.limit_messages``) when it was learned and has led to this
    verdict; None for
    a rank that is only terminated together with one that was overdue."""
    iteration: int | None = None
    process_state: str | None = None
    kernel_wait: str | None = None
    """The kernel function that its main thread sleeps in."""
    is_busy: bool | None = None
    exit_code: int | None = None
    message: str | None = None
    error: ErrorRecord | None = None
    """The exception that is leaving, or has left, its training loop."""
    stderr_tail: tuple[str, ...] = ()
    """The last lines of its standard error, where that goes to a file."""
    waits_in: str | None = None
    stack: tuple[Thread, ...] = ()
    no_stack: str | None = None
    """Why there is none, where a stack was wanted and the reason is known."""
    children: tuple[Child, ...] = ()
    """Processes below a condemned one or a culprit, those first that it may wait for."""
    unmonitored: str | None = None
    """Why nothing is known of where it is: it has not initialised monitoring, say."""
    was_withheld: bool = False
    """Its limit had passed before, and was no verdict while other ranks were within theirs
    (``launcher.monitor.withheld_verdicts``)."""


def rank_report(rank: int, pid: int, view: CellView, known: Evidence, now_ns: int) -> RankReport:
    """Make the report of what cell and process tell; hangs and failures add what only they know.

    Args:
        rank: The global rank.
        pid: For people.
        view: What its cell said.
        known: What is known of its process.
        now_ns: ``CLOCK_MONOTONIC`` when the incident was seen.
    """
    youngest = max(view.sections, key=lambda section: section.opened_ns, default=None)
    since_ns = youngest.opened_ns if youngest is not None else view.left_section_ns
    return RankReport(
        rank=rank,
        local_rank=known.local_rank,
        pid=pid,
        section=youngest.name if youngest is not None else None,
        open_seconds=(now_ns - since_ns) / NS_PER_SECOND if since_ns else None,
        iteration=view.iteration if view.iteration >= 0 else None,
        process_state=known.state or None,
        exit_code=known.exit_code,
        message=known.error.first_line() if known.error is not None else None,
        error=known.error,
        unmonitored=unmonitored(view),
    )


def stack_to_json(stack: tuple[Thread, ...]) -> list[dict[str, Any]]:
    """Return a stack in JSON types; see :meth:`launcher.incidents.incident.Incident.to_json`."""
    return [{**thread._asdict(), "frames": [list(frame) for frame in thread.frames]} for thread in stack]


def stack_from_json(stack: list[dict[str, Any]]) -> tuple[Thread, ...]:
    """Return the stack that :func:`stack_to_json` took apart."""
    return tuple(Thread(**{**t, "frames": tuple(Frame(*frame) for frame in t["frames"])}) for t in stack)
