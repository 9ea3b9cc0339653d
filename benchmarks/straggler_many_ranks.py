"""What reports of many ranks add to the steps of rank 0, which makes them on a thread of the process that trains.

    python benchmarks/straggler_many_ranks.py
    python benchmarks/straggler_many_ranks.py --ranks 1024,8192 --seconds 20

A step is so many small matrix products in torch (``--products``). Each of them lets other threads of the interpreter
go on, as every operation of a training loop does, and waits until they let go in turn. This process is rank 0 of a job
whose other ranks' windows are made beforehand: it reads, scores and logs them (``log_path``) every four seconds. Not
part of it is to get them from the store.

Told is the longest step of each interval, the median over the intervals: without a detector, with one, and with one
that makes each report in one go. The three take turns. Ends with 1 where the second is more than ``--goal``
milliseconds longer than the first.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import straggler.pacing
from straggler import Detector
from straggler.exchange.wire import HEADER, MAGIC, ROW, VERSION
from straggler.measurement.name_table import hash_name
from straggler.testing import RecordedWindowsExchange

_INTERVAL = 4.0
"""Seconds; a report is spread over half of it at most."""
_CONTENDERS = ("without", "in portions", "in one go")


def windows(ranks: int, names: Sequence[str], sequence: int) -> list[bytes]:
    """Make the windows of ranks 1 and up for one report."""
    random = np.random.default_rng(sequence)
    heads, rows = np.zeros(ranks, HEADER), np.zeros((ranks, len(names)), ROW)
    heads["magic"], heads["version"], heads["rows"] = MAGIC, VERSION, len(names)
    heads["sequence"], heads["rank"], heads["world_size"] = sequence, np.arange(ranks), ranks
    heads["elapsed"], heads["device"] = _INTERVAL, np.nan
    heads["node"] = [b"node%d" % (rank // 8) for rank in range(ranks)]
    rows["name"], rows["every"], rows["num"] = [hash_name(name) for name in names], 1, 60
    rows["med"] = 0.01 * (1.0 + 0.02 * random.standard_normal(rows.shape))
    rows["total"], rows["spread"] = 60 * rows["med"], 2e-4
    return [heads[rank].tobytes() + rows[rank].tobytes() for rank in range(1, ranks)]


def longest_steps(ranks: int, rows: int, products: int, seconds: float, contender: str) -> tuple[list[float], float]:
    """Train for so long; return the longest step of each interval, and the median step, in seconds."""
    names = [f"section {row}" for row in range(rows)]
    made = [windows(ranks, names, sequence) for sequence in range(math.ceil(seconds / _INTERVAL) + 2)]
    straggler.pacing._PORTION_SECONDS = math.inf if contender == "in one go" else portion
    matrix, steps = torch.randn(96, 96), list[tuple[float, float]]()
    detector = Detector()
    with tempfile.TemporaryDirectory() as folder:
        if contender != "without":
            exchange = RecordedWindowsExchange(ranks, lambda sequence: made[sequence % len(made)], names)
            detector.initialize(
                report_time_interval=_INTERVAL, log_path=Path(folder, "log"), probes=[], exchange=exchange
            )
        began = ended = time.perf_counter()
        while ended < began + seconds:
            step_began = ended
            for _ in range(products):
                torch.mm(matrix, matrix)
            if contender != "without":
                detector.generate_report_if_interval_elapsed()
            ended = time.perf_counter()
            steps.append((step_began - began, ended - step_began))
        detector.shutdown()
    # The first report makes the memory, and before it there is none.
    longest = [0.0] * int(seconds // _INTERVAL)
    for at, took in steps:
        if (number := int(at // _INTERVAL)) < len(longest):
            longest[number] = max(longest[number], took)
    return longest[2:], statistics.median(took for _, took in steps)


portion = straggler.pacing._PORTION_SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,1024,8192", metavar="N,...")
    parser.add_argument("--rows", type=int, default=10, help="sections of each rank")
    parser.add_argument("--products", type=int, nargs="+", default=[20, 200, 2000], help="in a step")
    parser.add_argument("--seconds", type=float, default=24.0, help="of each contender's turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--goal", type=float, default=5.0, help="milliseconds that a step may be longer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    most = 0.0
    for ranks in map(int, options.ranks.split(",")):
        for products in options.products:
            longest: dict[str, list[float]] = {name: [] for name in _CONTENDERS}
            medians = []
            for _ in range(options.turns):
                for name in _CONTENDERS:
                    found, median = longest_steps(ranks, options.rows, products, options.seconds, name)
                    longest[name] += found
                    medians.append(median)
            told = {name: 1e3 * statistics.median(found) for name, found in longest.items()}
            added = told["in portions"] - told["without"]
            most = max(most, added)
            print(
                f"{ranks} ranks, steps of {1e3 * statistics.median(medians):.2f} ms; longest of an interval: "
                + ", ".join(f"{name} {value:.2f} ms" for name, value in told.items())
                + f"; added {added:.2f} ({told['in one go'] - told['without']:.2f})",
                flush=True,
            )
    if most > options.goal:
        print(f"the goal of {options.goal:g} ms is missed: {most:.2f} ms")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
