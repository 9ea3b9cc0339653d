"""Compare the ledger of ft_report with what the script has counted, and with a clock around the launcher.

    python -m benchmarks.ledger --faults 20
    python -m benchmarks.ledger --faults 20 --json FILE

A job of two gloo ranks fails as often as told: a rank hangs, raises, exits, is killed or crashes, in turn, each in the
middle of a step. Its ranks write a line for each step that they have completed. Ends with 1 unless

- the report counts as many iterations that were done again as these lines show,
- the ledger comes to the wall time around the launcher, from before it was started until it was reaped, within 1 %, and
- there are as many incidents as faults, each with the rank that failed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = Path(__file__).resolve().parents[2]
_TRAINING = Path(__file__).with_name("training.py")
_KINDS = ("hang", "raise", "exit", "kill", "segfault")
_RANKS = 2
_WITHIN = 0.01
_LONGEST_START_SECONDS = 120.0
_LONGEST_SECONDS_OF_A_FAULT = 30.0
_LONGEST_REPORT_SECONDS = 120.0


class Fault(NamedTuple):
    """One fault."""

    kind: str
    rank: int
    step: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.rank}:{self.step}"


class Compared(NamedTuple):
    """A report beside what others have measured."""

    repeated: int | None
    counted: int
    ledger_seconds: float
    wall_seconds: float
    wrong: tuple[str, ...]
    report: dict[str, Any]


def plan(count: int, seed: int) -> list[Fault]:
    """Return faults, each some steps after the one before."""
    chance = random.Random(seed)
    step, faults = 0, []
    for number in range(count):
        step += chance.randrange(15, 50)
        faults.append(Fault(_KINDS[number % len(_KINDS)], chance.randrange(_RANKS), step))
    return faults


def counted_again(folder: Path) -> int:
    """Return how many steps were done again, by the lines of the script: a step is done when all ranks have done it."""
    done: collections.Counter[tuple[int, int]] = collections.Counter()
    for rank in range(_RANKS):
        lines = (folder / f"steps-{rank}").read_text().splitlines()
        done.update({(int(generation), int(step)) for generation, step in map(str.split, lines)})
    by_all = [place for place, ranks in done.items() if ranks == _RANKS]
    return len(by_all) - len({step for _, step in by_all})


def compare(folder: Path, faults: list[Fault], *launcher: str) -> Compared:
    """Run a job with faults, and its report."""
    logs = folder / "logs"
    command = [sys.executable, "-m", "launcher", "--nproc-per-node", str(_RANKS), "--max-restarts", str(len(faults))]
    command += ["--log-dir", str(logs), "--ft-rank-section-timeouts", "setup:60,step:1.5,checkpointing:60", *launcher]
    steps = max((fault.step for fault in faults), default=0) + 15
    command += [str(_TRAINING), str(folder), str(steps), ",".join(map(str, faults))]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "output.txt").open("wb") as output:
        began = time.monotonic()
        longest = _LONGEST_START_SECONDS + _LONGEST_SECONDS_OF_A_FAULT * len(faults)
        try:
            code = subprocess.run(
                command, stdout=output, stderr=output, env=environment, cwd=folder, check=False, timeout=longest
            ).returncode
        except subprocess.TimeoutExpired:
            raise SystemExit(f"the job has not ended within {longest:g} s; see {folder}/output.txt") from None
        wall = time.monotonic() - began
    report = subprocess.run(
        [sys.executable, "-m", "launcher.report", "--json", "-", str(logs)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=_LONGEST_REPORT_SECONDS,
    )
    return judged(json.loads(report.stdout), faults, counted_again(folder), wall, code)


def judged(report: dict[str, Any], faults: list[Fault], counted: int, wall: float, code: int) -> Compared:
    """Return a report beside what was measured.

    Args:
        report: Of ft_report, as JSON.
        faults: Those that were committed.
        counted: How many steps were done again, by the script.
        wall: By the clock around the launcher.
        code: The launcher's exit code.
    """
    ledger = report["ledger"]
    seconds = sum(entry["seconds"] for entry in ledger["entries"])
    wrong = []
    if code:
        wrong.append(f"the job ended with {code}")
    if ledger["repeated"] != counted:
        wrong.append(f"{ledger['repeated']} iterations were done again by the report, {counted} by the script")
    if abs(seconds - wall) > _WITHIN * wall:
        wrong.append(f"the ledger comes to {seconds:.3f} s, the clock around the launcher to {wall:.3f} s")
    named = [[culprit["rank"] for culprit in incident["culprits"]] for incident in report["incidents"]]
    at_fault = [[fault.rank] for fault in faults]
    if named != at_fault:
        wrong.append(f"blamed {named}, and at fault were {at_fault}")
    return Compared(ledger["repeated"], counted, seconds, wall, tuple(wrong), report)


def main() -> int:
    """Run a job; print both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20, metavar="N", help="of one job (20)")
    parser.add_argument("--seed", type=int, default=0, help="of ranks and steps (0)")
    parser.add_argument("--json", metavar="FILE", help="keep every figure")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ledger-"))
    print(f"files in {folder}", flush=True)
    found = compare(folder, plan(arguments.faults, arguments.seed))
    for entry in found.report["ledger"]["entries"]:
        print(f"{entry['category']['name']:16} {entry['seconds']:9.3f} s {entry['share']:7.2%}")
    off = (found.ledger_seconds - found.wall_seconds) / found.wall_seconds
    print(f"{'together':16} {found.ledger_seconds:9.3f} s")
    print(f"{'around':16} {found.wall_seconds:9.3f} s, {off:+.2%}")
    print(f"done again: {found.repeated} by the report, {found.counted} by the script")
    print(*(found.wrong or ("as it has to be",)), sep="\n")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found._asdict(), indent=1))
    return int(bool(found.wrong))


if __name__ == "__main__":
    sys.exit(main())
