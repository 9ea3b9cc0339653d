"""Simulates the monitor's rules in invented time, with the real classes: no healthy rank killed, no hang missed.

    python -m benchmarks.simulate_monitor                                  10^6 rank-hours, some minutes on one core
    python -m benchmarks.simulate_monitor --rank-hours 1e4 --hangs 2000 --seed 3

Nodes of eight ranks go through sections and the time between them; each limit is 1.5 times the longest true duration.
Every half hour on average something happens to a node: freezes of everybody for 0.1 to 5 s (the processes wake one
after the other), competition for the processors, garbage collections, monitors that are killed or stopped, most often
in or just after a freeze. The rules run as in the monitor and in the launcher: ``Rounds``, ``sight``, ``LostTime`` in
real shared memory, and ``Keeping``, which replaces monitors.

What is skipped, and why that changes nothing: between two disturbances no rank is past a deadline, so no look can find
one, and each beat of a witness only moves its last one. A disturbance in which no rank comes past a deadline is counted
and not looked at either, since deadlines only ever move back. So the work grows with the number of disturbances, not
with the number of steps; shorter intervals between disturbances cost as much more time.

With ``--hangs``, one rank of a node hangs for ever in the middle of such a disturbance, and must be condemned within
its limit and whatever was given back or nobody watched in. Ends with 1 when a healthy rank was killed or a hang missed.
"""

from __future__ import annotations

import argparse
import bisect
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from launcher.keeping import Keeping
from launcher.lost_time import KEEPER, MONITOR, Freeze, LostTime
from launcher.rounds import Case, Rounds
from launcher.verdict import Sighting, sight
from resilience_core.cell import CLOSED, WATCHED, CellView, OpenSection

__all__ = ["Node", "Totals", "simulate"]

NS = 1_000_000_000
MS = 1_000_000
RANKS = 8
MEAN_QUIET_SECONDS = 1800.0
LIMIT_FACTOR = 1.5
LONGEST_SUPPLY_NS = 400 * MS
"""How long a process may take to wake after the first of its tree; less than the rules allow for."""
_KEEPER_LOOK_NS = 250 * MS
_BOUND_NS = 4 * NS
"""Beyond its limit, what was given back and the time without a monitor, a hang must be found within this."""


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

    def __init__(self, node: Node, spans: Spans, clock: Clock, hang_ns: int | None) -> None:
        self.kill_at_ns: int | None = None
        self.is_condemned = False
        self.watched_since_ns = 0
        self._node, self._spans, self._clock, self._hang_ns = node, spans, clock, hang_ns
        self._at = 0
        is_section = node.chance.random() < 0.7
        since_ns = clock.now_ns - _between(node.chance, node.longest_ns[is_section])
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
        end_ns = self._spans.after(start_ns, work_ns)
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

    def is_watched(self, view: CellView) -> bool:
        """Until it is condemned."""
        return not self.is_condemned


class ReplacedError(Exception):
    """This monitor is no more."""


class Clock:
    """The time of one monitor after the other, with the launcher's keeper beside it."""

    def __init__(self, node: Node, plan: Plan, start_ns: int) -> None:
        self.now_ns = start_ns
        self._node, self.plan = node, plan
        self._chance = node.chance
        self.monitor = plan.monitor
        self.keeper_ns = start_ns + _between(self._chance, _KEEPER_LOOK_NS)
        self._keeping = Keeping(start_ns - 3600 * NS)
        self._keeping.what_is_wrong(start_ns, None, start_ns, 0)
        self._deaths = list(plan.deaths)
        self._dead: tuple[int, str] | None = None
        self.replaced_ns: int | None = None

    def clock(self) -> int:
        """The monitor's: it may lose the processor in any system call."""
        self.pause(_between(self._chance, 1_000, 30_000))
        self._node.lost.beat(MONITOR, self.now_ns)
        return self.now_ns

    def pause(self, ns: int) -> None:
        """Let the monitor sleep; whoever else acts meanwhile does so first."""
        wakes_ns = self.monitor.runs_at(self.now_ns + ns + _between(self._chance, 10_000, 100_000))
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
        lost = self._node.lost
        while self.keeper_ns <= at_ns:
            now_ns = self.keeper_ns
            lost.beat(KEEPER, now_ns)
            state = None
            if self._dead is not None and self._dead[0] <= now_ns:
                state = self._dead[1]
            beat_ns = lost.last_beat_ns(MONITOR)
            if self.replaced_ns is None and self._keeping.what_is_wrong(now_ns, state, beat_ns, lost.busy_until_ns):
                self._keeping.ended(now_ns)
                self._keeping.started(now_ns)
                self._dead = None
                self.replaced_ns = now_ns
                self._node.totals.counts["monitors replaced"] += 1
            sleep_ns = min(lost.beat_period_ns, _KEEPER_LOOK_NS) + _between(self._chance, 10_000, 100_000)
            self.keeper_ns = self.plan.keeper.runs_at(now_ns + sleep_ns)

    def successor(self) -> None:
        """Go on as the next monitor."""
        assert self.replaced_ns is not None
        work_ns = _between(self._chance, 15 * MS, 120 * MS)
        self.monitor = self.plan.successor
        started_ns, self.replaced_ns = self.monitor.after(self.replaced_ns, work_ns), None
        self.keep_until(started_ns)
        self.now_ns = max(self.now_ns, started_ns)


class Plan(NamedTuple):
    """What happens to a node in one disturbance, and to whom."""

    start_ns: int
    freezes: list[tuple[int, int]]
    ranks: list[Spans]
    monitor: Spans
    successor: Spans
    keeper: Spans
    deaths: list[tuple[int, str]]


class Totals:
    """What was simulated, and what was found."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.false_kills: list[str] = []
        self.missed: list[str] = []
        self.node_ns = 0
        self.slowest_ns = 0

    @property
    def rank_hours(self) -> float:
        """How much was simulated."""
        return self.node_ns / NS / 3600 * RANKS


class Node:
    """Eight ranks, their monitors and a launcher, through many disturbances.

    Args:
        chance: For everything that is drawn.
        totals: Counted in.
        label: For people who look for a failure.
    """

    def __init__(self, chance: random.Random, totals: Totals, label: str) -> None:
        self.chance, self.totals, self._label = chance, totals, label
        section_ns = int(NS * 10 ** chance.uniform(-0.7, 1.8))  # 0.2 to 63 s
        self.longest_ns = {True: section_ns, False: max(NS // 10, int(section_ns * chance.uniform(0.02, 0.5)))}
        self.smallest_limit_ns = int(LIMIT_FACTOR * min(self.longest_ns.values()))
        self._memory = LostTime.create()
        self.lost = LostTime(self._memory)
        self.lost.suit_limit(self.smallest_limit_ns)
        self._now_ns = 1_000 * NS

    def close(self) -> None:
        """Free its shared memory."""
        os.close(self._memory)

    def disturb(self, hangs: bool = False) -> None:
        """Let quiet time pass, and then something happen."""
        quiet_ns = int(self.chance.expovariate(1 / MEAN_QUIET_SECONDS) * NS)
        start_ns = self._now_ns + quiet_ns
        plan = self._draw(start_ns)
        last_ns = max(end for _, end in plan.freezes) if plan.freezes else start_ns + 6 * NS
        clock = Clock(self, plan, start_ns - _between(self.chance, NS // 2, NS))
        hung = _between(self.chance, RANKS) if hangs else None
        hang_ns = _between(self.chance, start_ns, last_ns + 1)
        ranks = [Rank(self, plan.ranks[number], clock, hang_ns if number == hung else None) for number in range(RANKS)]
        for rank in ranks:
            rank.draw_until(last_ns + NS)
        overdue = [p for rank in ranks for p in rank.phases if p.end_ns > p.deadline_ns]
        self._now_ns = max(last_ns, start_ns) + 2 * NS
        if overdue:
            # As it would have gone on: both witnesses have beaten until a moment ago.
            for witness in (MONITOR, KEEPER):
                self._jump(witness, clock.now_ns - _between(self.chance, MS, self.lost.beat_period_ns))
            end_ns = max(p.end_ns for p in overdue)
            if hung is not None:
                end_ns = ranks[hung].phases[-1].deadline_ns + 2 * (last_ns - start_ns) + 20 * NS
            found_ns = self._watch(clock, ranks, end_ns + NS, None if hung is None else ranks[hung])
            self._now_ns = max(clock.now_ns, clock.keeper_ns, self._now_ns) + NS
            if hung is not None:
                self._judge_hang(found_ns, ranks[hung], plan)
            self.totals.counts["disturbances looked at"] += 1
        self.totals.counts["disturbances"] += 1
        self.totals.node_ns += self._now_ns - start_ns + quiet_ns

    # ---- what happens -----------------------------------------------------------------------------------

    def _draw(self, start_ns: int) -> Plan:
        chance = self.chance
        freezes: list[tuple[int, int]] = []
        at_ns = start_ns
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            length_ns = int(NS * 10 ** chance.uniform(-1, 0.7))  # 0.1 to 5 s
            freezes.append((at_ns, at_ns + length_ns))
            at_ns += length_ns + int(NS * 10 ** chance.uniform(-2, 0.7))
        late = chance.random() < 0.3  # the processes wake one after the other, now and then far apart

        def frozen() -> list[tuple[int, int]]:
            spans = []
            for start, end in freezes:
                most_ns = min(end - start, LONGEST_SUPPLY_NS) * 9 // 10
                lag_ns = _between(chance, most_ns) if late else int(chance.expovariate(1 / (3 * MS)))
                spans.append((start, end + min(lag_ns, most_ns)))
            return spans

        starved: tuple[int, int] | None = None
        if chance.random() < 0.4:
            begin_ns = start_ns + _between(chance, -NS // 4, NS)
            starved = (begin_ns, begin_ns + _between(chance, NS, 8 * NS))
        monitor, successor, keeper = frozen(), frozen(), frozen()
        if starved is not None:  # the parts of the monitor may get next to nothing
            for spans in (monitor, successor, keeper):
                spans += _slices(chance, starved, 40 * MS, int(600 * MS * chance.random()) + MS)
        ranks = [
            Spans(frozen() + (_slices(chance, starved, 36 * MS, 6 * MS) if starved is not None else []))
            for _ in range(RANKS)
        ]
        deaths = []
        if chance.random() < 0.5:
            near = chance.choice(freezes)[1] if freezes else start_ns
            deaths.append((near + _between(chance, -NS // 2, NS), chance.choice(("ended (signal 9)", "stopped"))))
        return Plan(start_ns, freezes, ranks, Spans(monitor), Spans(successor), Spans(keeper), deaths)

    def _jump(self, witness: int, at_ns: int) -> None:
        period_ns = self.lost.beat_period_ns
        words = self.lost._words
        # Two steps back, one forth: a beat that leaves no gap.
        base = 8 + witness * (len(words) - 8) // 2
        assert words[base] == self.lost.last_beat_ns(witness)
        words[base] = at_ns - period_ns
        self.lost.beat(witness, at_ns)

    # ---- the monitor's loop -----------------------------------------------------------------------------

    def _watch(self, clock: Clock, ranks: list[Rank], end_ns: int, hung: Rank | None) -> int | None:
        """Watch as ``Monitor.run`` does, monitor after monitor.

        Returns:
            When the rank that hangs was condemned; None when it was not, or none hangs.
        """
        while True:
            rounds = Rounds[Rank](clock.clock, clock.pause, self.lost.freezes, self.smallest_limit_ns)
            try:
                clock.clock()
                while clock.now_ns < end_ns:
                    if self._turn(clock, rounds, ranks, hung):
                        return clock.now_ns
                return None
            except ReplacedError:
                self.lost.announce_work(0)
                clock.successor()
                for rank in ranks:
                    rank.watched_since_ns = clock.now_ns

    def _turn(self, clock: Clock, rounds: Rounds[Rank], ranks: list[Rank], hung: Rank | None) -> bool:
        now_ns = clock.clock()
        look_at_ns = now_ns + rounds.time_until_next_look(ranks, now_ns)
        beat_ns = self.lost.suit_limit(rounds.smallest_limit_ns)
        while True:
            # The monitor's epoll rounds up to milliseconds.
            clock.pause((min(beat_ns, max(0, look_at_ns - now_ns)) + 999_999) // MS * MS)
            now_ns = clock.clock()
            if now_ns >= look_at_ns:
                break
        findings = rounds.look(ranks)
        if findings is None:
            return False
        self.lost.announce_work(findings.seen_ns + 3 * NS)
        clock.pause(_between(self.chance, 5 * MS, 800 * MS))  # stacks, and the incident
        standing, withdrawn = rounds.still_due(findings.cases)
        self.totals.counts["verdicts withdrawn"] += len(withdrawn)
        standing, _ = rounds.still_due(standing)
        self.lost.announce_work(0)
        clock.clock()
        if hung is not None:
            return any(case.rank is hung for case in standing)
        for case in standing:
            case.rank.is_condemned = True
            self.totals.false_kills.append(self._story(case, clock))
        return False

    def _story(self, case: Case[Rank], clock: Clock) -> str:
        verdict, now_ns = case.verdict, clock.now_ns
        freezes = [
            f"{(f.start_ns - verdict.since_ns) / NS:.3f}..{(f.end_ns - verdict.since_ns) / NS:.3f}"
            for f in self.lost.freezes(now_ns)
            if f.end_ns > verdict.since_ns
        ]
        return (
            f"{self._label}: {verdict.cause}, limit {verdict.limit_seconds:.3f} s, killed after "
            f"{verdict.open_seconds(now_ns):.3f} s, freezes seen {freezes}, frozen "
            f"{[((a - verdict.since_ns) / NS, (b - verdict.since_ns) / NS) for a, b in clock.plan.freezes]}"
        )

    def _judge_hang(self, found_ns: int | None, rank: Rank, plan: Plan) -> None:
        deadline_ns = rank.phases[-1].deadline_ns
        lost_ns = sum(2 * (end - start) for start, end in plan.freezes)
        self.totals.counts["hangs"] += 1
        # A monitor that is starved takes longer, and so does one that is replaced and doubts what it finds.
        if found_ns is None or found_ns > deadline_ns + lost_ns + _BOUND_NS + 8 * NS * bool(plan.monitor.spans):
            late = "never" if found_ns is None else f"{(found_ns - deadline_ns) / NS:.1f} s after its deadline"
            self.totals.missed.append(
                f"{self._label}: found {late}; {plan.freezes} {plan.deaths} hung {rank.phases[-1]}"
            )
        if found_ns is not None:
            self.totals.slowest_ns = max(self.totals.slowest_ns, found_ns - deadline_ns - lost_ns)


def _between(chance: random.Random, low: int, high: int | None = None) -> int:
    """Like ``randrange``, in a quarter of its time."""
    return int(chance.random() * low) if high is None else low + int(chance.random() * (high - low))


def _slices(chance: random.Random, span: tuple[int, int], run_ns: int, wait_ns: int) -> list[tuple[int, int]]:
    """A process that competes: it runs for a while, and waits for a while."""
    found, at_ns = [], span[0] + _between(chance, run_ns + wait_ns)
    while at_ns < span[1]:
        found.append((at_ns, at_ns + wait_ns))
        at_ns += wait_ns + run_ns
    return found


def simulate(rank_hours: float, hangs: int, seed: int, say_every_seconds: float = 0.0) -> Totals:
    """Simulate healthy nodes for so long, then so many hangs.

    Args:
        rank_hours: Of healthy ranks.
        hangs: How many ranks are to hang.
        seed: Of everything; the same seed gives the same run.
        say_every_seconds: Print a line so often; 0 for never.
    """
    totals = Totals()
    number, said = 0, time.monotonic()
    while totals.rank_hours < rank_hours or totals.counts["hangs"] < hangs:
        is_for_hangs = totals.rank_hours >= rank_hours
        hours_ns = totals.node_ns
        node = Node(random.Random(f"{seed} {number}"), totals, f"seed {seed}, node {number}")
        for _ in range(16):
            node.disturb(hangs=is_for_hangs)
        node.close()
        if is_for_hangs:
            totals.node_ns = hours_ns
        number += 1
        if say_every_seconds and time.monotonic() - said > say_every_seconds:
            said = time.monotonic()
            print(f"{totals.rank_hours:.3g} rank-hours, {dict(totals.counts)}", flush=True)
    return totals


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rank-hours", type=float, default=1e6)
    parser.add_argument("--hangs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    totals = simulate(options.rank_hours, options.hangs, options.seed, say_every_seconds=30)
    for story in (*totals.false_kills[:10], *totals.missed[:10]):
        print(story)
    print(", ".join(f"{name}: {count}" for name, count in sorted(totals.counts.items())))
    print(
        f"{totals.rank_hours:.4g} rank-hours of healthy ranks: {len(totals.false_kills)} false kills; "
        f"{totals.counts['hangs']} hangs: {len(totals.missed)} missed, the slowest found "
        f"{totals.slowest_ns / NS:.1f} s after its deadline and what was lost; seed {options.seed}, "
        f"{time.monotonic() - began:.0f} s, of which {time.process_time():.0f} s of processor time"
    )
    return 1 if totals.false_kills or totals.missed else 0


if __name__ == "__main__":
    sys.exit(main())
