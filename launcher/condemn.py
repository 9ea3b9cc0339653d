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

from launcher.blame import Suspect, assign_blame, waits_for_peers
from launcher.incident import Incident, RankReport
from launcher.processes import process_status, send_signal
from launcher.stacks import Thread, main_thread, take_stacks
from launcher.verdict import Verdict
from launcher.watch import RankMonitor
from resilience_core.cell import STACK_SIGNAL, CellView

__all__ = ["condemn"]

SLOWEST_WRITE_SECONDS = 0.5


def condemn(
    doomed: Sequence[RankMonitor],
    alive: Sequence[RankMonitor],
    now_ns: int,
    settings: dict[str, Any],
    tell: Callable[[Incident, str | None], None],
) -> None:
    """Take evidence from every rank that is alive, write the incident and terminate the doomed.

    Args:
        doomed: Ranks that are overdue, or due so soon that they are condemned together.
        alive: Every local rank to be looked at, the doomed among them.
        now_ns: When the verdict was believed.
        settings: The monitor's.
        tell: Given the incident and, if it could not be written, why. Called before the signal, so that the
            launcher knows of the verdict before it sees a rank end.
    """
    config = settings["config"]
    views = {rank: rank.view() for rank in alive}
    for rank in doomed:
        rank.condemn(views[rank])
    stopped = {rank for rank in alive if rank.is_stopped(views[rank])}
    stacks = _stacks(doomed, views, settings) if config["capture_stacks"] else {}
    blame = assign_blame(
        [
            Suspect(
                rank.order.local_rank,
                rank in doomed,
                rank in stopped,
                views[rank].iteration,
                stacks.get(rank.order.local_rank, ()),
            )
            for rank in alive
        ]
    )
    number = signal.Signals(config["rank_termination_signal"])
    reports = [
        _report(rank, views[rank], now_ns, stacks.get(rank.order.local_rank, ()), rank in doomed)._replace(
            is_culprit=rank.order.local_rank in blame.local_ranks
        )
        for rank in alive
    ]
    verdicts = [v for rank in doomed if (v := rank.verdict(views[rank], now_ns)) is not None]
    ranks = ", ".join(str(rank.order.rank) for rank in doomed)
    incident = Incident(
        kind="hang",
        generation=doomed[0].order.generation,
        why=blame.why,
        action=f"{number.name} to rank {ranks}; {_what_follows(settings)}",
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
        return "the group is restarted while --max-restarts allows"
    return "to start it again is the business of whoever started it"


def _stacks(
    doomed: Sequence[RankMonitor], views: dict[RankMonitor, CellView], settings: dict[str, Any]
) -> dict[int, tuple[Thread, ...]]:
    return take_stacks(
        {rank.order.local_rank: rank.pid(view) for rank, view in views.items() if rank.pid(view)},
        py_spy=settings["py_spy"],
        scratch=settings["run_folder"],
        timeout_seconds=settings["config"]["stack_capture_timeout"],
        fallback_files={rank.order.local_rank: rank.stack_file for rank in doomed if views[rank].pid},
        fallback_signal=STACK_SIGNAL,
    )


def _report(
    rank: RankMonitor, view: CellView, now_ns: int, stack: tuple[Thread, ...], is_condemned: bool
) -> RankReport:
    verdict = rank.verdict(view, now_ns)
    if verdict is None and is_condemned:  # not overdue yet, but due together with the others
        verdict = rank.verdict(view, rank.next_deadline_ns(view))
    youngest = max(view.sections, key=lambda section: section.opened_ns, default=None)
    status = process_status(rank.pid(view))
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
        process_state=status.state if status is not None else None,
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
