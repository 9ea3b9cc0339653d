"""What reports of many ranks add to the steps of rank 0, which makes them on a thread of the process that trains.

    python benchmarks/straggler_many_ranks.py
    python benchmarks/straggler_many_ranks.py --ranks 1024,8192 --products 200 --turns 4

A step is so many small matrix products in torch (``--products``). Each of them lets other threads of the interpreter
run, as every operation of a training loop does, and then waits until they let go. This process is rank 0 of a job whose
other ranks' windows are made beforehand: it reads, scores and logs them (``log_path``) once in an interval. How they
are read from the store is not part of it.

Each row has by how much the longest step beside a report is longer than the longest of as many steps just before it, as
the median over the reports: of reports that are made in portions, and of such as are made in one go. Both take turns.
It also has the median number of steps until a report was made. What is left of it when the next is due is done in one
go. Ends with 1 where the first is more than ``--goal`` milliseconds.
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
from unittest import mock

import attrs
import numpy as np
import torch

from straggler import Detector, pacing
from straggler.exchange.wire import HEADER, MAGIC, ROW, VERSION
from straggler.measurement.name_table import hash_name
from straggler.testing import RecordedWindowsExchange

_MOST_TURNS = 20.0
_PORTIONS, _ONE_GO = "in portions", "in one go"


@attrs.frozen
class Job:
    """One contender's turn.

    Args:
        ranks: Ranks in the job.
        rows: Sections of each rank.
        products: Matrix products in a step.
        interval: Seconds between reports.
        seconds: How long it trains.
    """

    ranks: int
    rows: int
    products: int
    interval: float
    seconds: float


@attrs.frozen
class Measured:
    """What was measured in a turn.

    Args:
        added: Of each report, seconds of the longest step beside it less those of the longest of as many before it. The
            first report is left out: it allocates what all later ones use.
        lasted: Steps from the end of each window to its report.
        median: Seconds of the median step.
    """

    added: list[float]
    lasted: list[int]
    median: float


def windows(job: Job, names: Sequence[str], sequence: int) -> list[bytes]:
    """Make the windows of ranks 1 and up for one report."""
    random = np.random.default_rng(sequence)
    heads, rows = np.zeros(job.ranks, HEADER), np.zeros((job.ranks, job.rows), ROW)
    heads["magic"], heads["version"], heads["rows"] = MAGIC, VERSION, job.rows
    heads["sequence"], heads["rank"], heads["world_size"] = sequence, np.arange(job.ranks), job.ranks
    heads["elapsed"], heads["device"] = job.interval, np.nan
    heads["node"] = [b"node%d" % (rank // 8) for rank in range(job.ranks)]
    rows["name"], rows["every"], rows["num"] = [hash_name(name) for name in names], 1, 60
    rows["med"] = 0.01 * (1.0 + 0.02 * random.standard_normal(rows.shape))
    rows["total"], rows["med_error"], rows["mean_error"] = 60 * rows["med"], 2e-4, 2e-4
    return [heads[rank].tobytes() + rows[rank].tobytes() for rank in range(1, job.ranks)]


def train(job: Job, contender: str) -> Measured:
    """Train for so long, and measure each step."""
    names = [f"section {row}" for row in range(job.rows)]
    made = [windows(job, names, sequence) for sequence in range(math.ceil(job.seconds / job.interval) + 2)]
    matrix, steps = torch.randn(96, 96), list[float]()
    due, made_at = list[int](), list[int]()
    detector = Detector()
    portion = math.inf if contender == _ONE_GO else pacing._PORTION_SECONDS
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(pacing, "_PORTION_SECONDS", portion):
        exchange = RecordedWindowsExchange(job.ranks, lambda sequence: made[sequence % len(made)], names)
        detector.initialize(
            report_time_interval=job.interval, log_path=Path(folder, "log"), probes=[], exchange=exchange
        )
        ended = time.perf_counter()
        end, latest = ended + job.seconds, ended + _MOST_TURNS * job.seconds
        # On a busy machine reports take longer: two are made in any case, since the first does not count.
        while ended < (end if len(made_at) > 1 else latest):
            began = ended
            for _ in range(job.products):
                torch.mm(matrix, matrix)
            if detector.generate_report_if_interval_elapsed() is not None:
                made_at.append(len(steps))
            if detector.is_interval_elapsed():
                due.append(len(steps))
            ended = time.perf_counter()
            steps.append(ended - began)
        detector.shutdown()
    spans = list(zip(due, made_at, strict=False))[1:]  # the last may not have been made
    return Measured(
        # The step that is counted as due ends with the window: the report begins within its call.
        [max(steps[first : last + 1]) - max(steps[2 * first - last - 1 : first]) for first, last in spans],
        [last - first for first, last in spans],
        statistics.median(steps),
    )


def compare(job: Job, turns: int) -> float:
    """Let both contenders train, print a row, and return the milliseconds that reports in portions add."""
    found: dict[str, list[Measured]] = {_PORTIONS: [], _ONE_GO: []}
    for _ in range(turns):
        for name, measured in found.items():
            measured.append(train(job, name))
    added = {name: [1e3 * each for turn in measured for each in turn.added] for name, measured in found.items()}
    usual = 1e3 * statistics.median(turn.median for measured in found.values() for turn in measured)
    lasted = [steps for turn in found[_PORTIONS] for steps in turn.lasted]
    print(
        f"{job.ranks} ranks, steps of {usual:.2f} ms: "
        + ", ".join(f"{name} {statistics.median(each):.2f} ms (most {max(each):.2f})" for name, each in added.items())
        + f" of {len(added[_PORTIONS])} reports; made within {statistics.median(lasted):.0f} steps",
        flush=True,
    )
    return statistics.median(added[_PORTIONS])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,1024,8192", metavar="N,...")
    parser.add_argument("--rows", type=int, default=10, help="sections of each rank")
    parser.add_argument("--products", type=int, nargs="+", default=[20, 200, 2000], help="in a step")
    parser.add_argument("--interval", type=float, default=4.0, help="seconds between reports")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each contender's turn: 5 intervals or more")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--goal", type=float, default=5.0, help="milliseconds that a step may be longer")
    options = parser.parse_args(arguments)
    if options.seconds < 5 * options.interval:
        parser.error(f"--seconds {options.seconds:g}: must be at least 5 times --interval ({options.interval:g})")
    torch.set_num_threads(1)
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    most = max(
        compare(Job(ranks, options.rows, products, options.interval, options.seconds), options.turns)
        for ranks in map(int, options.ranks.split(","))
        for products in options.products
    )
    if most > options.goal:
        print(f"the goal of {options.goal:g} ms is missed: {most:.2f} ms")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
