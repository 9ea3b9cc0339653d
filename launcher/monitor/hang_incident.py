"""The incident of a hang: what is collected of all local ranks before the signal."""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
from collections.abc import Mapping, Sequence

from launcher.incidents.attribution import assign_blame
from launcher.incidents.children import Child, families_of, most_telling, with_awaited
from launcher.incidents.frames import Frame, Thread, is_a_wait_for_the_gpu, main_thread, own_frame
from launcher.incidents.incident import MOST_CHILDREN, MOST_STACKS, Incident, telling_threads
from launcher.incidents.rank_report import RankReport
from launcher.incidents.source_lines import SourceReader
from launcher.incidents.stacks import take_stacks
from launcher.incidents.waits import (
    is_entered_by_all,
    is_for_the_store,
    lines_that_tell,
    may_wait_unseen,
    tells_no_wait,
    waits_for_peers,
)
from launcher.monitor.messages import MonitorSettings
from launcher.monitor.rank_monitor import RankMonitor
from launcher.monitor.rounds import DUE_TOGETHER_NS, Case, Findings
from launcher.monitor.verdict import Verdict
from launcher.processes.evidence import Evidence, ProcessLook, kernel_wait, look_at, unmonitored, uses_a_gpu
from launcher.records.console import DEBUG, say
from resilience_core.monitoring.cell import STACK_SIGNAL, CellView
from resilience_core.monitoring.limit_messages import LEARNED
from resilience_core.system.clock import NS_PER_SECOND

__all__ = []

_MOST_FRAMES = 50
_LONGEST_LOOK_AT_CHILDREN_SECONDS = 0.05


def incident_whatever_happens(
    findings: Findings[RankMonitor], everybody: Sequence[RankMonitor], settings: MonitorSettings, reader: SourceReader
) -> Incident:
    """What is known of a verdict; where collecting that fails, the verdict itself, and what has failed."""
    try:
        return _incident(findings, everybody, settings, reader)
    except Exception as error:  # noqa: BLE001 - whatever it is, the verdict stands and has to be told
        why = _mistake("evidence could not be collected", error)
        return Incident(
            kind="hang",
            generation=findings.cases[0].rank.order.generation,
            why=f"who is to blame cannot be told: {why}",
            action=action_on([case.rank for case in findings.cases], (), settings),
            ranks=tuple(_bare_report(case, findings.seen_ns, why) for case in findings.cases),
            deadline_ns=min((case.verdict.deadline_ns for case in findings.cases if case.is_late), default=None),
            seen_ns=findings.seen_ns,
        )


def _bare_report(case: Case[RankMonitor], now_ns: int, why: str) -> RankReport:
    """What the verdict itself says of a rank, which nothing has to be looked up for."""
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


def _mistake(what: str, error: Exception) -> str:
    """Words for an error that nobody has foreseen; its traceback is for ``--ft-log-level DEBUG``."""
    say(*traceback.format_exception(error), level=DEBUG)
    place = traceback.extract_tb(error.__traceback__)[-1]
    name = f"{os.path.basename(place.filename)}:{place.lineno}"
    return f"{what} ({type(error).__name__}: {error}, at {name}; this is a mistake in ft_launcher, please report it)"


def _incident(
    findings: Findings[RankMonitor], everybody: Sequence[RankMonitor], settings: MonitorSettings, reader: SourceReader
) -> Incident:
    """What is known of a verdict, stacks included."""
    now_ns = findings.seen_ns
    doomed = {case.rank: case.verdict for case in findings.cases}
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
    alive = {r: views[r] for r in group if _answers(looks[r])}
    # The culprit need not be overdue itself: then it is one of those that are not, which therefore come first.
    by_suspicion = sorted(alive, key=lambda rank: rank in doomed)
    families = families_of(
        {r.order.local_rank: pid for r in by_suspicion if (pid := r.pid(views[r]))}, _LONGEST_LOOK_AT_CHILDREN_SECONDS
    )
    asked = time.monotonic_ns()
    stacks = _stacks(list(doomed), alive, most_telling(families), settings, reasons)
    ours = [stacks.get(rank.order.local_rank, ()) for rank in group]
    began = min((_began(view) for rank in group if (view := views[rank]).start_time), default=math.inf)
    sources = reader.lines(lines_that_tell(ours), settings.config.stack_capture_timeout, began)
    evidence = {
        rank: _evidence(rank, views[rank], looks[rank], stack, sources) for rank, stack in zip(group, ours, strict=True)
    }
    limits = {rank: int(verdict.limit_seconds * NS_PER_SECOND) for rank, verdict in doomed.items()}
    blame = assign_blame(
        [
            evidence[rank]._replace(
                is_condemned=rank in doomed,
                limit_ns=limits.get(rank, 0),
                asked_ns=asked if any(t.was_asked for t in stacks.get(rank.order.local_rank, ())) else 0,
            )
            for rank in group
        ],
        has_others=findings.cases[0].rank.order.has_others,
    )
    reports = []
    for rank in group:
        number, known = rank.order.local_rank, evidence[rank]
        is_culprit = number in blame.local_ranks
        family = families.get(number, ()) if is_culprit or rank in doomed else ()
        report = _report(rank, views[rank], now_ns, stacks.get(number, ()), doomed.get(rank), sources)
        reports.append(
            report._replace(
                is_culprit=is_culprit,
                limit_learned=report.limit_learned if rank in late else None,
                was_withheld=rank in withheld,
                process_state=known.state or None,
                kernel_wait=waits[rank],
                is_busy=known.is_busy,
                exit_code=known.exit_code,
                error=known.error,
                message=known.error.first_line() if known.error is not None else None,
                no_stack=reasons.get(number),
                children=_with_stacks(family, stacks, report.stack),
            )
        )
    return Incident(
        kind="hang",
        generation=findings.cases[0].rank.order.generation,
        why=blame.why,
        action=action_on(list(doomed), reports, settings),
        ranks=tuple(reports),
        deadline_ns=min((case.verdict.deadline_ns for case in findings.cases if case.is_late), default=None),
        seen_ns=now_ns,
    )


def _began(view: CellView) -> float:
    """When a rank's process was started, on ``time.time()``."""
    since_boot: float = view.start_time / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def action_on(condemned: Sequence[RankMonitor], ranks: Sequence[RankReport], settings: MonitorSettings) -> str:
    number = signal.Signals(settings.config.rank_termination_signal)
    numbers = [rank.order.rank for rank in condemned]
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
    return f"{action}; to start it again is the business of whoever started it"


def _answers(look: ProcessLook | None) -> bool:
    """Whether there is a process that could be asked for its stacks."""
    return look is None or look.exit_code is None


def _stacks(
    doomed: Sequence[RankMonitor],
    views: dict[RankMonitor, CellView],
    children: Sequence[Child],
    settings: MonitorSettings,
    reasons: dict[int, str],
) -> dict[int, tuple[Thread, ...]]:
    """By local rank, and by the negative pid of a child; the ranks' come first where time or memory run out."""
    if not settings.config.capture_stacks:
        reasons.update((rank.order.local_rank, "none was taken (--ft-capture-stacks false)") for rank in views)
        return {}
    # The launcher ends every rank once one is condemned, so none has anything left to be disturbed in.
    may_be_asked = views if settings.owns_ranks else doomed
    try:
        return take_stacks(
            {
                **{rank.order.local_rank: rank.pid(view) for rank, view in views.items() if rank.pid(view)},
                **{-child.pid: child.pid for child in children},
            },
            py_spy=settings.py_spy,
            timeout_seconds=settings.config.stack_capture_timeout,
            fallback_files={r.order.local_rank: r.stack_file for r in may_be_asked if r in views and views[r].pid},
            fallback_signal=STACK_SIGNAL,
            reasons=reasons,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs the stacks and no more
        why = _mistake("no stack could be taken", error)
        reasons.update((rank.order.local_rank, why) for rank in views)
        return {}


def _with_stacks(
    family: Sequence[Child], stacks: dict[int, tuple[Thread, ...]], own: tuple[Thread, ...]
) -> tuple[Child, ...]:
    """Children of a rank, those first that it may wait for."""
    complete = with_awaited([child._replace(stack=stacks.get(-child.pid, ())) for child in family], own)
    return tuple(sorted(complete, key=lambda child: (not child.is_awaited, not child.is_suspect)))


def _evidence(
    rank: RankMonitor,
    view: CellView,
    look: ProcessLook | None,
    stack: tuple[Thread, ...],
    sources: Mapping[Frame, str],
) -> Evidence:
    later = look_at(rank.pid(view))
    has_gpu = uses_a_gpu(rank.pid(view))
    # It waits for a disk or a device, and not just in this moment.
    hangs_in_kernel = look is not None and later is not None and look.state == later.state == "D"
    waits: bool | None = None
    stands_at = str(own_frame(stack) or "")
    frame = waits_for_peers(stack, sources)
    if stack:
        sleeps = later is None or later.state == "S"
        tells = tells_no_wait(stack, sources, sleeps=sleeps)
        waits = frame is not None
        if not waits and (not tells or (has_gpu and is_a_wait_for_the_gpu(stack, sources))):
            waits = None
    is_busy = None
    if look is not None and later is not None and not has_gpu:
        is_busy = look.state == later.state == "R"
    return Evidence.of_cell(rank.order.local_rank, view, later, rank.error())._replace(
        waits=waits,
        may_wait=not waits and not hangs_in_kernel and bool(stack) and may_wait_unseen(stack, sources),
        waits_by_source=frame is not None and waits_for_peers(stack, {}) is None,
        waits_at=stands_at if waits else "",
        stands_at=stands_at,
        waits_for_all=frame is not None and is_entered_by_all(frame),
        waits_for_store=frame is not None and is_for_the_store(frame),
        closed=tuple(rank.sections_closed().items()),
        is_busy=is_busy,
        has_gpu=has_gpu,
    )


def _report(
    rank: RankMonitor,
    view: CellView,
    now_ns: int,
    stack: tuple[Thread, ...],
    verdict: Verdict | None,
    sources: Mapping[Frame, str],
) -> RankReport:
    youngest = max(view.sections, key=lambda section: section.opened_ns, default=None)
    waits_in = waits_for_peers(stack, sources)
    since_ns, limit = _story(verdict, youngest.opened_ns if youngest else view.left_section_ns)
    section = verdict.section if verdict is not None else youngest.name if youngest else None
    origin = rank.limit_origin(verdict) if verdict is not None else None
    return RankReport(
        rank=rank.order.rank,
        local_rank=rank.order.local_rank,
        pid=rank.pid(view),
        is_condemned=verdict is not None,
        cause=verdict.cause if verdict is not None else None,
        section=section if verdict is None or verdict.cause == "section" else youngest.name if youngest else None,
        open_seconds=(now_ns - since_ns) / 1e9 if since_ns else None,
        limit_seconds=limit,
        limit_origin=origin.phrase if origin is not None else None,
        limit_advice=origin.advice if origin is not None else None,
        limit_learned=origin.kind if origin is not None and origin.source == LEARNED else None,
        iteration=view.iteration if view.iteration >= 0 else None,
        waits_in=str(waits_in) if waits_in is not None else None,
        stack=stack,
        unmonitored=unmonitored(view),
    )


def _story(verdict: Verdict | None, otherwise_since_ns: int) -> tuple[int, float | None]:
    if verdict is None:
        return otherwise_since_ns, None
    return verdict.since_ns, verdict.limit_seconds


def trimmed(incident: Incident) -> Incident:
    """With no more than a terminal is told, so that it fits into one message however many ranks there are."""
    told = [rank.local_rank for rank in incident.speakers[:MOST_STACKS]]

    def trim(rank: RankReport) -> RankReport:
        thread = main_thread(rank.stack) if rank.local_rank in told else None
        frames = [frame._replace(path="") for frame in thread.frames[:_MOST_FRAMES]] if thread is not None else []
        others = [t._replace(frames=t.frames[:1]) for t in telling_threads(rank.stack)]
        children = [child for child in rank.children if child.is_suspect] if rank.local_rank in told else []
        return rank._replace(
            stack=() if thread is None else (*others, thread._replace(frames=tuple(frames))),
            children=tuple(child.without_most() for child in children[:MOST_CHILDREN]),
            error=rank.error._replace(traceback="") if rank.error is not None else None,
        )

    return incident._replace(ranks=tuple(trim(rank) for rank in incident.ranks))
