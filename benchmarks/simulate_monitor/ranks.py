"""Processes in simulated time: when they run, and what a rank says."""

from __future__ import annotations

import bisect
import random
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from launcher.monitor.lost_time import Freeze
from launcher.monitor.verdict import Deadline, Sighting, sight
from resilience_core.protocol.cell_layout import CLOSED, WATCHED
from resilience_core.protocol.cell_view import CellView, OpenSection
from resilience_core.protocol.limit_kinds import CONFIGURED, LEARNED

__all__ = ["MS", "NS", "Phase", "Rank", "Spans", "between", "slices"]

NS = 1_000_000_000
MS = 1_000_000
LIMIT_FACTOR = 1.5


class Spans:
    """When a process does not run: spans in order that do not overlap."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        merged: list[list[int]] = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self.spans = merged
        self._starts = [start for start, _ in merged]

    def runs_at(self, at_ns: int) -> int:
        """The first instant from then on at which it runs."""
        index = bisect.bisect_right(self._starts, at_ns) - 1
        return max(at_ns, self.spans[index][1]) if index >= 0 else at_ns

    def after(self, at_ns: int, work_ns: int) -> int:
        """When it has done so much work, beginning then."""
        index = max(0, bisect.bisect_right(self._starts, at_ns) - 1)
        for start, end in self.spans[index:]:
            if end <= at_ns:
                continue
            if start > at_ns:
                if start - at_ns >= work_ns:
                    return at_ns + work_ns
                work_ns -= start - at_ns
            at_ns = end
        return at_ns + work_ns


def between(chance: random.Random, low: int, high: int | None = None) -> int:
    """Like ``randrange``, in a quarter of its time."""
    return int(chance.random() * low) if high is None else low + int(chance.random() * (high - low))


def slices(chance: random.Random, span: tuple[int, int], run_ns: int, wait_ns: int) -> list[tuple[int, int]]:
    """A process that competes: it runs for a while, and waits for a while."""
    found, at_ns = [], span[0] + between(chance, run_ns + wait_ns)
    while at_ns < span[1]:
        found.append((at_ns, at_ns + wait_ns))
        at_ns += wait_ns + run_ns
    return found


class _Clock(Protocol):
    now_ns: int


class _Limits(Protocol):
    chance: random.Random
    longest_ns: Mapping[bool, int]
    smallest_limit_ns: int


class Phase(NamedTuple):
    """A section, or the time between two."""

    start_ns: int
    end_ns: int
    deadline_ns: int
    is_section: bool


class Rank:
    """What the rounds see of a rank: phases that are drawn as far as they are looked at.

    Args:
        node: Its limits, and its chance.
        spans: When it does not run.
        clock: What time it is.
        hang_ns: From when on it does nothing any more; None for a healthy one.
    """

    def __init__(self, node: _Limits, spans: Spans, clock: _Clock, hang_ns: int | None) -> None:
        self.kill_at_ns: int | None = None
        self.is_condemned = False
        self.watched_since_ns = 0
        self.spans = spans
        self.has_learned_gaps = False
        """Whether the limits of the time between sections were learned, and those of sections configured."""
        self.found_by_ns: int | None = None
        """Of one that hangs: by when it must be found, when not at its own deadline."""
        self._node, self._clock, self._hang_ns = node, clock, hang_ns
        self._at = 0
        is_section = node.chance.random() < 0.7
        since_ns = clock.now_ns - between(node.chance, node.longest_ns[is_section])
        self.phases = [self._phase(since_ns, is_section, clock.now_ns - since_ns)]

    def draw_until(self, at_ns: int) -> None:
        """Know what it does until then."""
        while (last := self.phases[-1]).end_ns <= at_ns:
            self.phases.append(self._phase(last.end_ns, not last.is_section))

    def _phase(self, start_ns: int, is_section: bool, done_ns: int = 0) -> Phase:
        chance, longest_ns = self._node.chance, self._node.longest_ns[is_section]
        work_ns = max(done_ns, int(longest_ns * chance.uniform(0.5, 1.0)))
        if chance.random() < 0.1:  # a garbage collection
            work_ns += int(longest_ns * chance.uniform(0.0, 0.15))
        end_ns = self.spans.after(start_ns, work_ns)
        if self._hang_ns is not None and end_ns > self._hang_ns:
            end_ns = sys.maxsize
        return Phase(start_ns, end_ns, start_ns + int(LIMIT_FACTOR * longest_ns), is_section)

    def view(self) -> CellView:
        """What its cell says at this instant."""
        now_ns = self._clock.now_ns
        self.draw_until(now_ns)
        while self.phases[self._at].end_ns <= now_ns:
            self._at += 1
        phase = self.phases[self._at]
        is_section = phase.is_section
        return CellView(
            pid=1, start_time=1, state=WATCHED, smallest_limit_ns=self._node.smallest_limit_ns, iteration=self._at,
            heartbeat_ns=CLOSED, out_of_section_ns=phase.deadline_ns, last_heartbeat_ns=0,
            left_section_ns=phase.start_ns, rank=0,
            sections=(OpenSection("step", 0, phase.deadline_ns, phase.start_ns),) if is_section else (),
        )  # fmt: skip

    def sight(self, view: CellView, now_ns: int, freezes: Sequence[Freeze]) -> Sighting:
        """As ``RankMonitor`` does."""
        return sight(view, now_ns, freezes, watched_since_ns=self.watched_since_ns)

    def basis(self, deadline: Deadline) -> str | None:
        """Nothing is known of the limits where nobody waits."""
        if not self.has_learned_gaps:
            return None
        return CONFIGURED if deadline.cause == "section" else LEARNED

    def is_watched(self, view: CellView) -> bool:
        """Until it is condemned."""
        return not self.is_condemned
