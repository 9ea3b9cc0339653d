"""What the monitor tells its launcher of a verdict, and what it does for the other nodes of the job.

A rank that hangs stops the ranks of all nodes, and whose limit passes first is a coin. Once one of them is killed, its
peers lose their connections and no longer stand where they stood. So every node looks at its ranks before any is
signalled: the monitor that finds a rank late says so before it looks itself, and signals once the launcher passes on
that all have looked, or ``--ft-stack-capture-timeout`` after the verdict. With their looks the nodes tell who came back
there: who waits for such a rank is spared (:mod:`launcher.monitor.waiters`), on whatever node.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from launcher.incidents.incident import Incident
from launcher.incidents.incident_writer import SLOWEST_WRITE_SECONDS
from launcher.incidents.machine import LONGEST_MACHINE_SECONDS, MachineEvidence
from launcher.incidents.source_lines import SourceReader
from launcher.monitor.comebacks import Comeback, Comebacks
from launcher.monitor.deadline_rules import Findings
from launcher.monitor.hang_incident import incident_whatever_happens, trimmed
from launcher.monitor.messages import (
    HangReport,
    Look,
    Looked,
    MonitorConfig,
    MonitorSettings,
    Spared,
    Suspected,
)
from launcher.monitor.near_miss import NearMiss
from launcher.monitor.parent_channel import ParentChannel
from launcher.monitor.rank_monitor import RankMonitor
from launcher.monitor.termination import Reporter
from launcher.monitor.waiters import moved_since, only_wait
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["answer_briefly", "busy_until_ns", "look_for_others", "reporter_to"]


_PART = 0.6
"""Of ``stack_capture_timeout``: how long stacks may take where another node waits for them."""


def busy_until_ns(now_ns: int, config: MonitorConfig) -> int:
    """Return until when the monitor may take evidence, wait for other nodes to take theirs, and write the incident."""
    longest_seconds = config.stack_capture_timeout + LONGEST_MACHINE_SECONDS + SLOWEST_WRITE_SECONDS
    return now_ns + int(longest_seconds * NS_PER_SECOND)


def reporter_to(
    channel: ParentChannel,
    machine: MachineEvidence,
    everybody: Sequence[RankMonitor],
    findings: Findings[RankMonitor],
    config: MonitorConfig,
    comebacks: Comebacks,
) -> Reporter:
    """Return what tells the launcher of a verdict.

    Args:
        channel: To the launcher.
        machine: What the machine tells goes into the incident.
        everybody: The ranks of the generation, at least one.
        findings: What the verdict is based on.
        config: How long evidence may delay the signal.
        comebacks: Who came back is told with verdicts that were withdrawn.
    """
    order = everybody[0].order
    generation, until_ns = order.generation, findings.seen_ns + int(config.stack_capture_timeout * NS_PER_SECOND)

    may_answer = False

    def tell_incident(incident: Incident, condemned: Sequence[int], problem: str | None) -> None:
        nonlocal may_answer
        may_answer = only_wait(incident, condemned)
        channel.tell(HangReport(generation, incident, tuple(condemned), problem, only_waits=may_answer))

    def tell_near_misses(near_misses: Sequence[NearMiss]) -> None:
        came_back = comebacks.told(generation, time.monotonic_ns())
        channel.tell(Spared(generation, tuple(near_misses), came_back))

    def is_being_ended() -> bool:
        return channel.is_being_ended(generation)

    def facts() -> tuple[str, ...]:
        return machine.facts(LONGEST_MACHINE_SECONDS, _names(everybody), order.started_ns)

    def tell_suspicion() -> None:
        channel.read()
        channel.forget_word(generation)
        channel.tell(Suspected(generation))

    def answer(look: Look) -> bool:
        # Who has one to blame answers a brief look when it has looked once more: that one may be spared.
        if look.is_brief and may_answer:
            answer_briefly(generation, everybody, findings, channel, comebacks)
        if not look.is_brief:
            # It has looked, for this verdict. Two nodes, each kept waiting by the other's look, would both signal
            # without a word. What is seen once the verdict was carried out or withdrawn is told as well.
            channel.tell(Looked(generation, None, comebacks.told(generation, time.monotonic_ns())))
        return look.is_brief and may_answer

    def await_others() -> tuple[int, ...]:
        return channel.await_word(generation, until_ns, answer)

    if not order.has_others:
        return Reporter(tell_incident, tell_near_misses, is_being_ended, machine=facts)
    return Reporter(
        tell_incident,
        tell_near_misses,
        is_being_ended,
        machine=facts,
        suspicion=tell_suspicion,
        await_others=await_others,
    )


def look_for_others(
    order: Look,
    ranks: Sequence[RankMonitor],
    settings: MonitorSettings,
    sources: SourceReader,
    channel: ParentChannel,
    machine: MachineEvidence,
    comebacks: Comebacks,
) -> Findings[RankMonitor]:
    """Tell the launcher what can be seen of this node's ranks.

    Args:
        order: What was asked.
        ranks: Those of its generation that are watched; where there are none, that is told.
        settings: The monitor's.
        sources: For what stacks do not tell.
        channel: To the launcher.
        machine: What the machine tells goes into the incident.
        comebacks: Who came back before.

    Returns:
        What the ranks said then.
    """
    incident: Incident | None = None
    moved: list[Comeback] = []
    views = {rank: view for rank in ranks if (view := rank.view()) is not None}
    before: Findings[RankMonitor] = Findings([], views, time.monotonic_ns())
    if ranks and not channel.is_being_ended(order.generation):
        # The node that has asked waits for so long from its verdict on; a process that is stuck uses up what there is.
        hurried = settings.config._replace(stack_capture_timeout=_PART * settings.config.stack_capture_timeout)
        settings = settings._replace(config=hurried)
        seen: Findings[RankMonitor] = Findings([], {}, before.seen_ns)
        incident = incident_whatever_happens(seen, ranks, settings, sources, may_signal=order.may_signal)
        facts = machine.facts(LONGEST_MACHINE_SECONDS, _names(ranks), ranks[0].order.started_ns)
        incident = trimmed(incident._replace(machine=facts))
        moved = _moved(ranks, before)
    channel.tell(Looked(order.generation, incident, comebacks.told(order.generation, time.monotonic_ns(), moved)))
    return before


def answer_briefly(
    generation: int,
    ranks: Sequence[RankMonitor],
    before: Findings[RankMonitor],
    channel: ParentChannel,
    comebacks: Comebacks,
) -> None:
    """Tell the launcher who of this node has come back, since all were looked at or before.

    Args:
        generation: Of the ranks.
        ranks: Those that are watched.
        before: What they said when they were looked at.
        channel: To the launcher.
        comebacks: Who came back before.
    """
    came_back = comebacks.told(generation, time.monotonic_ns(), _moved(ranks, before))
    channel.tell(Looked(generation, None, came_back, is_brief=True))


def _moved(ranks: Sequence[RankMonitor], before: Findings[RankMonitor]) -> list[Comeback]:
    return [each for rank in ranks if (each := moved_since(rank, before)) is not None]


def _names(ranks: Sequence[RankMonitor]) -> dict[int, str]:
    """Return what people call the processes of ranks."""
    views = ((rank, rank.view()) for rank in ranks)
    return {rank.pid(view): f"rank {rank.order.rank}" for rank, view in views if view is not None and rank.pid(view)}
