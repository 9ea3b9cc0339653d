"""From a verdict to the signal: look at all local ranks, write down what is known, terminate.

The order matters. Stacks first, while there are stacks; then the incident; then the signal. Each is bounded, so
that neither a slow disk nor a stubborn process can keep a stuck rank alive.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from launcher.blame import assign_blame, waits_for_peers
from launcher.evidence import Evidence, ProcessLook, look_at, uses_a_gpu
from launcher.incident import Incident, RankReport
from launcher.processes import send_signal
from launcher.stacks import Thread, is_a_wait_for_the_gpu, main_thread, own_frame, take_stacks
from launcher.verdict import Verdict
from launcher.watch import RankMonitor
from resilience_core.cell import STACK_SIGNAL, CellView

__all__ = ["condemn"]

SLOWEST_WRITE_SECONDS = 0.5


def condemn(
    doomed: Sequence[RankMonitor],
    everybody: Sequence[RankMonitor],
    now_ns: int,
    settings: dict[str, Any],
    tell: Callable[[Incident, str | None], None],
) -> None:
    """Take evidence from every rank, write the incident and terminate the doomed.

    Args:
        doomed: Ranks that are overdue, or due so soon that they are condemned together.
        everybody: The local ranks of the generation, the doomed among them.
        now_ns: When the verdict was believed.
        settings: The monitor's.
        tell: Given the incident and, if it could not be written, why. Called before the signal, so that the
            launcher knows of the verdict before it sees a rank end.
    """
    config = settings["config"]
    views = {rank: rank.view() for rank in everybody}
    # What ended because an earlier verdict ended it tells nothing about this one.
    group = [rank for rank in everybody if rank in doomed or not rank.is_condemned(views[rank])]
    for rank in doomed:
        rank.condemn(views[rank])
    looks = {rank: look_at(rank.pid(views[rank])) for rank in group}
    stacks = _stacks(doomed, {r: views[r] for r in group if _answers(looks[r])}, settings)
    evidence = {
        rank: _evidence(rank, views[rank], looks[rank], stacks.get(rank.order.local_rank, ())) for rank in group
    }
    blame = assign_blame(
        [evidence[rank]._replace(is_condemned=rank in doomed) for rank in group],
        has_others=doomed[0].order.has_others,
    )
    number = signal.Signals(config["rank_termination_signal"])
    reports = [
        _report(rank, views[rank], now_ns, stacks.get(rank.order.local_rank, ()), rank in doomed)._replace(
            is_culprit=rank.order.local_rank in blame.local_ranks,
            process_state=evidence[rank].state or None,
            kernel_wait=look.kernel_wait or None if (look := looks[rank]) is not None else None,
            is_busy=evidence[rank].is_busy,
            exit_code=evidence[rank].exit_code,
            error=(error := evidence[rank].error),
            message=error.first_line() if error is not None else None,
        )
        for rank in group
    ]
    verdicts = [v for rank in doomed if (v := rank.verdict(views[rank], now_ns)) is not None]
    ranks = ", ".join(str(rank.order.rank) for rank in doomed)
    incident = Incident(
        kind="hang",
        generation=doomed[0].order.generation,
        why=blame.why,
        action=f"{number.name} to rank {ranks}{_what_follows(settings)}",
        ranks=tuple(reports),
        deadline_ns=min((v.deadline_ns for v in verdicts), default=None),
        seen_ns=now_ns,
    )
    incident, problem = _write_within_bound(incident, settings["log_folder"] + "/incidents")
    tell(_trimmed(incident), problem)
    for rank in doomed:
        pidfd = rank.pidfd(views[rank])
        if pidfd is not None:
            send_signal(pidfd, number)
            send_signal(pidfd, signal.SIGCONT)  # a stopped process takes the pending signal on waking


def _what_follows(settings: dict[str, Any]) -> str:
    if settings["owns_ranks"]:
        return ""  # the launcher knows how many restarts are left, and says so
    return "; to start it again is the business of whoever started it"


def _answers(look: ProcessLook | None) -> bool:
    """Whether there is a process that could be asked for its stacks."""
    return look is None or look.exit_code is None


def _stacks(
    doomed: Sequence[RankMonitor], views: dict[RankMonitor, CellView], settings: dict[str, Any]
) -> dict[int, tuple[Thread, ...]]:
    if not settings["config"]["capture_stacks"]:
        return {}
    # The launcher ends every rank once one is condemned, so none has anything left to be disturbed in.
    may_be_asked = views if settings["owns_ranks"] else doomed
    return take_stacks(
        {rank.order.local_rank: rank.pid(view) for rank, view in views.items() if rank.pid(view)},
        py_spy=settings["py_spy"],
        scratch=settings["run_folder"],
        timeout_seconds=settings["config"]["stack_capture_timeout"],
        fallback_files={r.order.local_rank: r.stack_file for r in may_be_asked if r in views and views[r].pid},
        fallback_signal=STACK_SIGNAL,
    )


def _evidence(rank: RankMonitor, view: CellView, look: ProcessLook | None, stack: tuple[Thread, ...]) -> Evidence:
    later = look_at(rank.pid(view))
    has_gpu = uses_a_gpu(rank.pid(view))
    waits: bool | None = None
    waits_at = ""
    if stack:
        waits = waits_for_peers(stack) is not None
        if waits:
            waits_at = str(own_frame(stack) or "")
        elif has_gpu and is_a_wait_for_the_gpu(stack):
            waits = None
    is_busy = None
    if look is not None and later is not None and not has_gpu:
        is_busy = look.state == later.state == "R"
    return Evidence.of_cell(rank.order.local_rank, view, later, rank.error())._replace(
        waits=waits, waits_at=waits_at, is_busy=is_busy, has_gpu=has_gpu
    )


def _report(
    rank: RankMonitor, view: CellView, now_ns: int, stack: tuple[Thread, ...], is_condemned: bool
) -> RankReport:
    verdict = rank.verdict(view, now_ns) if is_condemned else None  # one that has ended is late for nothing
    if verdict is None and is_condemned:  # not overdue yet, but due together with the others
        verdict = rank.verdict(view, rank.next_deadline_ns(view))
    youngest = max(view.sections, key=lambda section: section.opened_ns, default=None)
    waits_in = waits_for_peers(stack)
    since_ns, limit = _story(verdict, youngest.opened_ns if youngest else view.left_section_ns)
    section = verdict.section if verdict is not None else youngest.name if youngest else None
    return RankReport(
        rank=rank.order.rank,
        local_rank=rank.order.local_rank,
        pid=rank.pid(view),
        is_condemned=is_condemned,
        cause=verdict.cause if verdict is not None else None,
        section=section if verdict is None or verdict.cause == "section" else youngest.name if youngest else None,
        open_seconds=(now_ns - since_ns) / 1e9 if since_ns else None,
        limit_seconds=limit,
        iteration=view.iteration if view.iteration >= 0 else None,
        waits_in=str(waits_in) if waits_in is not None else None,
        stack=stack,
    )


def _story(verdict: Verdict | None, otherwise_since_ns: int) -> tuple[int, float | None]:
    if verdict is None:
        return otherwise_since_ns, None
    return verdict.since_ns, verdict.limit_seconds


def _write_within_bound(incident: Incident, parent: str) -> tuple[Incident, str | None]:
    """Write the incident, but let no slow file system delay the signal; the thread finishes by itself."""
    outcome: list[tuple[Incident, str | None]] = []

    def write() -> None:
        try:
            outcome.append((incident.write(parent), None))
        except OSError as error:
            outcome.append((incident, f"cannot write the incident under {parent}: {error.strerror}"))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(SLOWEST_WRITE_SECONDS)
    if not outcome:
        return incident, f"writing the incident under {parent} takes longer than {SLOWEST_WRITE_SECONDS} s"
    if outcome[0][1] is not None:
        print(f"ft_launcher: {outcome[0][1]}", file=sys.stderr)
    return outcome[0]


def _trimmed(incident: Incident) -> Incident:
    """Without all but the main thread's innermost frames: small enough for one message."""

    def trim(rank: RankReport) -> RankReport:
        thread = main_thread(rank.stack)
        return rank._replace(stack=() if thread is None else (thread._replace(frames=thread.frames[:8]),))

    return incident._replace(ranks=tuple(trim(rank) for rank in incident.ranks))
