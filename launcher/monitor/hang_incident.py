"""The incident of a hang: what is collected of all local ranks before the signal."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence

from launcher.incidents.attribution import attribute
from launcher.incidents.children import families_of, most_telling
from launcher.incidents.frames import Thread, main_thread, own_line_of
from launcher.incidents.group_numbers import ask
from launcher.incidents.incident import ELSEWHERE, MOST_CHILDREN, MOST_STACKS, Incident
from launcher.incidents.rank_phrases import telling_threads
from launcher.incidents.rank_report import RankReport, rank_report
from launcher.incidents.source_lines import SourceReader
from launcher.incidents.waits import (
    lines_that_tell,
    waits_for_peers,
)
from launcher.monitor.deadline_rules import DUE_TOGETHER_NS, Case, Findings
from launcher.monitor.messages import MonitorSettings
from launcher.monitor.rank_evidence import (
    can_be_asked,
    evidence_of_rank,
    mistake_phrase,
    native_stacks_of,
    stacks_of_ranks,
    started_at,
    with_stacks,
)
from launcher.monitor.rank_monitor import RankMonitor
from launcher.monitor.verdict import SECTION, HangVerdict
from launcher.monitor.waiters import still_silent
from launcher.processes.evidence import ProcessLook, kernel_wait, look_at
from launcher.processes.kernel_places import SystemCallReader
from resilience_core.protocol.error_record import ErrorRecord
from resilience_core.protocol.group_numbers import GroupNumbers
from resilience_core.protocol.limit_kinds import LEARNED
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["action_on", "incident_whatever_happens", "trimmed"]

_MOST_FRAMES = 50
_LONGEST_LOOK_AT_CHILDREN_SECONDS = 0.05
_LONGEST_LOOK_AT_CALLS_SECONDS = 0.05
_LONGEST_ANSWER_SECONDS = 0.05
"""How much longer than for stacks the signal waits for the numbers of collectives."""
_PART_FOR_STACKS = 0.9
"""Of the time: the rest is for the source of their lines, which may tell who waits for whom."""
_system_calls = SystemCallReader()


def incident_whatever_happens(
    findings: Findings[RankMonitor],
    everybody: Sequence[RankMonitor],
    settings: MonitorSettings,
    reader: SourceReader,
    *,
    may_signal: bool = True,
) -> Incident:
    """Return what is known of a verdict; where collecting that fails, the verdict itself, and what has failed.

    Args:
        findings: Who is late. Nobody where only a look was asked for, since another node has found somebody to be.
        everybody: The local ranks of the generation, at least one.
        settings: The monitor's.
        reader: For what stacks do not tell.
        may_signal: Ask ranks for their stacks by a signal where py-spy is missing.
    """
    try:
        return _incident(findings, everybody, settings, reader, may_signal=may_signal)
    except Exception as error:  # noqa: BLE001 - whatever it is, the verdict stands and has to be told
        why = mistake_phrase("evidence could not be collected", error)
        return Incident(
            kind=_kind(findings),
            generation=everybody[0].order.generation,
            why=f"who is to blame cannot be told: {why}",
            action=action_on([case.rank for case in findings.cases], (), settings),
            ranks=tuple(_bare_report(case, findings.seen_ns, why) for case in findings.cases),
            deadline_ns=findings.deadline_ns,
            seen_ns=findings.seen_ns,
        )


def _bare_report(case: Case[RankMonitor], now_ns: int, why: str) -> RankReport:
    """Return what the verdict itself says of a rank, which nothing has to be looked up for."""
    verdict, order = case.verdict, case.rank.order
    return RankReport(
        rank=order.rank,
        local_rank=order.local_rank,
        pid=case.view.pid or order.pid,
        is_condemned=True,
        cause=verdict.cause,
        section=verdict.section,
        open_seconds=(now_ns - verdict.since_ns) / NS_PER_SECOND,
        limit_seconds=verdict.limit_seconds,
        iteration=case.view.iteration if case.view.iteration >= 0 else None,
        no_stack=why,
    )


def _incident(
    findings: Findings[RankMonitor],
    everybody: Sequence[RankMonitor],
    settings: MonitorSettings,
    reader: SourceReader,
    *,
    may_signal: bool = True,
) -> Incident:
    """Return what is known of a verdict, stacks included; all that may wait ends within ``stack_capture_timeout``."""
    now_ns, end = findings.seen_ns, time.monotonic() + settings.config.stack_capture_timeout
    verdicts = {case.rank: case.verdict for case in findings.cases}
    late = [case.rank for case in findings.cases if case.is_late]
    # A few milliseconds are no time that it was left: those that are late together are condemned together.
    withheld = [
        case.rank for case in findings.cases if case.held and now_ns - case.verdict.deadline_ns > DUE_TOGETHER_NS
    ]
    views = dict(findings.views)
    for rank in everybody:
        # What ended because an earlier verdict ended it tells nothing about this one.
        if rank not in views and (view := rank.view()) is not None and not rank.is_condemned(view):
            views[rank] = view
    group = [rank for rank in everybody if rank in views]
    looks = {rank: look_at(rank.pid(views[rank])) for rank in group}
    waits = {rank: kernel_wait(rank.pid(views[rank])) for rank in group}
    reasons: dict[int, str] = {}
    alive = {r: views[r] for r in group if can_be_asked(looks[r])}
    # The culprit need not be overdue itself: then it is one of those that are not, which therefore come first.
    by_suspicion = sorted(alive, key=lambda rank: rank in verdicts)
    families = families_of(
        {r.order.local_rank: pid for r in by_suspicion if (pid := r.pid(views[r]))},
        _seconds_until(end, _LONGEST_LOOK_AT_CHILDREN_SECONDS),
    )
    # Answered while stacks are taken. One that is stopped answers nothing.
    questions = ask({r.order.local_rank: r.order.cell for r in alive if not _is_stopped(looks[r])})
    # Those that tell most come first. A stack is taken by stopping its process: its system call is read before.
    looked_at = [*(r.pid(views[r]) for r in by_suspicion), *(each.pid for each in most_telling(families))]
    calls = _system_calls.calls(looked_at, _seconds_until(end, _LONGEST_LOOK_AT_CALLS_SECONDS))
    families = {
        number: tuple(child._replace(system_call=calls.get(child.pid)) for child in family)
        for number, family in families.items()
    }
    asked = time.monotonic_ns()
    # A signal may end a call, and a verdict may be taken back: a rank that is not overdue is not interrupted. Where
    # only a look is asked for, the launcher ends all ranks in a moment.
    interruptible = alive if settings.owns_ranks and not verdicts else verdicts
    left = _PART_FOR_STACKS * _seconds_until(end)
    stacks = stacks_of_ranks(
        interruptible if may_signal else (), alive, most_telling(families), settings, left, reasons
    )
    ours = [stacks.get(rank.order.local_rank, ()) for rank in group]
    began = min((started_at(view) for rank in group if (view := views[rank]).start_time), default=math.inf)
    sources = reader.lines(lines_that_tell(ours), _seconds_until(end), began)
    answered_by = time.monotonic() + _seconds_until(end, _LONGEST_ANSWER_SECONDS)
    numbers = questions.answered(answered_by, [n for n, stack in stacks.items() if _keeps_gil(stack)])
    evidence = {
        rank: evidence_of_rank(
            *(rank, views[rank], looks[rank], stack, sources),
            *(numbers.get(rank.order.local_rank, GroupNumbers()), now_ns),
        )
        for rank, stack in zip(group, ours, strict=True)
    }
    limits = {rank: int(verdict.limit_seconds * NS_PER_SECOND) for rank, verdict in verdicts.items()}
    evidence = {
        rank: known._replace(
            is_condemned=rank in verdicts,
            limit_ns=limits.get(rank, 0),
            asked_ns=asked if any(t.was_asked for t in stacks.get(rank.order.local_rank, ())) else 0,
        )
        for rank, known in evidence.items()
    }
    found = attribute(list(evidence.values()), has_others=everybody[0].order.has_others)
    pids = {rank.order.local_rank: rank.pid(views[rank]) for rank in still_silent(findings, group)}
    matter = dict.fromkeys((*found.local_ranks, *(rank.order.local_rank for rank in verdicts)))
    native, no_native = native_stacks_of({n: pids[n] for n in matter if n in pids}, stacks, settings, end)
    reports = []
    for rank in group:
        number, known = rank.order.local_rank, evidence[rank]
        is_culprit = number in found.local_ranks
        family = families.get(number, ()) if is_culprit or rank in verdicts else ()
        report = rank_report(rank.order.rank, rank.pid(views[rank]), views[rank], known, now_ns)
        if (verdict := verdicts.get(rank)) is not None:
            report = _with_verdict(report, rank, verdict, now_ns, was_late=rank in late)
        stack = stacks.get(number, ())
        waits_in = waits_for_peers(stack, sources)
        reports.append(
            report._replace(
                is_culprit=is_culprit,
                was_withheld=rank in withheld,
                kernel_wait=waits[rank],
                system_call=calls.get(rank.pid(views[rank])),
                is_busy=known.is_busy,
                waits_in=str(waits_in) if waits_in is not None else None,
                stack=stack,
                no_stack=reasons.get(number),
                native=native.get(number, ()),
                no_native=no_native.get(number),
                children=with_stacks(family, stacks, stack),
            )
        )
    return Incident(
        kind=_kind(findings),
        generation=everybody[0].order.generation,
        why=found.why,
        action=action_on(list(verdicts), reports, settings),
        ranks=tuple(reports),
        deadline_ns=findings.deadline_ns,
        seen_ns=now_ns,
    )


def _is_stopped(look: ProcessLook | None) -> bool:
    return look is not None and look.is_stopped


def _keeps_gil(stack: Sequence[Thread]) -> bool:
    """Return whether a thread keeps the GIL in C, so that no other runs; one that runs Python is seen with it, too."""
    return any(thread.holds_gil and not thread.was_asked for thread in stack)


def _seconds_until(end: float, at_most: float = math.inf) -> float:
    """Return how much time there is until an instant of ``time.monotonic()``."""
    return max(0.0, min(end - time.monotonic(), at_most))


def _kind(findings: Findings[RankMonitor]) -> str:
    return "hang" if findings.cases else ELSEWHERE


def action_on(condemned: Sequence[RankMonitor], ranks: Sequence[RankReport], settings: MonitorSettings) -> str:
    """Return one sentence about what is done: who is signalled, and who else has to end the culprit."""
    number = signal.Signals(settings.config.rank_termination_signal)
    numbers = [rank.order.rank for rank in condemned]
    if not condemned:
        return "none here: the failure was seen on another node"
    action = f"{number.name} to rank {', '.join(map(str, numbers))}"
    others = [r for r in ranks if r.is_culprit and r.rank not in numbers and r.exit_code is None]
    is_one = len(others) == 1
    names = (
        f"rank {', '.join(str(rank.rank) for rank in others)}, not overdue by {'itself' if is_one else 'themselves'},"
    )
    if settings.owns_ranks:  # the launcher knows how many restarts are left, and says so
        return f"{action}; {names} {'ends' if is_one else 'end'} with the whole group" if others else action
    if others and is_one:
        action += f"; {names} is not signalled: whoever started it has to end it"
    elif others:
        action += f"; {names} are not signalled: whoever started them has to end them"
    return f"{action}; restarting it is up to whoever started it"


def _with_verdict(
    report: RankReport, rank: RankMonitor, verdict: HangVerdict, now_ns: int, *, was_late: bool
) -> RankReport:
    """Add the limit that has passed, to the report of a rank that is terminated for it."""
    origin = rank.limit_origin(verdict)
    return report._replace(
        is_condemned=True,
        cause=verdict.cause,
        section=verdict.section if verdict.cause == SECTION else report.section,
        open_seconds=(now_ns - verdict.since_ns) / NS_PER_SECOND if verdict.since_ns else None,
        limit_seconds=verdict.limit_seconds,
        limit_origin=origin.phrase if origin is not None else None,
        limit_advice=origin.advice if origin is not None else None,
        limit_learned=origin.kind if was_late and origin is not None and origin.source == LEARNED else None,
    )


def trimmed(incident: Incident) -> Incident:
    """Return with no more than a terminal is told, so that it fits into one message however many ranks there are."""
    speakers = incident.speakers
    if incident.kind == ELSEWHERE and not speakers:  # one that does not wait may be who the others wait for
        speakers = tuple(rank for rank in incident.ranks if rank.evidence is None or not rank.evidence.waits)
    told = [rank.local_rank for rank in speakers[:MOST_STACKS]]

    def trim(rank: RankReport) -> RankReport:
        thread = main_thread(rank.stack) if rank.local_rank in told else None
        frames = [frame._replace(path="") for frame in thread.frames[:_MOST_FRAMES]] if thread is not None else []
        others = [t._replace(frames=t.frames[:1]) for t in telling_threads(rank.stack)]
        children = [child for child in rank.children if child.is_suspect] if rank.local_rank in told else []
        return rank._replace(
            native=(),
            stack=() if thread is None else (*others, thread._replace(frames=tuple(frames))),
            children=tuple(child.without_most() for child in children[:MOST_CHILDREN]),
            error=_with_line_alone(rank.error, is_told=rank.local_rank in told),
            stdout_tail=(),
            stderr_tail=(),
        )

    return incident._replace(ranks=tuple(trim(rank) for rank in incident.ranks))


def _with_line_alone(error: ErrorRecord | None, *, is_told: bool) -> ErrorRecord | None:
    """Return an exception with the innermost line of the user's own code as its traceback, or with none."""
    if error is None:
        return None
    return error._replace(traceback=own_line_of(error.traceback) if is_told else "")
