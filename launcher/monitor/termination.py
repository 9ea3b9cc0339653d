"""From a verdict to the signal: look at all local ranks, write down what is known, look again, terminate.

The order matters. Stacks first, while there are stacks; then the incident; then a last look, since all that took
time; then the signal. Each is bounded, and the signal is sent whatever becomes of the rest, so that neither a slow
disk nor a stubborn process nor a mistake of ours can keep a stuck rank alive.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcher.incidents.incident import Incident
from launcher.incidents.incident_writer import IncidentWriter
from launcher.incidents.phrases import WITHDRAWN
from launcher.incidents.source_lines import SourceReader
from launcher.monitor.comebacks import Comeback, Comebacks, heard
from launcher.monitor.deadline_rules import Case, DeadlineRules, Findings
from launcher.monitor.hang_incident import action_on, incident_whatever_happens, trimmed
from launcher.monitor.messages import MonitorSettings
from launcher.monitor.near_miss import Lateness, NearMiss, lateness
from launcher.monitor.rank_monitor import RankMonitor
from launcher.monitor.waiters import comeback_of, waited_for
from launcher.processes.handles import send_signal
from resilience_core.protocol.cell_view import CellView

__all__ = ["Reporter", "terminate"]

Standing = Sequence[Case[RankMonitor]]


class Withdrawn(NamedTuple):
    """A case that does not stand any more."""

    case: Case[RankMonitor]
    view: CellView | None
    """What the rank said then."""
    waited_for: int | None = None
    """The rank that it waited for, which came back; it has not moved itself."""

    @property
    def has_answered(self) -> bool:
        """Whether it came back itself."""
        return self.case.answered_by_ns is not None


class Reporter(NamedTuple):
    """Whom :func:`terminate` tells what it does; neither may raise or block."""

    incident: Callable[[Incident, Sequence[int], str | None], None]
    """Called before the signal with the incident, the local ranks that are about to be signalled, and why it could not
    be written, so that the launcher knows of a verdict before it sees a rank end."""
    near_misses: Callable[[Sequence[NearMiss]], None]
    """Called after the signal with those that were spared, peers that were not overdue themselves included."""
    is_being_ended: Callable[[], bool] = lambda: False
    """Whether the launcher, which says so before it signals anybody, ends the generation meanwhile: no verdict then,
    and what looks like a sign of trouble may be the launcher's own doing."""
    suspicion: Callable[[], None] = lambda: None
    """Called before anything is looked at, so that other nodes look at their ranks at the same time."""
    machine: Callable[[], tuple[str, ...]] = tuple
    """What the machine itself tells (:mod:`launcher.incidents.machine`), within a bound."""
    await_others: Callable[[], Sequence[int]] = tuple
    """Called before the signal: once a rank is killed, its peers on other nodes lose it, and no longer stand where they
    stood. Returns within a bound, with what :func:`launcher.monitor.comebacks.heard` reads: who came back there."""


def terminate(
    findings: Findings[RankMonitor],
    everybody: Sequence[RankMonitor],
    rules: DeadlineRules[RankMonitor],
    settings: MonitorSettings,
    writer: IncidentWriter,
    sources: SourceReader,
    report: Reporter,
    comebacks: Comebacks,
) -> list[RankMonitor]:
    """Take evidence from every rank that is alive, write the incident and terminate those whose case stands.

    Args:
        findings: Who is late, or due so soon that it is condemned together, and what all the ranks said.
        everybody: The local ranks of the generation; one that left early may be what the others wait for.
        rules: For the last look.
        settings: The monitor's.
        writer: Of incidents.
        sources: For what stacks do not tell.
        report: Whom to tell.
        comebacks: Who came back before; those that do now are noted.

    Returns:
        Those that were signalled. The others are watched on. Nobody where the generation is being ended: nothing is
        told then and no incident is left.
    """
    for case in findings.cases:
        case.rank.condemn(case.view)
    standing: Standing = findings.cases
    withdrawn: Sequence[Withdrawn] = ()
    announced: list[int] = []
    incident: Incident | None = None
    generation = findings.cases[0].rank.order.generation
    earlier = comebacks.of(generation)
    try:
        report.suspicion()
        incident = incident_whatever_happens(findings, everybody, settings, sources)
        incident = incident._replace(machine=report.machine())
        problem: str | None = None
        if not (is_dropped := report.is_being_ended()):
            incident, problem = writer.write(incident)
            standing, withdrawn = _still_standing(incident, findings, everybody, rules, standing, earlier)
            if is_dropped := report.is_being_ended():
                writer.discard()
        if is_dropped:
            standing = withdrawn = ()
            for case in findings.cases:
                case.rank.withdraw()
        if standing:
            announced = [case.rank.order.local_rank for case in standing]
            told = _corrected(incident, standing, _near_misses(incident, withdrawn, ()), settings)
            report.incident(trimmed(told), announced, problem)
            earlier += heard(report.await_others(), findings.seen_ns)
    finally:
        # Once more: telling takes time, too. From here to the signal there are only system calls.
        standing, back = _still_standing(incident, findings, everybody, rules, standing, earlier, withdrawn)
        number = signal.Signals(settings.config.rank_termination_signal)
        for case in standing:
            pidfd = case.rank.pidfd(case.view)
            if pidfd is not None:
                send_signal(pidfd, number)
                send_signal(pidfd, signal.SIGCONT)  # a stopped process takes the pending signal on waking
    writer.catch_up()
    withdrawn = [*withdrawn, *back]
    if withdrawn and incident is not None:
        for each in withdrawn:
            each.case.rank.withdraw()
        comebacks.note(generation, [comeback_of(each.case) for each in withdrawn if each.has_answered])
        rules.renew(each.case for each in withdrawn if each.waited_for is not None)
        spared = _near_misses(incident, withdrawn, announced)
        corrected = _corrected(incident, standing, spared, settings)
        if standing:
            writer.correct(corrected)
        else:
            writer.withdraw(corrected)
        report.near_misses(spared)
    return [case.rank for case in standing]


def _still_standing(
    incident: Incident | None,
    findings: Findings[RankMonitor],
    everybody: Sequence[RankMonitor],
    rules: DeadlineRules[RankMonitor],
    cases: Standing,
    earlier: Sequence[Comeback],
    before: Sequence[Withdrawn] = (),
) -> tuple[Standing, list[Withdrawn]]:
    """Look once more, and spare who came back, and who waits in a collective for one that did.

    One that was only due together with others, of whom none is late any more, is spared in any case.

    Args:
        incident: What is known; None where nothing is.
        findings: What the verdict is based on.
        everybody: The local ranks of the generation.
        rules: For the look.
        cases: Which.
        earlier: Who came back before the verdict, or on another node.
        before: What was withdrawn at an earlier look.
    """
    standing, gone = rules.still_due(cases)
    withdrawn = [Withdrawn(*each) for each in gone]
    if incident is None:
        return standing, withdrawn
    back = [each.case for each in (*before, *withdrawn) if each.has_answered]
    silent = [case for case in cases if case.answered_by_ns is None]
    came_back = None
    with contextlib.suppress(Exception):  # whatever it is, who is stuck is signalled
        if rules.has_patience(silent):  # one that is late again and again would hide for ever that they are stuck
            since_ns = rules.run_since_ns(silent) if silent else 0
            came_back = waited_for(incident, findings, everybody, silent, back, earlier, since_ns)
    if came_back is None:
        return standing, withdrawn
    answered = [each for each in withdrawn if each.has_answered]
    return [], [*answered, *(Withdrawn(case, case.view, came_back) for case in silent)]


def _corrected(
    incident: Incident, standing: Standing, spared: Sequence[NearMiss], settings: MonitorSettings
) -> Incident:
    """Return the incident without those that are spared and peers that it did not speak of before."""
    if not spared:
        return incident
    said = {miss.local_rank: str(miss) for miss in spared if miss.was_late or miss.was_announced}
    gone = {miss.local_rank for miss in spared}
    ranks = tuple(
        rank._replace(
            is_condemned=False,
            is_culprit=False,
            message=f"{WITHDRAWN}: {said[rank.local_rank]}" if rank.local_rank in said else rank.message,
        )
        if rank.local_rank in gone
        else rank
        for rank in incident.ranks
    )
    if not standing:
        return incident._replace(ranks=ranks, why="; ".join(said.values()), action="none: the verdict was withdrawn")
    why, action = incident.why, action_on([case.rank for case in standing], ranks, settings)
    if incident.culprits and not any(rank.is_culprit for rank in ranks):
        names = ", ".join(str(rank.rank) for rank in incident.culprits)
        why = f"nobody is named: rank {names} was to blame ({why}), but is no longer"
    if said:
        action += f"; not to rank {', '.join(str(m.rank) for m in spared if m.local_rank in said)}, which was spared"
    return incident._replace(ranks=ranks, why=why, action=action)


def _near_misses(incident: Incident, withdrawn: Sequence[Withdrawn], announced: Sequence[int]) -> list[NearMiss]:
    return [
        _near_miss(each, incident)._replace(was_announced=each.case.rank.order.local_rank in announced)
        for each in withdrawn
    ]


def _near_miss(withdrawn: Withdrawn, incident: Incident) -> NearMiss:
    case, view = withdrawn.case, withdrawn.view
    verdict, order = case.verdict, case.rank.order
    late = Lateness()
    if case.is_late and view is not None and case.answered_by_ns is not None:
        late = lateness(case.view, verdict, view, case.answered_by_ns)
    return NearMiss(
        rank=order.rank,
        local_rank=order.local_rank,
        pid=case.rank.pid(case.view),
        cause=verdict.cause,
        section=verdict.section,
        limit_seconds=verdict.limit_seconds,
        late_seconds=late.seconds,
        late_at_most_seconds=late.at_most_seconds,
        was_asked=any(thread.was_asked for rank in incident.ranks for thread in rank.stack),
        waited_for=withdrawn.waited_for,
        was_late=case.was_late,
    )
