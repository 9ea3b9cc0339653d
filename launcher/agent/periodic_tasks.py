"""What the agent does that nothing wakes it for: collect orphans, look at cells, have successors parked."""

from __future__ import annotations

import time

from launcher.agent.generation import Generation
from launcher.records.console import ERROR, announce
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["PeriodicTasks"]

_LONGEST_PAUSE_SECONDS = 3600.0
_CHORES_SECONDS = 1.0
"""How often orphans that have ended are collected and cells are looked at."""
_EARLY_CHORES_SECONDS = 0.25
"""The same until every rank has shown its first sign of life."""
_SHORTEST_CHORES_SECONDS = 0.01
_SETTLING_NS = NS_PER_SECOND // 4
"""How long a new generation has the machine to itself before its successors are parked, and chores are done."""


class PeriodicTasks:
    """When to do what, for one generation after the other."""

    def __init__(self) -> None:
        self.due_ns = 0
        """When chores are due next, ``CLOCK_MONOTONIC``."""
        self._prepare_at_ns: int | None = None

    def generation_started(self) -> None:
        """Leave the machine to the new generation for a moment."""
        self._prepare_at_ns = self.due_ns = time.monotonic_ns() + _SETTLING_NS

    def settling_seconds(self) -> float | None:
        """Return how long to wait before successors are prepared: 0 once, when it is time; None afterwards."""
        if self._prepare_at_ns is None:
            return None
        settling_ns = max(0, self._prepare_at_ns - time.monotonic_ns())
        if settling_ns == 0:
            self._prepare_at_ns = None
        return settling_ns / NS_PER_SECOND

    def do(self, current: Generation) -> float:
        """Kill who lives on although it was terminated, and do what is due; chores read files, so not at every wake-up.

        Returns:
            In how many seconds to come back.
        """
        kill_seconds = _LONGEST_PAUSE_SECONDS
        if current.condemned or current.overstayed:
            said, seconds = current.kill_lingering()
            for line in said:
                announce(line, level=ERROR, event="not_gone", generation=current.number)
            kill_seconds = seconds if seconds is not None else kill_seconds
        left_ns = self.due_ns - time.monotonic_ns()
        if left_ns > 0:
            return min(kill_seconds, left_ns / NS_PER_SECOND)
        current.reap_orphans()
        current.look_at_machine()
        current.log_phases()
        current.note_figures()
        for line in current.look_after_the_unmonitored():
            announce(line, event="unmonitored", generation=current.number)
        seconds = _CHORES_SECONDS if current.has_logged_phases else _EARLY_CHORES_SECONDS
        if (next_look := current.next_look_seconds()) is not None:
            seconds = max(_SHORTEST_CHORES_SECONDS, min(seconds, next_look))
        self.due_ns = time.monotonic_ns() + int(seconds * NS_PER_SECOND)
        return min(kill_seconds, seconds)
