"""The time of a simulated node: one monitor after the other, and the launcher's keeper beside it."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

from benchmarks.simulate_monitor.ranks import MS, NS, Spans, between
from launcher.monitor.lost_time import KEEPER, MONITOR, LostTime
from launcher.monitor.replacement_rules import ReplacementRules

__all__ = ["Clock", "Plan", "ReplacedError"]

_KEEPER_LOOK_NS = 250 * MS


class Plan(NamedTuple):
    """What happens to a node in one disturbance, and to whom."""

    start_ns: int
    freezes: list[tuple[int, int]]
    ranks: list[Spans]
    monitor: Spans
    successor: Spans
    keeper: Spans
    deaths: list[tuple[int, str]]
    is_starved: bool


class ReplacedError(Exception):
    """This monitor is no more."""


class Clock:
    """The time of one monitor after the other, with the launcher's keeper beside it."""

    def __init__(self, chance: random.Random, lost: LostTime, counts: Counter[str], plan: Plan, start_ns: int) -> None:
        self.now_ns = start_ns
        self._chance, self._lost, self._counts, self.plan = chance, lost, counts, plan
        self.monitor = plan.monitor
        self.keeper_ns = start_ns + between(self._chance, _KEEPER_LOOK_NS)
        self._replacement = ReplacementRules(start_ns - 3600 * NS)
        self._replacement.what_is_wrong(start_ns, None, start_ns, 0)
        self._deaths = list(plan.deaths)
        self._dead: tuple[int, str] | None = None
        self.replaced_ns: int | None = None

    def clock(self) -> int:
        """The monitor's: it may lose the processor in any system call."""
        self.pause(between(self._chance, 1_000, 30_000))
        self._lost.beat(MONITOR, self.now_ns)
        return self.now_ns

    def pause(self, ns: int) -> None:
        """Let the monitor sleep; whoever else acts meanwhile does so first."""
        wakes_ns = self.monitor.runs_at(self.now_ns + ns + between(self._chance, 10_000, 100_000))
        if self._deaths and self._deaths[0][0] <= wakes_ns:
            dies_ns, how = self._deaths.pop(0)
            self.keep_until(max(self.now_ns, dies_ns))
            self._dead = (dies_ns, how)
            while self.replaced_ns is None:
                self.keep_until(self.keeper_ns)
        else:
            self.keep_until(wakes_ns)
        if self.replaced_ns is not None:
            raise ReplacedError
        self.now_ns = wakes_ns

    def keep_until(self, at_ns: int) -> None:
        """Let the keeper look until then, and replace the monitor where it finds it dead, stopped or stuck."""
        lost = self._lost
        while self.keeper_ns <= at_ns:
            now_ns = self.keeper_ns
            lost.beat(KEEPER, now_ns)
            state = None
            if self._dead is not None and self._dead[0] <= now_ns:
                state = self._dead[1]
            beat_ns = lost.last_beat_ns(MONITOR)
            if self.replaced_ns is None and self._replacement.what_is_wrong(now_ns, state, beat_ns, lost.busy_until_ns):
                self._replacement.ended(now_ns)
                self._replacement.started(now_ns)
                self._dead = None
                self.replaced_ns = now_ns
                self._counts["monitors replaced"] += 1
            sleep_ns = min(lost.beat_period_ns, _KEEPER_LOOK_NS) + between(self._chance, 10_000, 100_000)
            self.keeper_ns = self.plan.keeper.runs_at(now_ns + sleep_ns)

    def successor(self) -> None:
        """Go on as the next monitor."""
        assert self.replaced_ns is not None
        work_ns = between(self._chance, 15 * MS, 120 * MS)
        self.monitor = self.plan.successor
        started_ns, self.replaced_ns = self.monitor.after(self.replaced_ns, work_ns), None
        self.keep_until(started_ns)
        self.now_ns = max(self.now_ns, started_ns)
