"""A node in simulated time, what happens to it, and what the rules make of that."""

from __future__ import annotations

import os
import random
import time
from collections import Counter

from benchmarks.simulate_monitor.clock import Clock, Plan, ReplacedError
from benchmarks.simulate_monitor.ranks import LIMIT_FACTOR, MS, NS, Rank, Spans, between, slices
from benchmarks.simulate_monitor.waits import LONGEST_LEARNED_NS, let_wait
from launcher.monitor.deadline_rules import Case, DeadlineRules
from launcher.monitor.lost_time import KEEPER, MONITOR, LostTime

__all__ = ["Node", "Totals", "simulate"]

RANKS = 8
MEAN_QUIET_SECONDS = 1800.0
_WAITS = 0.1
"""How often ranks wait for one that is in a long section."""
LONGEST_LAG_NS = 400 * MS
"""How long a process may take to wake after the first of its tree; less than the rules allow for."""
_BOUND_NS, _STARVED_NS, _DEATH_NS = 3 * NS, 8 * NS, 3 * NS
"""Beyond its limit and twice what was lost, a hang must be found within this; starved for so long, or after the death
of a monitor, which is replaced, and whose successor doubts what it finds, within so much more."""


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
        clock = Clock(self.chance, self.lost, self.totals.counts, plan, start_ns - between(self.chance, NS // 2, NS))
        hung = between(self.chance, RANKS) if hangs else None
        hang_ns = between(self.chance, start_ns, last_ns + 1)
        ranks = [Rank(self, plan.ranks[number], clock, hang_ns if number == hung else None) for number in range(RANKS)]
        gap_ns = self.longest_ns[False]
        if LIMIT_FACTOR * gap_ns <= LONGEST_LEARNED_NS and self.chance.random() < _WAITS:
            self.totals.counts["waits"] += 1
            let_wait(self.chance, ranks, None if hung is None else ranks[hung], gap_ns, clock.now_ns)
        for rank in ranks:
            rank.draw_until(last_ns + NS)
        overdue = [p for rank in ranks for p in rank.phases if p.end_ns > p.deadline_ns]
        self._now_ns = max(last_ns, start_ns) + 2 * NS
        if overdue:
            # As it would have gone on: both witnesses have beaten until a moment ago.
            for witness in (MONITOR, KEEPER):
                self._jump(witness, clock.now_ns - between(self.chance, MS, self.lost.beat_period_ns))
            end_ns = max(p.end_ns for p in overdue)
            if hung is not None:
                end_ns = self._found_by_ns(ranks[hung], plan) + 2 * (last_ns - start_ns) + 20 * NS
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
                most_ns = min(end - start, LONGEST_LAG_NS) * 9 // 10
                lag_ns = between(chance, most_ns) if late else int(chance.expovariate(1 / (3 * MS)))
                spans.append((start, end + min(lag_ns, most_ns)))
            return spans

        starved: tuple[int, int] | None = None
        if chance.random() < 0.4:
            begin_ns = start_ns + between(chance, -NS // 4, NS)
            starved = (begin_ns, begin_ns + between(chance, NS, 8 * NS))
        monitor, successor, keeper = frozen(), frozen(), frozen()
        if starved is not None:  # the parts of the monitor may get next to nothing
            for spans in (monitor, successor, keeper):
                spans += slices(chance, starved, 40 * MS, int(600 * MS * chance.random()) + MS)
        ranks = [
            Spans(frozen() + (slices(chance, starved, 36 * MS, 6 * MS) if starved is not None else []))
            for _ in range(RANKS)
        ]
        deaths = []
        if chance.random() < 0.5:
            near = chance.choice(freezes)[1] if freezes else start_ns
            deaths.append((near + between(chance, -NS // 2, NS), chance.choice(("ended (signal 9)", "stopped"))))
        return Plan(
            start_ns, freezes, ranks, Spans(monitor), Spans(successor), Spans(keeper), deaths, starved is not None
        )

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
            rules = DeadlineRules[Rank](clock.clock, clock.pause, self.lost.freezes, self.smallest_limit_ns)
            try:
                clock.clock()
                while clock.now_ns < end_ns:
                    if self._turn(clock, rules, ranks, hung):
                        return clock.now_ns
                return None
            except ReplacedError:
                self.lost.announce_work(0)
                clock.successor()
                for rank in ranks:
                    rank.watched_since_ns = clock.now_ns

    def _turn(self, clock: Clock, rules: DeadlineRules[Rank], ranks: list[Rank], hung: Rank | None) -> bool:
        now_ns = clock.clock()
        look_at_ns = now_ns + rules.time_until_next_look(ranks, now_ns)
        beat_ns = self.lost.suit_limit(rules.smallest_limit_ns)
        while True:
            # The monitor's epoll rounds up to milliseconds.
            clock.pause((min(beat_ns, max(0, look_at_ns - now_ns)) + 999_999) // MS * MS)
            now_ns = clock.clock()
            if now_ns >= look_at_ns:
                break
        findings = rules.look(ranks)
        if findings is None:
            return False
        self.lost.announce_work(findings.seen_ns + 3 * NS)
        clock.pause(between(self.chance, 5 * MS, 800 * MS))  # stacks, and the incident
        standing, withdrawn = rules.still_due(findings.cases)
        self.totals.counts["verdicts withdrawn"] += len(withdrawn)
        standing, _ = rules.still_due(standing)
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

    def _found_by_ns(self, rank: Rank, plan: Plan) -> int:
        if rank.found_by_ns is None:
            return rank.phases[-1].deadline_ns
        # A monitor that takes over lets it wait for what its peers are in by then.
        anew_ns = int(LIMIT_FACTOR * (self.longest_ns[True] + self.longest_ns[False]))
        return rank.found_by_ns + anew_ns * len(plan.deaths)

    def _judge_hang(self, found_ns: int | None, rank: Rank, plan: Plan) -> None:
        deadline_ns = self._found_by_ns(rank, plan)
        lost_ns = sum(2 * (end - start) for start, end in plan.freezes)
        self.totals.counts["hangs"] += 1
        bound_ns = _BOUND_NS + _STARVED_NS * plan.is_starved + _DEATH_NS * bool(plan.deaths)
        if found_ns is None or found_ns > deadline_ns + lost_ns + bound_ns:
            late = "never" if found_ns is None else f"{(found_ns - deadline_ns) / NS:.1f} s after its deadline"
            self.totals.missed.append(
                f"{self._label}: found {late}; {plan.freezes} {plan.deaths} hung {rank.phases[-1]}"
            )
        if found_ns is not None:
            self.totals.slowest_ns = max(self.totals.slowest_ns, found_ns - deadline_ns - lost_ns)


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
            found = f"{len(totals.false_kills)} false kills, {len(totals.missed)} hangs missed"
            print(f"{totals.rank_hours:.3g} rank-hours, {found}, {dict(totals.counts)}", flush=True)
    return totals
