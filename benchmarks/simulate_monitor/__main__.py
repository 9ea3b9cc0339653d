"""Simulates the monitor's rules in invented time, with the real classes: no healthy rank killed, no hang missed.

    python -m benchmarks.simulate_monitor                                  10^6 rank-hours; 20,000 take 27 s
    python -m benchmarks.simulate_monitor --rank-hours 1e4 --hangs 2000 --seed 3

Nodes of eight ranks go through sections and the time between them; each limit is 1.5 times the longest true duration.
Every half hour on average something happens to a node: freezes of everybody for 0.1 to 5 s (the processes wake one
after the other), competition for the processors, garbage collections, monitors that are killed or stopped, most often
in or just after a freeze. The rules run as in the monitor and in the launcher: ``DeadlineRules``, ``sight``,
``LostTime`` in real shared memory, and ``ReplacementRules``, which replaces monitors.

What is skipped, and why that changes nothing: between two disturbances no rank is past a deadline, so no look can find
one, and each beat of a witness only moves its last one. A disturbance in which no rank comes past a deadline is counted
and not looked at either, since deadlines only ever move back. So the work grows with the number of disturbances, not
with the number of steps; shorter intervals between disturbances cost as much more time.

In some disturbances all ranks but one wait, out of section and under a learned limit, for one that is in a section with
a longer, configured one, or goes through many of them: nobody may be condemned for that
(``launcher.monitor.withheld_verdicts``).

With ``--hangs``, one rank of a node hangs for ever in the middle of such a disturbance, and must be condemned within
its limit, or the configured one of a peer that it waits for, and whatever was given back or nobody watched in. Ends
with 1 when a healthy rank was killed or a hang missed.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.simulate_monitor.node import simulate
from benchmarks.simulate_monitor.ranks import NS


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
