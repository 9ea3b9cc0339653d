"""The ranks of a real gloo job, one of them slowed. Started by the tests and by the benchmark.

Not a test itself: ``python ranks.py '[{"folder": "/tmp/words", "world_size": 2, ...}, ...]'`` imports torch once and
forks the ranks of one job after the other: one import for all. Each rank that has a report writes it as JSON into the
job's folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import statistics
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from straggler import Detector


def work(seconds: float, burn: bool) -> float:
    """A rank's own work: asleep, or burning CPU. The wall time it took, in seconds.

    Burning means CPU time, not a count of instructions: two virtual cores may be one real one, which runs faster
    as soon as the other rank waits, and the last of 20 % more instructions would take less than 20 % more time.
    """
    began = time.perf_counter()
    if burn:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            for _ in range(500):
                pass
    else:
        time.sleep(seconds)
    return time.perf_counter() - began


def before_neighbours() -> bool:
    """Go before everything else on the machine; False where this user may not.

    A neighbour that takes half a core from a healthy rank makes that one the straggler. The kernel shares a core
    out between sessions first, so the session's own weight is raised too (the rank is alone in it).
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        with contextlib.suppress(FileNotFoundError), open("/proc/self/autogroup", "w") as autogroup:
            autogroup.write("-20")
    except OSError:
        return False
    return True


def main() -> None:
    """Run one job after the other; whoever is left at the end ends with this process."""
    for job in json.loads(sys.argv[1]):
        ranks = [fork_rank(job, rank) for rank in range(job["world_size"])]
        if job.get("how") == "stop":
            del ranks[job["slow_rank"]]
        for pid in ranks:
            os.waitpid(pid, 0)


def fork_rank(job: dict, rank: int) -> int:
    """Start one rank in a session of its own: its weight among its neighbours belongs to a session."""
    if (pid := os.fork()) != 0:
        return pid
    try:
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        os.setsid()
        run_rank(job, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        # A store whose server has gone would make the group's farewell wait; everything is said.
        os._exit(1)


def meet(folder: Path, rank: int, world_size: int) -> dist.TCPStore:
    """The job's store, on a port that the system gives rank 0; the others learn it from a file."""
    file, timeout = folder / "port", timedelta(seconds=60)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world_size, True, timeout=timeout, wait_for_workers=False)
        (folder / "port.new").write_text(str(store.port))
        (folder / "port.new").rename(file)
        return store
    while not file.exists():
        time.sleep(0.002)
    return dist.TCPStore("127.0.0.1", int(file.read_text()), world_size, False, timeout=timeout, wait_for_workers=False)


def run_rank(job: dict, rank: int) -> None:
    """Train, report, and write down the last report."""
    world_size, folder = job["world_size"], Path(job["folder"])
    if job.get("pin"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    store = meet(folder, rank, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    Detector.initialize(
        gather_on_rank0=job.get("gather", True),
        scoring=job.get("scoring", "robust"),
        report_bound_seconds=job.get("bound", 10.0),
        log_path=job.get("log_path"),
        node_name=f"node-{rank}",
    )
    tensor = torch.ones(1000)
    slow = rank == job["slow_rank"] and not job.get("cgroup")
    seconds = job["seconds"] * (job["factor"] if slow else 1.0)
    burn, sections = job.get("burn", False), job.get("sections", "both")
    # From here on, so that the quota slows the work and not the imports.
    if job.get("cgroup") and rank == job["slow_rank"]:
        with open(os.path.join(job["cgroup"], "cgroup.procs"), "w") as procs:
            procs.write(str(os.getpid()))
    alone = burn and job.get("first", True) and before_neighbours()
    report, ever, truth = None, set(), []
    for number in range(job["reports"]):
        own = []
        for _ in range(job["steps"]):
            if sections == "sync":
                own.append(work(seconds, burn))
            else:
                with Detector.detection_section("compute"):
                    own.append(work(seconds, burn))
            if sections == "compute":
                dist.all_reduce(tensor)
            else:
                with Detector.detection_section("sync"):
                    dist.all_reduce(tensor)
        if job.get("die_at") == number and rank == job["slow_rank"]:
            # Between two collectives, so that the others can go on; they need no more of it.
            os._exit(3) if job["how"] == "exit" else os.kill(os.getpid(), 19)
        began = time.monotonic()
        report = Detector.generate_report()
        took = time.monotonic() - began
        truth.append(statistics.median(own))
        if report is not None:
            ever.update(v.rank for v in report.stragglers())
        if job.get("die_at") == number:
            break
    everybodys = [torch.zeros(len(truth), dtype=torch.float64) for _ in range(world_size)]
    if "die_at" not in job:
        dist.all_gather(everybodys, torch.tensor(truth, dtype=torch.float64))
    if report is not None:
        stragglers = report.identify_stragglers()
        word = {
            "rank": rank,
            "took": took,
            "slow": [v.rank for v in report.stragglers()],
            "ever_slow": sorted(ever),
            "alone": alone,
            "own_seconds": [of.tolist() for of in everybodys],
            "verdicts": [str(v) for v in report.verdicts()],
            "sections": {
                s: sorted(i.rank for i in ids) for s, ids in stragglers["straggler_sections_relative"].items()
            },
            "scores": report.section_relative_perf_scores,
            "coverage": report.coverage,
            "missing": report.missing_ranks,
            "table": report.table(),
        }
        (folder / f"word-{rank}.json").write_text(json.dumps(word))
    Detector.shutdown()


if __name__ == "__main__":
    main()
