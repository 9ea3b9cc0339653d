"""Who only waits, in a collective, for a rank that has come back since it was looked at.

A kill costs the job a restart; one that hits ranks which would have gone on a few milliseconds later costs it for
nothing. The stacks of a verdict are taken one after another, and the rank that the others wait for may come back before
its own is taken: then every rank stands in the collective, and nobody is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from launcher.incidents.incident import Incident
from launcher.monitor.comebacks import Comeback, explaining
from launcher.monitor.deadline_rules import Case, Findings
from launcher.monitor.rank_monitor import RankMonitor

__all__ = ["comeback_of", "moved_since", "only_wait", "still_silent", "waited_for"]

Standing = Sequence[Case[RankMonitor]]


def waited_for(
    incident: Incident,
    findings: Findings[RankMonitor],
    everybody: Sequence[RankMonitor],
    standing: Standing,
    back: Collection[Case[RankMonitor]],
    earlier: Sequence[Comeback] = (),
    since_ns: int = 0,
) -> int | None:
    """Return the number of a rank that has come back, if all those whose case stands wait for one that has.

    Args:
        incident: What is known; its stacks tell who waits.
        findings: What all ranks said when somebody was found to be late.
        everybody: The local ranks of the generation.
        standing: Whose case stands.
        back: Who has answered since what it was to be terminated for.
        earlier: Who came back before that, on whatever node.
        since_ns: From when on the limits of ``standing`` run.

    Returns:
        One of those that are to blame, where any is; else the first that was late, or was silent for as long as half of
        the limit that has passed, and has given a sign since. One that gives signs all the time is not waited for: it
        would keep a hang of the others from being found. None where somebody does not wait in a collective, or who is
        to blame has not come back.
    """
    if not standing or not _all_wait(incident, [case.rank.order.local_rank for case in standing]):
        return None
    limit_ns = min(case.verdict.deadline_ns - case.verdict.since_ns for case in findings.cases if case.is_late)
    is_condemned = {case.rank for case in findings.cases}
    others = [each for rank in everybody if rank not in is_condemned and (each := moved_since(rank, findings))]
    own = {case.rank.order.rank for case in standing}
    others += [each for each in earlier if each.rank not in own]
    silent = explaining([*map(comeback_of, back), *others], since_ns, limit_ns)
    if culprits := [rank.rank for rank in incident.culprits]:
        returned = {*(case.rank.order.rank for case in back), *(each.rank for each in silent)}
        return culprits[0] if returned.issuperset(culprits) else None
    late = [case.rank.order.rank for case in back if case.was_late]
    returned_ranks = [*late, *(each.rank for each in silent)]
    # One that waited in a collective, too, came back because that has ended.
    waited = {rank.rank for rank in incident.ranks if rank.waits_in is not None}
    return next(iter(sorted(returned_ranks, key=waited.__contains__)), None)


def only_wait(incident: Incident, condemned: Collection[int]) -> bool:
    """Return whether these local ranks wait in a collective, and nobody of this node is to blame."""
    return not incident.culprits and _all_wait(incident, condemned)


def _all_wait(incident: Incident, local_ranks: Collection[int]) -> bool:
    return {rank.local_rank for rank in incident.ranks if rank.waits_in is not None}.issuperset(local_ranks)


def comeback_of(case: Case[RankMonitor]) -> Comeback:
    """Return that a rank has answered what it was to be terminated for."""
    at_ns = case.answered_by_ns or 0
    return Comeback(case.rank.order.rank, at_ns, at_ns - case.verdict.since_ns)


def moved_since(rank: RankMonitor, findings: Findings[RankMonitor]) -> Comeback | None:
    """Return that a rank has given a sign since everybody was looked at; None where it has given none."""
    before, now = findings.views.get(rank), rank.view()
    if before is None or now is None or (now.pid, now.start_time) != (before.pid, before.start_time):
        return None
    if not before.last_sign_ns or now.last_sign_ns <= before.last_sign_ns:
        return None
    return Comeback(rank.order.rank, now.last_sign_ns, findings.seen_ns - before.last_sign_ns)


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
