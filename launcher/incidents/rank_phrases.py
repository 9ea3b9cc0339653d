"""Words for people about one rank of an incident."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

from launcher.incidents.frames import Frame, Thread, main_thread, own_frame_in, same_with_native
from launcher.incidents.group_numbers import groups_phrase
from launcher.incidents.phrases import exit_phrase, kernel_phrase, shortened
from launcher.incidents.rank_report import RankReport
from resilience_core.protocol.cell_layout import MAX_SECTIONS, SHARED_SECTION
from resilience_core.protocol.error_record import ErrorRecord
from resilience_core.protocol.limit_kinds import option_for, section_kind
from resilience_core.system.proc import ENDED_STATES

__all__ = [
    "blamed_section",
    "comms_line",
    "full_stack",
    "headline",
    "kernel_line",
    "limit_advice",
    "raised_at",
    "raised_place",
    "short_stack",
    "telling_threads",
    "time_left",
    "waits_phrase",
    "where",
]

_MOST_THREADS = 2
_WITHHELD = ", no verdict while another rank was within its limits"


def headline(rank: RankReport, kind: str, *, is_likely: bool, by_heartbeats: bool, node: str | None = None) -> str:
    """Return one line about a rank that an incident is about.

    Args:
        rank: Which.
        kind: Of the incident.
        is_likely: Whether it is named as the likely culprit only.
        by_heartbeats: Whether ranks are overdue by their heartbeats.
        node: Where it runs, in a line that people on other nodes read, too.
    """
    who = f"rank {rank.rank} (pid {rank.pid})" if node is None else f"rank {rank.rank} on node {node} (pid {rank.pid})"
    if kind == "request":
        return f"{who} asks: {rank.message}"
    if rank.exit_code is not None:
        return f"{who} {_ending(rank)}{_at(rank)}{_in_section(rank)}"
    if rank.cause is None or rank.open_seconds is None or rank.limit_seconds is None:
        if (error := _raised(rank)) is not None:
            raised = f"raised {error.type}, and has not ended yet"
            return f"{who} {raised}{_at(rank)}{_in_section(rank)}"
        if rank.evidence is not None and rank.evidence.has_gone_out:
            return f"{who} has destroyed its process group, and has not ended yet{_at(rank)}{_in_section(rank)}"
        likely = "likely " if is_likely else ""
        return f"{who} {likely}holds the others up{_at(rank)}{_place(rank, by_heartbeats)}"
    silent = {
        "section": f"section '{rank.section}' open for",
        "out of section": "out of section for",
        "heartbeat": "no heartbeat for",
        "startup": "init_workload_monitoring() not called for",
    }.get(rank.cause, "silent for")
    where = f" at iteration {rank.iteration}" if rank.iteration is not None else ""
    # Those that would have been late a moment later are condemned with the one that is late now.
    soon = rank.limit_seconds - rank.open_seconds
    until = f", which would have passed {soon * 1000:.0f} ms later" if soon >= 0.0005 else ""
    return (
        f"{who}: {silent} {rank.open_seconds:.3f} s{where}; "
        f"limit {rank.limit_seconds:g} s{f' ({rank.limit_origin})' if rank.limit_origin else ''}{until}"
        f"{_WITHHELD if rank.was_withheld else ''}"
    )


def _ending(rank: RankReport) -> str:
    """Return how a process has ended, and the kernel's part in it."""
    assert rank.exit_code is not None
    phrase = exit_phrase(rank.exit_code)
    if rank.memory_kill is None:
        return phrase
    if rank.exit_code == -signal.SIGKILL:
        return f"was killed by the kernel: {rank.memory_kill}"
    return f"{phrase}, and the kernel has killed a process of its control group: {rank.memory_kill}"


def _place(rank: RankReport, by_heartbeats: bool) -> str:
    """Return where a rank that is not overdue is; nothing where that is not known."""
    if rank.unmonitored is not None:
        return f", {rank.unmonitored}"
    if rank.open_seconds is None or (rank.section is None and by_heartbeats):
        return ""
    where = f"in section '{rank.section}'" if rank.section is not None else "between sections"
    return f", {where} for {rank.open_seconds:.3f} s"


def limit_advice(ranks: Sequence[RankReport]) -> str | None:
    """Return what to do where the limit of the first rank that was under one is legitimately too short."""
    for rank in ranks:
        if rank.limit_advice:
            return rank.limit_advice
        if rank.section == SHARED_SECTION and rank.cause == "section":
            return (
                "If this is legitimately slow, raise its limit (--ft-rank-section-timeouts). Which section it is "
                f"can be told of {MAX_SECTIONS - 1} names only: use fewer"
            )
        if rank.cause in ("section", "out of section", "heartbeat", "startup"):
            kind = section_kind(rank.section or "") if rank.cause == "section" else rank.cause
            return f"If this is legitimately slow, raise the limit: {option_for(kind)}"
    return None


def full_stack(stack: tuple[Thread, ...], native: tuple[Thread, ...] = ()) -> Iterator[str]:
    """Yield the lines of every thread's stack, with its native frames where they are known."""
    seen = [same_with_native(thread, native) for thread in stack]
    moved = [each._replace(name=f"{each.name}, a moment later") for each in native if each not in seen]
    for thread in (*(with_native or plain for plain, with_native in zip(stack, seen, strict=True)), *moved):
        flags = ", ".join(f for f, on in (("active", thread.is_active), ("holds the GIL", thread.holds_gil)) if on)
        yield f"  {thread.name}{f' ({flags})' if flags else ''}"
        yield from (f"    {frame}" for frame in thread.frames)


def telling_threads(stack: tuple[Thread, ...]) -> list[Thread]:
    """Return the first few threads beside the main one that stand in the user's own code: one of them may hang."""
    main = main_thread(stack)
    return [t for t in stack if t is not main and t.frames and t.frames[0].package == ""][:_MOST_THREADS]


def short_stack(rank: RankReport) -> list[str]:
    """Return the lines of the stack that a terminal is shown."""
    thread = main_thread(rank.stack)
    frames = shortened(thread.frames) if thread is not None else []
    return [f"... {frame} more" if isinstance(frame, int) else str(frame) for frame in frames]


def kernel_line(rank: RankReport) -> str | None:
    """Return where the main thread of a hung rank is in the kernel; None where that was not looked up, or it has ended.

    A rank without a Python stack, which may be stuck in C before or after all of its Python, has nothing else to tell.
    """
    if rank.exit_code is not None or rank.process_state is None or rank.process_state in ENDED_STATES:
        return None
    return kernel_phrase(rank.process_state, rank.system_call, rank.kernel_wait)


def where(rank: RankReport) -> str:
    """Return one line about where a rank is."""
    if rank.exit_code is not None:
        place = _ending(rank) + _in_section(rank)
    elif rank.section and rank.unmonitored is None:
        place = f"section '{rank.section}'"
    else:
        place = rank.unmonitored or "out of section"
    return f"rank {rank.rank} (pid {rank.pid}): {place}{_at(rank)}{waits_phrase(rank)}"


def waits_phrase(rank: RankReport) -> str:
    """Return in which frame and collective a rank waits, behind a comma; nothing where it does not."""
    groups = f", {phrase}" if (phrase := comms_line(rank)) is not None else ""
    return f"{f', waits in {rank.waits_in}' if rank.waits_in else ''}{groups}"


def comms_line(rank: RankReport) -> str | None:
    """Return how far a rank is in the collectives of its process groups; None where that is not known."""
    return groups_phrase(rank.evidence) if rank.evidence is not None else None


def time_left(rank: RankReport) -> float:
    """Return how many seconds a rank had left; 0 for one that is overdue."""
    return max(0.0, (rank.limit_seconds or 0.0) - (rank.open_seconds or 0.0))


def _in_section(rank: RankReport) -> str:
    return f", in section '{section}'" if (section := blamed_section(rank)) else ""


def _is_overdue(rank: RankReport) -> bool:
    return rank.cause is not None and rank.open_seconds is not None and rank.limit_seconds is not None


def _raised(rank: RankReport) -> ErrorRecord | None:
    """Return the exception with which a rank is on its way out; None where it has ended, is overdue or raised none."""
    is_leaving = rank.exit_code is None and not _is_overdue(rank)
    return rank.error if is_leaving and rank.error is not None and rank.error.thread is None else None


def blamed_section(rank: RankReport) -> str | None:
    """Return the section to name a rank with: that in which it raised, where it cleans up outside of it since."""
    error = _raised(rank)
    return error.section or rank.section if error is not None else rank.section


def raised_place(rank: RankReport) -> Frame | None:
    """Return the line of the user's own code at which a rank raised, for which it ends; None where it did not."""
    return _own_line(rank.error) if not _is_overdue(rank) else None


def raised_at(rank: RankReport) -> str:
    """Return the line at which a rank raised, overdue or not, behind a semicolon; nothing where none is known."""
    return f"; at {place}" if (place := _own_line(rank.error)) is not None else ""


def _own_line(error: ErrorRecord | None) -> Frame | None:
    return own_frame_in(error.traceback) if error is not None and error.thread is None else None


def _at(rank: RankReport) -> str:
    return f", iteration {rank.iteration}" if rank.iteration is not None else ""
