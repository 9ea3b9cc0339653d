"""One job, restarted again and again: how long each restart takes, where the time goes, and what it leaves behind.

    python -m benchmarks.restarts --ranks 2 --restarts 200
    python -m benchmarks.restarts --ranks 8 --restarts 50 -- --ft-worker-start spawn
    python -m benchmarks.restarts --leaks --restarts 1000

A rank notes the time and kills itself; the restart is over when every rank has finished its first all_reduce.
With ``--leaks`` the script does nothing but die, and what is shown is the launcher's memory, descriptors, threads
and children at every hundredth restart.
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

RANK = Path(__file__).parent / "ranks" / "restarting.py"
PHASES = ("seen", "asked", "stopped", "rendezvous", "started", "first line", "imported", "group formed", "all_reduce")


def main() -> int:
    """Run and print; 1 when a restart did not form its group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, metavar="COUNT", help="ranks of the group (2)")
    parser.add_argument("--restarts", type=int, default=200, metavar="COUNT", help="how many (200)")
    parser.add_argument("--leaks", action="store_true", help="watch the launcher instead of the clock")
    parser.add_argument("options", nargs="*", help="options of ft_launcher, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return (leaks if arguments.leaks else latencies)(arguments, Path(folder))


def command(arguments: argparse.Namespace, folder: Path, script_arguments: list[str]) -> list[str]:
    """One launcher that may restart as often as is asked for, at any pace."""
    ours = ["--ft-restart-backoff-after", "0", "--ft-max-no-progress-cycles", "0", *arguments.options]
    group = ["--nproc-per-node", str(arguments.ranks), "--max-restarts", str(arguments.restarts)]
    return [sys.executable, "-m", "launcher", *group, "--log-dir", str(folder), *ours, str(RANK), *script_arguments]


def latencies(arguments: argparse.Namespace, folder: Path) -> int:
    """Time from the death of a rank to the first all_reduce of all its successors."""
    stamps = folder / "stamps"
    stamps.mkdir()
    run = [str(stamps), str(arguments.restarts)]
    code = subprocess.run(
        command(arguments, folder, run), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode
    first: dict[tuple[str, int], int] = {}
    for path in folder.glob("*/events*.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            first.setdefault((event["event"], event.get("generation", -1)), event["t_ns"])
    rows = []
    for generation in range(arguments.restarts):
        ranks = [stamps / f"{generation + 1}-{rank}" for rank in range(arguments.ranks)]
        if not all(path.exists() for path in ranks):
            continue
        died = int((stamps / f"died-{generation}").read_text())
        told = [[int(word) for word in path.read_text().split()] for path in ranks]
        launcher = [first[name, generation] for name in ("seen", "asked", "stopped")]
        launcher += [first[name, generation + 1] for name in ("rendezvous", "started")]
        rows.append([(at - died) / 1e6 for at in (*launcher, *(max(column) for column in zip(*told, strict=True)))])
    totals = sorted(row[-1] for row in rows)
    formed = f"{len(rows)} of {arguments.restarts} formed"
    print(f"load {os.getloadavg()[0]:.1f}; {arguments.ranks} ranks; {formed}; exit {code}")
    if totals:
        p99 = totals[min(len(totals) - 1, int(len(totals) * 0.99))]
        print(f"death to all_reduce: p50 {statistics.median(totals):.1f} ms, p99 {p99:.1f} ms, max {totals[-1]:.1f} ms")
        for name, column in zip(PHASES, zip(*rows, strict=True), strict=True):
            print(f"  {name:13} {statistics.median(column):7.1f} ms after the death")
    return 0 if len(rows) == arguments.restarts and code == 0 else 1


def leaks(arguments: argparse.Namespace, folder: Path) -> int:
    """Memory, descriptors, threads and children of a launcher whose ranks do nothing but die."""
    launcher = subprocess.Popen(command(arguments, folder, []), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shown: dict[int, dict[str, Any]] = {}
    print("restarts  RSS kB  descriptors  threads  children")
    while launcher.poll() is None:
        time.sleep(0.05)
        log = folder / "latest" / "events.jsonl"
        count = log.read_text().count('"event": "started"') if log.exists() else 0
        if count // 100 not in shown and count >= 100:
            shown[count // 100] = {"restarts": count, **_state(launcher.pid)}
            print("{restarts:8}  {rss:6}  {descriptors:11}  {threads:7}  {children:8}".format(**shown[count // 100]))
    seen = list(shown.values())
    if len(seen) > 1:
        grown = (seen[-1]["rss"] - seen[0]["rss"]) / (seen[-1]["restarts"] - seen[0]["restarts"])
        print(f"resident memory: {grown:.2f} MB in 1,000 restarts")
    return 0


def _state(pid: int) -> dict[str, int]:
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    children = (process / "task" / str(pid) / "children").read_text().split()
    return {
        "rss": int(status["VmRSS"].split()[0]),
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "children": len(children),
    }


if __name__ == "__main__":
    sys.exit(main())
