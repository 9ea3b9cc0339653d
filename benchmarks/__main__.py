"""``python -m benchmarks``: the main job's table, ours beside torchrun and nvidia-resiliency-ext.

It needs an idle machine, and takes some minutes; ``--quick`` takes one or two. Ends with 1 when ours misses a goal.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version

from benchmarks.main_job import measure
from benchmarks.peers import contenders
from benchmarks.table import Results


def main() -> int:
    """Measure, print, and return the exit code."""
    options = parse_options()
    present, missing = contenders()
    results = Results()
    for sentence in missing:
        results.note(sentence)
    described = machine()
    print(described, flush=True)
    others = os.getloadavg()[0]
    if others > 0.25 * (os.cpu_count() or 1):
        results.note(
            f"the machine was not idle when this began (load {others:.1f}): the figures are worse than they could be"
        )

    def say(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)

    measure(results, present, rounds=1 if options.quick else options.rounds, only=options.only, say=say)
    say("")
    print("\n".join(results.lines([contender.title for contender in present])))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": described, **results.to_json()}, file, indent=1)
    missed = results.missed_goals(present[0].title)
    print("\n".join(missed or ["every goal that was measured is reached"]))
    return 1 if missed else 0


def machine() -> str:
    """One line about what this was measured on."""
    with open("/proc/cpuinfo") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown CPU")
    return (
        f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"torch {version('torch')}, load {os.getloadavg()[0]:.1f}"
    )


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of everything")
    parser.add_argument("--rounds", type=int, default=5, help="launches of each contender for each group of rows")
    parser.add_argument("--only", default="", metavar="GROUP", help="hot path, start, kill, hang or footprint")
    parser.add_argument("--json", metavar="FILE", help="keep every raw sample")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
