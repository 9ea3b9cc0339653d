"""Say who failed: faults in a job of four nodes, and whether the job's incident names the right rank, node and line.

    python -m benchmarks.culprits                                # every fault once
    python -m benchmarks.culprits --tries 13 --json FILE         # each 13 times
    python -m benchmarks.culprits --faults memory --tries 20     # a kill by the kernel, out of memory
    python -m benchmarks.culprits --faults pair,ended            # two that wait for each other: nobody may be named

Each try is a job of its own: launchers on this machine, each with a host name of its own (a UTS namespace) and two
gloo ranks. One rank skips a collective, hangs, stops, dies or raises. The job must go on to its end, and there must be
one job incident, which names that rank, its node and its line, and no other; no rank may be told as a near miss. Ends
with 1 if one of that is missing.
Needs root; ``memory`` needs a cgroup that may be made.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.culprits.memory_limit import MemoryLimit

_ROOT = Path(__file__).resolve().parents[2]
_TRAINING = Path(__file__).with_name("training.py")
_BOUND_SECONDS = 90.0
_LIMIT_SECONDS = 2.0
_FILLING_SECONDS = 30.0
"""The limit instead, of a rank that uses up its memory: on a busy machine the kernel kills it after seconds."""
FAULTS = ("skipped", "backward", "deadlock", "stopped", "segfault", "memory", "exception", "exit")
"""What a rank does, by the names of ``training.py``."""
UNDECIDED = ("pair", "ended")
"""Two ranks receive from each other, while the others get on, or have ended with 0: nobody is to blame for sure."""
_WITHOUT_A_LINE = ("memory", "exit")
"""A process that is gone without a word leaves no line, only its section and iteration."""


class Outcome(NamedTuple):
    """What became of one try; empty where all is as it has to be."""

    wrong: tuple[str, ...]
    seconds: float | None
    """From the verdict, or from when the exit was seen, until the last node was told the story."""


class Try:
    """One job with one fault.

    Args:
        kind: Of the fault.
        nodes: Launchers.
        ranks: Of each.
        folder: For its files.
        chance: Chooses rank and step.
        membership: ``--ft-membership``.
    """

    def __init__(self, kind: str, nodes: int, ranks: int, folder: Path, chance: random.Random, membership: str) -> None:
        self.kind, self.folder, self.nodes, self.ranks = kind, folder, nodes, ranks
        self.rank, self.step = chance.randrange(nodes * ranks), chance.randrange(4, 20)
        self.membership = membership
        folder.mkdir(parents=True)

    def run(self) -> Outcome:
        """Run it, within a bound."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        limit = MemoryLimit(512 << 20) if self.kind == "memory" else None
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
        if limit is not None:
            environment["CULPRITS_CGROUP"] = limit.path
        launchers = [self._start(node, port, environment) for node in range(self.nodes)]
        try:
            end = time.monotonic() + _BOUND_SECONDS
            codes = [each.wait(max(0.1, end - time.monotonic())) for each in launchers]
        except subprocess.TimeoutExpired:
            return Outcome((f"it did not end within {_BOUND_SECONDS:g} s",), None)
        finally:
            for each in launchers:
                each.kill()
                each.wait()
            if limit is not None:
                limit.remove()
        return self._judge(codes)

    def _start(self, node: int, port: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "launcher", "--nnodes", str(self.nodes), "--nproc-per-node", str(self.ranks)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "culprits"]
        command += ["--local-addr", "127.0.0.1", "--node-rank", str(node), "--max-restarts", "1"]
        command += ["--ft-membership", self.membership, "--log-dir", str(self.folder / f"logs{node}")]
        limit_seconds = _FILLING_SECONDS if self.kind == "memory" else _LIMIT_SECONDS
        command += ["--ft-rank-section-timeouts", f"setup:60,step:{limit_seconds:g},checkpointing:60"]
        command += [str(_TRAINING), self.kind, str(self.rank), str(self.step), "40"]
        named = ["unshare", "--uts", "sh", "-c", f'hostname node{node}; exec "$@"', "sh", *command]
        with (self.folder / f"output{node}.txt").open("wb") as output:
            return subprocess.Popen(named, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=self.folder)

    def _judge(self, codes: list[int]) -> Outcome:
        wrong: list[str] = []
        if any(codes):
            wrong.append(f"exit codes {codes}")
        found = [*self.folder.glob("logs*/culprits/job_incidents/*/incident.json")]
        if len(found) != 1:
            return Outcome((*wrong, f"{len(found)} job incidents"), None)
        incident = json.loads(found[0].read_text())
        named = [(each["rank"], each["node"]) for each in incident["culprits"]]
        right = [(self.rank, f"node{self.rank // self.ranks}")] if self.kind not in UNDECIDED else []
        if named != right or incident["nodes_to_blame"]:
            who = named or incident["nodes_to_blame"] or "nobody"
            wrong.append(f"named {who}, not {right or 'nobody'}: {incident['why']}")
        wrong += self._wrong_lines(incident)
        return Outcome(tuple(wrong), self._seconds())

    def _wrong_lines(self, incident: dict[str, Any]) -> list[str]:
        """Compare what each node has printed."""
        said = []
        for node in range(self.nodes):
            prefix = f"ft_launcher[node{node}]: "
            lines = (self.folder / f"output{node}.txt").read_text(errors="replace").splitlines()
            lines = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
            if missed := [line for line in lines if line.startswith("near miss")]:
                return [f"node{node} tells a {missed[0]}"]
            at = next((n for n, line in enumerate(lines) if line.startswith("  why ")), None)
            said.append(tuple(lines[at - 1 : at + 2]) if at is not None else ())
        if len(set(said)) != 1 or len(said[0]) != 3:
            return [f"the nodes have not said the same three lines: {said}"]
        if self.kind in UNDECIDED:
            place = f"training.py:{_line_of('pair')})"
            return [] if place in said[0][1] else [f"{place} is missing in: {said[0][1]}"]
        if self.kind in _WITHOUT_A_LINE or not incident["culprits"]:
            place = f"iteration {self.step}"
        else:
            place = f"training.py:{_line_of(self.kind)})"
        if place not in said[0][0]:
            return [f"{place} is missing in: {said[0][0]}"]
        if self.kind == "memory" and not re.search(r"out of memory, \d+ of \d+ MiB", said[0][0]):
            return [f"no memory kill is told of in: {said[0][0]}"]
        return []

    def _seconds(self) -> float | None:
        """Return the time from the first verdict to the last story; all launchers have one clock here."""
        began, ended = [], []
        for path in self.folder.glob("logs*/culprits/events*.jsonl"):
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if event.get("generation") == 0 and event["event"] in ("hang", "seen"):
                    began.append(event.get("seen_ns", event["t_ns"]))
                if event["event"] == "job_incident":
                    ended.append(event["t_ns"])
        return (max(ended) - min(began)) / 1e9 if began and ended else None


def _line_of(kind: str) -> int:
    """Return the number of the line of the training where a fault strikes."""
    return next(n for n, line in enumerate(_TRAINING.read_text().splitlines(), 1) if f"# place: {kind}" in line)


def main() -> int:
    """Run every try; print a line for each, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default=",".join(FAULTS), metavar="NAME,...", help="only these")
    parser.add_argument("--tries", type=int, default=1, metavar="N", help="of each fault (1)")
    parser.add_argument("--nodes", type=int, default=4, metavar="N", help="launchers (4)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="of each launcher (2)")
    parser.add_argument("--seed", type=int, default=0, help="of ranks and steps (0)")
    parser.add_argument("--membership", default="elastic", help="--ft-membership (elastic)")
    parser.add_argument("--json", metavar="FILE", help="keep every figure")
    parser.add_argument("--keep", action="store_true", help="keep the files of clean tries, too")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    folder = Path(tempfile.mkdtemp(prefix="culprits-"))
    print(f"files in {folder}", flush=True)
    rows: list[dict[str, Any]] = []
    for kind in arguments.faults.split(","):
        for number in range(arguments.tries):
            one = Try(kind, arguments.nodes, arguments.ranks, folder / f"{kind}-{number}", chance, arguments.membership)
            outcome = one.run()
            rows.append({"fault": kind, "rank": one.rank, "step": one.step, **outcome._asdict()})
            told = "right" if not outcome.wrong else "; ".join(outcome.wrong)
            seconds = f", told everywhere after {outcome.seconds:.2f} s" if outcome.seconds is not None else ""
            print(f"{kind} of rank {one.rank} at step {one.step}: {told}{seconds}", flush=True)
            if not outcome.wrong and not arguments.keep:
                shutil.rmtree(one.folder)
    for kind in arguments.faults.split(","):
        mine = [row for row in rows if row["fault"] == kind]
        seconds_of = [row["seconds"] for row in mine if row["seconds"] is not None]
        times = f", {statistics.median(seconds_of):.2f} s median, {max(seconds_of):.2f} s at most" if seconds_of else ""
        print(f"{kind:10} {sum(not row['wrong'] for row in mine)} of {len(mine)} right{times}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
