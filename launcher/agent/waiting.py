"""Wait for workers, and notice meanwhile whoever else speaks to the agent."""

from __future__ import annotations

import select
from collections.abc import Collection
from typing import NamedTuple

from launcher.agent.generation import Generation
from launcher.agent.resources import AgentResources
from launcher.records.console import INFO, announce

__all__ = ["Woken", "forward_signals", "wait_for"]


class Woken(NamedTuple):
    """What a wait was ended by; nothing of it where its time was up."""

    ended: set[int]
    """The pidfds of processes that have ended."""
    by_signal: bool
    by_report: bool
    by_request: bool


def wait_for(resources: AgentResources, pidfds: Collection[int], timeout_seconds: float | None) -> Woken:
    """Wait in one poll until something happens; workers to come and the metrics are looked after on the way.

    Args:
        resources: The monitor, the control socket, the signals and the starter.
        pidfds: Processes to wait for.
        timeout_seconds: How long at most; None for as long as it takes.
    """
    reports, requests = resources.monitor.channel.fileno(), resources.control.fileno()
    idle = resources.starter.descriptors()
    poller = select.poll()
    for descriptor in {*pidfds, *idle, reports, requests, resources.signals.descriptor}:
        poller.register(descriptor, select.POLLIN)
    dues = [timeout_seconds, resources.starter.due_seconds(), *resources.dues_of_helpers()]
    due = min((each for each in dues if each is not None), default=None)
    timeout = None if due is None else max(0, round(due * 1000 + 0.5))
    ready = {descriptor for descriptor, _ in poller.poll(timeout)}
    if by_signal := resources.signals.descriptor in ready:
        resources.signals.drain()
    if ready.intersection(idle) or resources.starter.due_seconds() == 0:
        resources.starter.maintain()
    resources.tend_helpers()
    return Woken(ready.intersection(pidfds), by_signal, reports in ready, requests in ready)


def forward_signals(resources: AgentResources, current: Generation | None) -> None:
    """Pass on what a scheduler announces an end with, to those ranks that would not be killed by it."""
    for number in resources.signals.take_forwarded():
        told = current.processes.tell(number) if current is not None else []
        said = f"{number.name} passed on to local ranks {told}" if told else f"{number.name}: no rank handles it"
        announce(said, level=INFO, event="forwarded")
        generation = current.number if current is not None else 0
        resources.events.write("forwarded", generation=generation, signal=number.name, local_ranks=told)
