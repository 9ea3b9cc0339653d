"""Explore schedules of faults: ``python -m benchmarks.simulate_nodes --seeds 0:100000``; a failing seed is named."""

from __future__ import annotations

import argparse
import random
import sys
import time

from benchmarks.simulate_nodes.schedules import explore

__all__ = ["main"]


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_nodes", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="FROM:TO, or one seed to replay (default: %(default)s)")
    parser.add_argument("--keep-going", action="store_true", help="report every failing seed instead of the first")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    begin = time.monotonic()
    failed: list[int] = []
    counts: dict[str, int] = {}
    for seed in seeds:
        try:
            for what, count in explore(seed).counts.items():
                counts[what] = counts.get(what, 0) + count
        except Exception as error:  # of the protocol or of the simulation: each is to be looked at
            print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            failed.append(seed)
            if not arguments.keep_going:
                break
    seconds = time.monotonic() - begin
    told = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    print(f"{len(seeds):,} schedules in {seconds:.0f} s: {told}; {len(failed)} failed {failed[:10]}")
    return bool(failed)


if __name__ == "__main__":
    random.seed(0)
    sys.exit(main())
