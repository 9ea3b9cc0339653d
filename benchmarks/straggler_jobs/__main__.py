"""Real training jobs with one slow rank, written and marked as users do: is that rank named, and nobody else?

    python -m benchmarks.straggler_jobs                              # all jobs, 20 runs each; hours
    python -m benchmarks.straggler_jobs --only "one line" DDP --runs 3 --json FILE
    python -m benchmarks.straggler_jobs --only equal --minutes 10    # equal ranks: nobody may be named

Each run forks real ranks with a real gloo group; each time another rank is slow (twice as slow, unless the name says
otherwise), which the ranks measure themselves. A run is right when the last report names exactly that rank and no
report any other; wrong when any report names another; silent otherwise. The jobs called "equal" are run once, beside
busy processes that come and go. Ends with 1 where one run was not right.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.straggler_jobs.catalogue import Job, jobs
from benchmarks.straggler_jobs.words import BROKEN, RIGHT, SILENT, WRONG, explanation, judge, slowness


def tried(job: Job, runs: int, *, burn: bool, seconds: float) -> dict[str, Any]:
    """Run one job, print its row, and return what there is to keep."""
    counts, truths, said = Counter[str](), list[float](), list[tuple[str, str]]()
    names_per_run = []
    began = time.monotonic()
    for number in range(1 if job.is_equal else runs):
        run = job.run(number, burn=burn, seconds=seconds)
        outcome = judge(run)
        counts[outcome] += 1
        if (truth := slowness(run, job.peers)) is not None:
            truths.append(truth)
        if outcome != RIGHT:
            who = "" if run.slow_rank is None else f"rank {run.slow_rank} slow; "
            said.append((outcome, who + explanation(run)))
        names_per_run.append({"outcome": outcome, "slowness": truth, "reports": run.reports})
    count = len(names_per_run)
    slower = (
        f"{100 * statistics.median(truths):.0f} % ({100 * min(truths):.0f} to {100 * max(truths):.0f})"
        if truths
        else "-"
    )
    print(
        f"{job.name:<62} {counts[RIGHT]:>3}/{count:<3} {counts[WRONG]:>5} {counts[SILENT]:>6} {counts[BROKEN]:>6}"
        f"  {slower:<22} {(time.monotonic() - began) / count:>5.1f} s",
        flush=True,
    )
    for outcome in (WRONG, SILENT, BROKEN):
        if texts := [text for of, text in said if of == outcome]:
            print(f"    {outcome}: {texts[0]}", flush=True)
    return {"job": job.name, "right": counts[RIGHT], "runs": names_per_run, "said": said}


def main() -> int:
    """Run what is asked for; 1 where one run was not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORDS", help="jobs whose names contain one of these"
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--burn", action="store_true", help="use processor time instead of sleeping")
    parser.add_argument("--minutes", type=float, default=1.0, help="of each job called equal")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every report")
    parser.add_argument("--list", action="store_true", help="print the names of the jobs only")
    options = parser.parse_args()
    chosen = [job for job in jobs() if any(words in job.name for words in options.only)]
    if not chosen:
        parser.error(f"no job's name contains any of {options.only}")
    if options.list:
        print(*(job.name for job in chosen), sep="\n")
        return 0
    import torch

    if any(job.name.startswith("Lightning") for job in chosen):
        try:
            import_module("lightning.pytorch")
        except ImportError as error:
            print(f"Lightning is left out: {error}")
            chosen = [job for job in chosen if not job.name.startswith("Lightning")]
    import_module("benchmarks.straggler_jobs.frameworks")  # here once, and not again in each rank
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    machine = {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}",
        "load": round(load, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    print("; ".join(f"{key} {value}" for key, value in machine.items()))
    print(
        f"{'job':<62} {'right':>7} {'wrong':>5} {'silent':>6} {'broken':>6}  slower in truth         a run", flush=True
    )
    results = [tried(job, options.runs, burn=options.burn, seconds=60 * options.minutes) for job in chosen]
    if options.json:
        options.json.write_text(json.dumps({**machine, "jobs": results}))
    bad = [result["job"] for result in results if result["right"] != len(result["runs"])]
    print(f"{len(results) - len(bad)} of {len(results)} jobs are right in every run")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
