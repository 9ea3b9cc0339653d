"""Real gloo jobs with one rank slowed by 20 %: in how many of N runs is that rank named, and nobody else?

    python benchmarks/straggler_gloo.py --runs 20

Variants: asleep (2 and 4 ranks), asleep with only the collective marked, burning CPU pinned to a core each (as
many ranks as cores), and burning CPU under a cgroup quota (cgroup v1 or v2, where this user may make groups).

Whether the slow rank *was* 20 % slower is measured in the ranks, beside the detector, and told: on a busy machine
a neighbour may slow a healthy rank by more than that, and then it is right to name another. Where the user may,
ranks that burn CPU go before everything else on the machine. No run is left out of the count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RANKS = ROOT / "tests" / "straggler" / "ranks.py"


def run(world_size: int, **job: Any) -> list[dict[str, Any]]:
    """Run one job; what its ranks reported."""
    return run_in_turn((world_size, job))[0]


def run_in_turn(*jobs: tuple[int, dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Run jobs, each a number of ranks and what is special about it, after one import of torch for all."""
    base = {"factor": 1.2, "seconds": 0.005, "steps": 25, "reports": 4}
    with tempfile.TemporaryDirectory(prefix="straggler-") as scratch:
        folders = [Path(scratch, str(number)) for number in range(len(jobs))]
        orders = []
        for folder, (world_size, job) in zip(folders, jobs, strict=True):
            folder.mkdir()
            orders.append({"slow_rank": world_size - 1, **base, **job, "world_size": world_size, "folder": str(folder)})
        subprocess.run(
            [sys.executable, str(RANKS), json.dumps(orders)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=300 + 60 * len(jobs),
            check=False,
        )
        words = [sorted(folder.glob("word-*.json"), key=lambda word: word.name) for folder in folders]
        return [[json.loads(word.read_text()) for word in of_job] for of_job in words]


def cpu_quota(share: float, *, first: bool = True) -> tuple[Path | None, str]:
    """A cgroup that may use ``share`` of one core; None and the reason where that is not allowed.

    ``first``: up to its quota it goes before its neighbours, as the other ranks do.
    """
    name = f"straggler-{os.getpid()}"
    # The kernel takes no quota under 1 ms. A period much shorter than a step slows every step alike.
    period = 5_000
    quota = max(round(share * period), 1_000)
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    try:
        if (v1 / "cpu.cfs_quota_us").exists():
            group = v1 / name
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
            if first:
                (group / "cpu.shares").write_text("262144")
            return group, ""
        if "cpu" in (v2 / "cgroup.subtree_control").read_text().split():
            group = v2 / name
            group.mkdir()
            (group / "cpu.max").write_text(f"{quota} {period}")
            if first:
                (group / "cpu.weight").write_text("10000")
            return group, ""
    except OSError as error:
        return None, f"cgroups cannot be made here: {error}"
    return None, "no cpu controller of cgroups here"


def remove(group: Path) -> None:
    """Remove a group whose processes have ended; the kernel may need a moment."""
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)
    print(f"left behind: {group}", file=sys.stderr)


def slower(word: dict[str, Any], slow_rank: int) -> list[float]:
    """How much slower the slow rank's own work was than the slowest of the others', report by report (0.2: 20 %)."""
    own = word["own_seconds"]
    others = [seconds for rank, seconds in enumerate(own) if rank != slow_rank]
    return [mine / max(rest) - 1.0 for mine, *rest in zip(own[slow_rank], *others, strict=True)]


def tally(label: str, world_size: int, runs: int, job: dict[str, Any]) -> None:
    """Count and print."""
    right, wronged, untrue, truths, pushed = 0, 0, 0, [], False
    for _ in range(runs):
        word = run(world_size, **job)[0]
        truth = slower(word, world_size - 1)
        truths.append(statistics.median(truth))
        named = word["slow"] == [world_size - 1]
        right += named
        wronged += any(rank != world_size - 1 for rank in word["ever_slow"])
        untrue += not named and min(truth[-3:]) < 0.1
        pushed |= bool(job.get("burn")) and not word["alone"]
        if not named:
            told = " ".join(f"{100 * share:.0f}" for share in truth)
            print(f"  {label}: named {word['slow']}; really slower by {told} %", file=sys.stderr)
    spread = f"{100 * min(truths):.1f} to {100 * max(truths):.1f} %"
    print(
        f"{label}: slow rank alone named in {right} of {runs} runs, another one in any report of {wronged}; it was "
        f"{100 * statistics.median(truths):.1f} % slower ({spread}); load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    if untrue:
        print(f"  in {untrue} of those that failed it was less than 10 % slower in one of the last three reports")
    if pushed:
        print("  the ranks' priority was not raised: neighbours on the machine slow them too")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", default="", metavar="TEXT", help="variants whose name contains this")
    parser.add_argument("--in-turn", action="store_true", help="do not let the ranks go before everything else")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, load average {os.getloadavg()[0]:.1f} before the runs", flush=True)
    burning = {"burn": True, "pin": True, "reports": 6, "first": not options.in_turn}
    variants: list[tuple[str, int, dict[str, Any]]] = [
        ("asleep, 2 ranks", 2, {}),
        ("asleep, 4 ranks", 4, {}),
        ("asleep, 2 ranks, only the collective marked", 2, {"sections": "sync"}),
        ("pinned, burning, 2 ranks", 2, {**burning, "steps": 40}),
        ("pinned, burning, 4 ranks", 4, {**burning, "steps": 40}),
        ("cgroup quota, burning, 2 ranks", 2, {**burning, "steps": 20, "seconds": 0.05}),
        ("cgroup quota, burning, 4 ranks", 4, {**burning, "steps": 20, "seconds": 0.05}),
    ]
    for label, world_size, job in variants:
        if options.only not in label:
            continue
        if job.get("pin") and world_size > cores:
            print(f"{label}: skipped, fewer cores than ranks")
        elif label.startswith("cgroup"):
            group, reason = cpu_quota(1 / 1.2, first=not options.in_turn)
            if group is None:
                print(f"{label}: skipped, {reason}")
                continue
            try:
                tally(label, world_size, options.runs, {**job, "cgroup": str(group)})
            finally:
                remove(group)
        else:
            tally(label, world_size, options.runs, job)


if __name__ == "__main__":
    main()
