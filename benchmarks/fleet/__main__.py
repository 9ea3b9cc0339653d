"""Judges straggler rules on simulated jobs: ours, and those that others use, on the same windows.

    python -m benchmarks.fleet                                  everything, some minutes
    python -m benchmarks.fleet --quick                          a part of it with two seeds, less than a minute
    python -m benchmarks.fleet --only "10 % later" --seeds 40   scenarios whose name has this in it
    python -m benchmarks.fleet --ranks 8,512 --json fleet.json  each scenario at these sizes; keep everything

The jobs are made here and not by straggler.simulation, which was written beside the scores. The truth is known, so each
rule has an F1 in each scenario (judging.py says what counts), and ``*`` marks where another rule's is more than 0.03
above ours. A second table says how often healthy ranks of healthy jobs are named, where 1,440 reports are a day.

A rule that names healthy ranks of healthy jobs finds more of the slow ones, too. The third table has F1 with the same
false alarms for all: each other rule is as strict as it must be, in one setting, to name nobody in the healthy jobs of
this run. They are fewer than would show that it names one rank in 1,000 days, which is to the other rules' advantage.
The rows under it are those in which ours is behind where the other rules are told what kind of healthy job to be
strict enough for, which nobody could tell them of a real one.

The last table says what the confidence that a report states is worth: it also counts the healthy jobs, so that it
depends on how many of the jobs are healthy.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet.jobs import Spec
from benchmarks.fleet.judging import Tally
from benchmarks.fleet.play import OURS, Played, play, to_hold
from benchmarks.fleet.rules import FACTORS
from benchmarks.fleet.scenarios import clean, faulty, remembers, surroundings
from benchmarks.fleet.tables import (
    behind_table,
    calibration,
    f1_table,
    false_table,
    held_table,
    how_often_first,
    least_rate,
)

Results = dict[str, dict[str, Tally]]


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.fleet", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="WORDS", default="", help="scenarios whose name has this in it")
    parser.add_argument("--seeds", metavar="N", type=int, default=0, help="jobs of each scenario (10; quick: 2)")
    parser.add_argument("--first-seed", metavar="N", type=int, default=0, help="the others follow it (0)")
    parser.add_argument("--ranks", metavar="N,...", type=_sizes, default=(), help="play each scenario at these sizes")
    parser.add_argument("--quick", action="store_true", help="a part of the scenarios")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write what was counted")
    options = parser.parse_args(arguments)
    options.seeds = options.seeds or (2 if options.quick else 10)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    return options


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(word) for word in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 4:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of at least 4, such as 8,512")
    return sizes


def machine() -> dict[str, Any]:
    """Say where and when this ran."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def run(
    specs: Iterable[Spec],
    options: argparse.Namespace,
    settings_of: Callable[[Spec], Sequence[Mapping[str, int]]] = lambda _: (),
) -> dict[str, Played]:
    """Play those scenarios that were asked for, each also with rules that are as strict as is said for it."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    results: dict[str, Played] = {}
    for spec in specs:
        if options.only in spec.name:
            if sys.stderr.isatty():
                print(f"\r\033[K{spec.name}", end="", file=sys.stderr, flush=True)
            results[spec.name] = play(spec, seeds, settings_of(spec))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print, and return the exit code: 2 where no scenario has the words in its name."""
    options = parse_options(arguments)
    where, began = machine(), time.monotonic()
    with_faults = list(faulty(options.ranks, quick=options.quick))
    without = list(clean(options.ranks, quick=options.quick))
    lasting = {spec.name for spec in (*with_faults, *without) if remembers(spec)}
    found_healthy = run(without, options)
    healthy: Results = {name: played.tallies for name, played in found_healthy.items()}
    for_all = to_hold(found_healthy.values())
    of_kind = {surroundings(spec): to_hold([found_healthy[spec.name]]) for spec in without if spec.name in healthy}
    found_wrong = run(with_faults, options, lambda spec: (for_all, of_kind.get(surroundings(spec), for_all)))
    wrong: Results = {name: played.tallies for name, played in found_wrong.items()}
    held: Results = {name: played.held[0] for name, played in found_wrong.items()}
    known = {spec.name for spec in with_faults if surroundings(spec) in of_kind}
    told: Results = {name: played.held[1] for name, played in found_wrong.items() if name in known}
    if not wrong and not healthy:
        print(f"no scenario has {options.only!r} in its name", file=sys.stderr)
        return 2
    last = options.first_seed + options.seeds - 1
    print(
        f"{where['date']}, {where['machine']}, {where['cores']} cores at a load of {where['load'][0]}, "
        f"Python {where['python']}, numpy {where['numpy']}; seeds {options.first_seed} to {last}, "
        f"{time.monotonic() - began:.0f} s"
    )
    if wrong:
        print(
            "\nF1; of ours also the median delay in reports, precision, recall, the share of the slowed ranks that was"
        )
        print("named at some time, though perhaps not to the end, and F1 of the last report")
        print(f"{f1_table(wrong)}\n\n{how_often_first(wrong)}")
    if healthy:
        print("\nhealthy ranks named: times per 1,000 days of a job with a report a minute, and (ranks per job);")
        print(f"one name is {least_rate(healthy):,.0f}\n{false_table(healthy)}")
    if wrong and healthy:
        print("\nF1 where each other rule is so many times as strict that it names nobody in the healthy jobs above")
        print(f"{held_table(held, for_all)}\n\n{how_often_first(held)}")
    if told:
        print(
            "\nwhere each other rule knows which healthy jobs it must name nobody in: those of the same kind and size"
        )
        print("\n\n".join(filter(None, [how_often_first(told), behind_table(told)])))
    print("\nhow sure ours says it is, at a rank's first name, and how often that is right")
    print(calibration({**wrong, **healthy}))
    print("\nthe same, without the noises that last for several windows")
    print(calibration({name: row for name, row in {**wrong, **healthy}.items() if name not in lasting}))
    if options.json is not None:
        kinds = {"faulty": wrong, "clean": healthy, "held": held, "told": told}
        found = {kind: {n: {r: t.as_json() for r, t in row.items()} for n, row in results.items()}
                 for kind, results in kinds.items()}  # fmt: skip
        factors = {rule: None if place + 1 == len(FACTORS) else FACTORS[place] for rule, place in for_all.items()}
        seeds = {"first_seed": options.first_seed, "seeds": options.seeds}
        options.json.write_text(
            json.dumps({**where, **seeds, "ours": OURS, "factors": factors, **found}, indent=1), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
