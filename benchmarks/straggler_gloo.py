"""Real gloo jobs with one rank slowed by 20 %: in how many of N runs is that rank named, and nobody else?

    python benchmarks/straggler_gloo.py --runs 20

Variants: asleep (2 and 4 ranks), asleep with only the collective marked, burning CPU pinned to a core each (as
many ranks as cores), and burning CPU under a cgroup quota (cgroup v1 or v2, where this user may make groups).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RANKS = ROOT / "tests" / "straggler" / "ranks.py"


def run(world_size: int, **job: Any) -> list[dict[str, Any]]:
    """Run one job; what its ranks printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = {"slow_rank": world_size - 1, "factor": 1.2, "seconds": 0.005, "steps": 25, "reports": 4, **job}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANKS), json.dumps({**base, "rank": rank, "world_size": world_size, "port": port})],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for rank in range(world_size)
    ]
    words = []
    try:
        for number, rank in enumerate(ranks):
            if base.get("how") == "stop" and number == base["slow_rank"]:
                continue
            words.append(rank.communicate(timeout=100)[0])
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return [json.loads(word) for word in words if word.strip()]


def cpu_quota(share: float) -> tuple[Path | None, str]:
    """A cgroup that may use ``share`` of one core; None and the reason where that is not allowed."""
    name = f"straggler-{os.getpid()}"
    period = 10_000
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    try:
        if (v1 / "cpu.cfs_quota_us").exists():
            group = v1 / name
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(int(share * period)))
            return group, ""
        if "cpu" in (v2 / "cgroup.subtree_control").read_text().split():
            group = v2 / name
            group.mkdir()
            (group / "cpu.max").write_text(f"{int(share * period)} {period}")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", default="", metavar="TEXT", help="variants whose name contains this")
    options = parser.parse_args()
    runs = options.runs
    print(f"{len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f} before the runs", flush=True)
    cores = len(os.sched_getaffinity(0))
    variants: list[tuple[str, int, dict[str, Any]]] = [
        ("asleep, 2 ranks", 2, {}),
        ("asleep, 4 ranks", 4, {}),
        ("asleep, 2 ranks, only the collective marked", 2, {"sections": "sync"}),
    ]
    if cores >= 2:
        variants.append(("pinned, burning, 2 ranks", 2, {"pin": True, "burn": True, "steps": 100, "reports": 8}))
    else:
        print("pinned: skipped, fewer cores than ranks")
    for label, world_size, job in variants:
        if options.only in label:
            tally(label, world_size, runs, job)
    quota = "cgroup quota 80 %, burning, 2 ranks"
    if options.only not in quota:
        return
    group, reason = cpu_quota(0.8)
    if group is None:
        print(f"cgroup quota: skipped, {reason}")
        return
    try:
        tally(
            quota,
            2,
            runs,
            {"burn": True, "pin": True, "cgroup": str(group), "seconds": 0.02, "steps": 25, "reports": 8},
        )
    finally:
        remove(group)


def tally(label: str, world_size: int, runs: int, job: dict[str, Any]) -> None:
    """Count and print."""
    right, wronged = 0, 0
    for _ in range(runs):
        word = run(world_size, **job)[0]
        right += word["slow"] == [world_size - 1]
        wronged += any(rank != world_size - 1 for rank in word["slow"])
        if word["slow"] != [world_size - 1]:
            print(f"  {label}: named {word['slow']}; scores {word['scores']}", file=sys.stderr)
    print(f"{label}: slow rank alone named in {right} of {runs} runs; healthy ranks named in {wronged}", flush=True)


if __name__ == "__main__":
    main()
