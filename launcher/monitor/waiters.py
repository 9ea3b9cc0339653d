"""Who only waits, in a collective, for a rank that has come back since it was looked at.

A kill costs the job a restart; one that hits ranks which would have gone on a few milliseconds later costs it for
nothing. The stacks of a verdict are taken one after another, and the rank that the others wait for may come back before
its own is taken: then every rank stands in the collective, and nobody is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from launcher.incidents.incident import Incident
from launcher.monitor.deadline_rules import Case, Findings
from launcher.monitor.rank_monitor import RankMonitor

__all__ = ["still_silent", "waited_for"]

Standing = Sequence[Case[RankMonitor]]


def waited_for(
    incident: Incident,
    findings: Findings[RankMonitor],
    everybody: Sequence[RankMonitor],
    standing: Standing,
    back: Collection[Case[RankMonitor]],
) -> RankMonitor | None:
    """Return a rank that has come back, if all those whose case stands wait for one that has.

    Args:
        incident: What is known; its stacks tell who waits.
        findings: What all ranks said when somebody was found to be late.
        everybody: The local ranks of the generation.
        standing: Whose case stands.
        back: Who has answered since what it was to be terminated for.

    Returns:
        One of those that are to blame, where any is; else the first that was silent, as long as half of the limit that
        has passed, and has given a sign since. One that gives signs all the time is not waited for: it would keep a
        hang of the others from being found. None where somebody does not wait in a collective, or who is to blame has
        not come back.
    """
    reports = {rank.local_rank: rank for rank in incident.ranks}
    waiting = {number for number, report in reports.items() if report.waits_in is not None}
    if not standing or any(case.rank.order.local_rank not in waiting for case in standing):
        return None
    answered = [case.rank for case in back]
    is_condemned = {case.rank for case in findings.cases}
    others = [rank for rank in everybody if rank not in is_condemned and _has_come_back(rank, findings)]
    culprits = {rank.local_rank for rank in incident.culprits}
    if culprits:
        named = [rank for rank in (*answered, *others) if rank.order.local_rank in culprits]
        return named[0] if len(named) == len(culprits) else None
    late = [case.rank for case in back if case.was_late]
    return next(iter((*late, *others)), None)


def still_silent(findings: Findings[RankMonitor], ranks: Sequence[RankMonitor]) -> list[RankMonitor]:
    """Return those ranks that have not come back; nobody where none is left of those that were late.

    Native frames are taken of these alone: py-spy halts a process while it reads the symbols of C libraries, which
    costs the job that time where the rank goes on.
    """
    answered = [case for case in findings.cases if case.is_answered_by(case.rank.view())]
    if findings.cases and all(case in answered for case in findings.cases if case.is_late):
        return []
    back = {case.rank for case in answered}
    return [rank for rank in ranks if rank not in back]


def _has_come_back(rank: RankMonitor, findings: Findings[RankMonitor]) -> bool:
    """Return whether a rank that is not to be terminated was silent for long, and is no longer."""
    before, now = findings.views.get(rank), rank.view()
    if before is None or now is None or (now.pid, now.start_time) != (before.pid, before.start_time):
        return False
    limits_ns = [case.verdict.deadline_ns - case.verdict.since_ns for case in findings.cases if case.is_late]
    was_silent = bool(before.last_sign_ns) and 2 * (findings.seen_ns - before.last_sign_ns) >= min(limits_ns)
    return was_silent and now.last_sign_ns > before.last_sign_ns
