"""What reports add to a step: real gloo ranks, steps of several lengths against several intervals.

    python benchmarks/straggler_steps.py
    python benchmarks/straggler_steps.py --ranks 4 --seconds 20
    python benchmarks/straggler_steps.py --steps --late-groups 5

Each row is one job: every rank works for the length of a step, meets the others in an all-reduce, and calls
``generate_report_if_interval_elapsed``. Told are the longest such call of all ranks, the reports, their coverage, and
how long the longest step was beyond its median, beside the same job without a detector, in turn. Work is sleep or
(``--burn``) processor time. Ends with 1 where a call took more than ``--goal`` milliseconds.

The last rows are of jobs (``--late-groups``, so many) whose detector is there before the process group, which is then
destroyed and made anew. Told is the longest first call after each, and of all others, with the most processor time that
one of them took: on a machine with other load the rest is waiting for a core. Steps are of 5 ms there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from straggler import Detector


def run_rank(job: dict[str, Any], rank: int) -> None:
    """Train for so long, and write down what was measured."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{job['folder']}/store", rank=rank, world_size=job["ranks"])
    if job["detects"]:
        Detector.initialize(report_time_interval=job["interval"])
    tensor, steps, calls, coverage = torch.ones(8), [], [0.0], []
    end, going = time.perf_counter() + job["seconds"], torch.ones(1)
    while going.item():
        began = time.perf_counter()
        work(job["step"], job["burn"])
        dist.all_reduce(tensor)
        if job["detects"]:
            called = time.perf_counter()
            report = Detector.generate_report_if_interval_elapsed()
            calls.append(time.perf_counter() - called)
            if report is not None:
                coverage.append(report.coverage)
        steps.append(time.perf_counter() - began)
        if len(steps) % job["look_every"] == 0:
            going = torch.tensor([float(time.perf_counter() < end)])
            dist.broadcast(going, 0)
    if job["detects"]:
        Detector.shutdown()
    told = {"steps": len(steps), "longest_call": max(calls), "coverage": coverage}
    told |= {"median": statistics.median(steps), "longest": max(steps), "late": sorted(steps)[int(0.999 * len(steps))]}
    Path(job["folder"], f"word-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


_LATE_STEP, _LATE_STEPS = 0.005, 40
_EVENTS = ("initialize", "init_process_group", "destroy_process_group", "a second init_process_group", "all others")


def run_late_rank(job: dict[str, Any], rank: int) -> None:
    """Make, destroy and remake the process group beside a detector, and write down the longest calls after each."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(job["ranks"])}
    longest = dict.fromkeys(_EVENTS, (0.0, 0.0))

    def train(event: str) -> None:
        for step in range(_LATE_STEPS):
            work(_LATE_STEP, job["burn"])
            if dist.is_initialized():
                dist.all_reduce(torch.ones(8))
            called, used = time.perf_counter(), time.thread_time()
            Detector.generate_report_if_interval_elapsed()
            took = time.perf_counter() - called, time.thread_time() - used
            key = _EVENTS[-1] if step else event
            longest[key] = larger(longest[key], took)

    logging.disable(logging.WARNING)  # that it is compared with nobody, before there is a group
    Detector.initialize(report_time_interval=job["interval"])
    train(_EVENTS[0])
    for event, port in zip(("init_process_group", "a second init_process_group"), job["ports"], strict=True):
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=job["ranks"])
        train(event)
        dist.destroy_process_group()
        train("destroy_process_group")
    Detector.shutdown()
    Path(job["folder"], f"word-{rank}.json").write_text(json.dumps(longest))


def run_late(ranks: int, interval: float, burn: bool, jobs: int) -> float:
    """Run jobs whose group is made late, print their row, and return the longest call in seconds."""
    words = []
    for _ in range(jobs):
        words += run(ranks=ranks, interval=interval, burn=burn, step=_LATE_STEP, ports=free_ports(2), late=True)
    longest = {event: functools.reduce(larger, [word[event] for word in words]) for event in _EVENTS}
    told = ", ".join(f"{event} {1000 * took:.2f} ({1000 * used:.2f})" for event, (took, used) in longest.items())
    print(
        f"group made late, a report every {interval:g} s, {jobs} jobs: longest first call after, in ms (most processor "
        f"time): {told}",
        flush=True,
    )
    return max(took for took, _ in longest.values())


def larger(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the larger wall time and the larger processor time, which may be of two calls."""
    return max(one[0], other[0]), max(one[1], other[1])


def free_ports(count: int) -> list[int]:
    """Return ports at which nobody listens."""
    with contextlib.ExitStack() as bound:
        sockets = [bound.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def work(seconds: float, burn: bool) -> None:
    """Sleep, or use that much of the processor."""
    if not burn:
        time.sleep(seconds)
        return
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def run(**job: Any) -> list[dict[str, Any]]:
    """Run one job; return what its ranks have measured."""
    with tempfile.TemporaryDirectory(prefix="straggler-steps-") as folder:
        job |= {"folder": folder, "look_every": max(1, int(0.2 / job["step"]))}
        pids = []
        for rank in range(job["ranks"]):
            if (pid := os.fork()) == 0:
                try:
                    (run_late_rank if job.get("late") else run_rank)(job, rank)
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        words = sorted(Path(folder).glob("word-*.json"))
        if len(words) != job["ranks"]:
            raise SystemExit("a rank has ended without a word")
        return [json.loads(word.read_text()) for word in words]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each job")
    parser.add_argument("--steps", type=float, nargs="*", default=[0.0002, 0.002, 0.02, 0.2], help="seconds")
    parser.add_argument("--intervals", type=float, nargs="+", default=[0.1, 1.0, 5.0], help="seconds")
    parser.add_argument("--late-groups", type=int, default=3, help="jobs whose process group is made late; 0: none")
    parser.add_argument("--burn", action="store_true", help="use the processor instead of sleeping")
    parser.add_argument("--goal", type=float, default=5.0, help="milliseconds that a call may take")
    options = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    longest = 0.0
    for step in options.steps:
        common = {"ranks": options.ranks, "seconds": options.seconds, "step": step, "burn": options.burn}
        for interval in options.intervals:
            without = run(**common, detects=False, interval=interval)
            words = run(**common, detects=True, interval=interval)
            call = max(word["longest_call"] for word in words)
            longest = max(longest, call)
            coverage = words[0]["coverage"]
            reports = f"{len(coverage)} reports, coverage {statistics.mean(coverage) if coverage else 0.0:.3f}"
            print(
                f"steps of {1000 * step:g} ms, a report every {interval:g} s: longest call {1000 * call:.2f} ms; "
                f"{reports}; "
                f"median step {1000 * words[0]['median']:.3f} ms (without {1000 * without[0]['median']:.3f}), "
                f"1 in 1,000 {1000 * words[0]['late']:.2f} ({1000 * without[0]['late']:.2f}), "
                f"longest {1000 * words[0]['longest']:.2f} ({1000 * without[0]['longest']:.2f})",
                flush=True,
            )
    for interval in options.intervals if options.late_groups else []:
        longest = max(longest, run_late(options.ranks, interval, options.burn, options.late_groups))
    if 1000 * longest > options.goal:
        print(f"the goal of {options.goal:g} ms is missed: {1000 * longest:.2f} ms")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
