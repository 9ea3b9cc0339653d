"""What an incident says of one rank."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.incidents.children import Child
from launcher.incidents.frames import Frame, Thread
from launcher.processes.evidence import Evidence, evidence_from_json, evidence_to_json, unmonitored
from launcher.processes.plain_types import check_types
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.error_record import ErrorRecord, error_from_json
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["RankReport", "rank_report", "report_from_json", "report_to_json"]


_KINDS_OF_FRAMES = ((str, str, int), (str, str, int, str), (str, str, int, str, str))
"""The types of a frame's fields, the last of which have defaults."""


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
    system_call: str | None = None
    """The system call that its main thread sleeps in."""
    is_busy: bool | None = None
    exit_code: int | None = None
    message: str | None = None
    error: ErrorRecord | None = None
    """The exception that is leaving, or has left, its training loop."""
    stderr_tail: tuple[str, ...] = ()
    """The last lines of its standard error, where that goes to a file."""
    stdout_tail: tuple[str, ...] = ()
    waits_in: str | None = None
    stack: tuple[Thread, ...] = ()
    native: tuple[Thread, ...] = ()
    """The same stacks, taken once more with their frames of C and C++ (:mod:`launcher.incidents.native_frames`)."""
    no_native: str | None = None
    """Why there are none, where they were wanted."""
    no_stack: str | None = None
    """Why there is none, where a stack was wanted and the reason is known."""
    children: tuple[Child, ...] = ()
    """Processes below a condemned one or a culprit, those first that it may wait for."""
    unmonitored: str | None = None
    """Why nothing is known of where it is: it has not initialised monitoring, say."""
    was_withheld: bool = False
    """Its limit had passed before, and was no verdict while other ranks were within theirs
    (``launcher.monitor.withheld_verdicts``)."""
    memory_kill: str | None = None
    """The kernel has killed it, or a process of its control group, out of memory: the limit, and how much was used."""
    evidence: Evidence | None = None
    """What the attribution went by, its exception apart, which is ``error``. None in incidents of earlier releases."""


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
    if youngest is None and view.closings == 0 and view.last_heartbeat_ns > view.left_section_ns:
        since_ns = 0  # it is monitored by heartbeats: that no section is open tells nothing
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
        evidence=known,
    )


def report_to_json(report: RankReport, *, is_short: bool = False) -> dict[str, Any]:
    """Return a report in JSON types; see :meth:`launcher.incidents.incident.Incident.to_json`.

    Args:
        report: Which.
        is_short: Leave out what is as it is by default, for a message.
    """
    document = {
        **report._asdict(),
        "error": report.error._asdict() if report.error is not None else None,
        "stderr_tail": list(report.stderr_tail),
        "stdout_tail": list(report.stdout_tail),
        "stack": _stack_to_json(report.stack),
        "native": _stack_to_json(report.native),
        "children": [{**child._asdict(), "stack": _stack_to_json(child.stack)} for child in report.children],
        "evidence": evidence_to_json(report.evidence) if report.evidence is not None else None,
    }
    defaults = RankReport._field_defaults if is_short else {}
    return {key: value for key, value in document.items() if key not in defaults or value not in (defaults[key], [])}


def report_from_json(document: Mapping[str, Any]) -> RankReport:
    """Return the report that :func:`report_to_json` took apart; what is left out has its default.

    Raises:
        TypeError: It is no report: a field is missing or unknown, or a value has the wrong type.
    """
    error = error_from_json(document["error"]) if document.get("error") else None
    evidence = document.get("evidence")
    report = RankReport(
        **{
            **document,
            "error": error,
            "stderr_tail": tuple(document.get("stderr_tail", ())),
            "stdout_tail": tuple(document.get("stdout_tail", ())),
            "stack": _stack_from_json(document.get("stack", [])),
            "native": _stack_from_json(document.get("native", [])),
            "children": tuple(map(_child_from_json, document.get("children", ()))),
            "evidence": evidence_from_json(evidence, error) if evidence is not None else None,
        }
    )
    check_types(report)
    return report


def _stack_to_json(stack: tuple[Thread, ...]) -> list[dict[str, Any]]:
    """Return a stack in JSON types; see :meth:`launcher.incidents.incident.Incident.to_json`."""
    return [{**thread._asdict(), "frames": [list(frame) for frame in thread.frames]} for thread in stack]


def _child_from_json(document: Mapping[str, Any]) -> Child:
    child = Child(**{**document, "stack": _stack_from_json(document["stack"])})
    check_types(child)
    return child


def _stack_from_json(stack: list[dict[str, Any]]) -> tuple[Thread, ...]:
    """Return the stack that :func:`_stack_to_json` took apart.

    Raises:
        TypeError: It is none.
    """
    return tuple(map(_thread_from_json, stack))


def _thread_from_json(document: Mapping[str, Any]) -> Thread:
    thread = Thread(**{**document, "frames": tuple(map(_frame_from_json, document["frames"]))})
    check_types(thread)
    return thread


def _frame_from_json(document: object) -> Frame:
    # Not by check_types: an incident of a large group has thousands of them, and all nodes wait for it.
    if type(document) is not list or tuple(map(type, document)) not in _KINDS_OF_FRAMES:
        raise TypeError(f"a frame is {reprlib.repr(document)}")
    return Frame(*document)
