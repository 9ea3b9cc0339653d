"""Wait for workers, and notice meanwhile whoever else speaks to the agent."""

from __future__ import annotations

import select
from collections.abc import Collection
from typing import NamedTuple

from launcher.agent.generation import Generation
from launcher.agent.resources import Outfit
from launcher.records.console import say

__all__ = ["Woken", "forward_signals", "wait_for"]


class Woken(NamedTuple):
    """What a wait was ended by; nothing of it where its time was up."""

    ended: set[int]
    """The pidfds of processes that have ended."""
    by_signal: bool
    by_report: bool
    by_request: bool


def wait_for(outfit: Outfit, pidfds: Collection[int], timeout_seconds: float | None) -> Woken:
    """Wait in one poll until something happens; the starter of workers is maintained on the way.

    Args:
        outfit: The monitor, the control socket, the signals and the starter.
        pidfds: Processes to wait for.
        timeout_seconds: How long at most; None for as long as it takes.
    """
    reports, requests = outfit.monitor.channel.fileno(), outfit.control.fileno()
    idle = outfit.starter.descriptors()
    poller = select.poll()
    for descriptor in {*pidfds, *idle, reports, requests, outfit.signals.descriptor}:
        poller.register(descriptor, select.POLLIN)
    tending_seconds = outfit.starter.due_seconds()
    due = min((each for each in (timeout_seconds, tending_seconds) if each is not None), default=None)
    timeout = None if due is None else max(0, round(due * 1000 + 0.5))
    ready = {descriptor for descriptor, _ in poller.poll(timeout)}
    if by_signal := outfit.signals.descriptor in ready:
        outfit.signals.drain()
    if ready.intersection(idle) or outfit.starter.due_seconds() == 0:
        outfit.starter.tend()
    return Woken(ready.intersection(pidfds), by_signal, reports in ready, requests in ready)


def forward_signals(outfit: Outfit, current: Generation | None) -> None:
    """Pass on what a scheduler announces an end with, to those ranks that would not be killed by it."""
    for number in outfit.signals.take_forwarded():
        told = current.processes.tell(number) if current is not None else []
        say(f"{number.name} passed on to local ranks {told}" if told else f"{number.name}: no rank handles it")
        generation = current.number if current is not None else 0
        outfit.events.write("forwarded", generation=generation, signal=number.name, local_ranks=told)
