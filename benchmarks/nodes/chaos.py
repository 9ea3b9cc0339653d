"""Random losses, several in one job over several nodes, from seeds.

    python -m benchmarks.nodes.chaos --seeds 0:20            twenty jobs
    python -m benchmarks.nodes.chaos --seeds 7:8 --keep      one of them again; its faults depend on the timing, too

At any time at most one node is gone, cut off or stopped for longer than two seconds, and the next one follows when the
job has had time to replace it, since a majority must survive. Meanwhile ranks are killed, links are cut for up to two
seconds, and packets are lost. Every training must come to its end with the weights of an undisturbed one, without two
groups at a time, and no launcher may end with an error unless it was ended from outside. Ends with
1 if a job did not do so.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.nodes.job import STORE_PORT, Job, TooLateError
from benchmarks.nodes.journal import overlaps
from benchmarks.nodes.namespaces import Machines, Node, why_impossible
from benchmarks.nodes.training import undisturbed_digest

__all__ = ["main", "run_job"]

STEPS = 2500
_MEMBERS = 3
_SETTLE_SECONDS = 4.0
_BOUND_SECONDS = 240.0
_LOSSES = ["loss"] if shutil.which("nft") else []
_NO_LOSS = ("add table inet chaos", "delete table inet chaos")
_LOSS = (
    "add table inet chaos",
    "add chain inet chaos in { type filter hook input priority 0; }",
    "add rule inet chaos in iif eth0 numgen random mod 100 < {} drop",
)


class Outcome(NamedTuple):
    """What came of one job."""

    problems: tuple[str, ...]
    faults: tuple[str, ...]
    generations: int


class _Chaos:
    """The faults of one job, one after the other."""

    def __init__(self, job: Job, chance: random.Random, losses: int) -> None:
        self.job, self.chance, self.left = job, chance, losses
        self.log: list[str] = []
        self._ended: set[int] = set()
        """Nodes whose newest launcher this has ended."""
        self._away: int | None = None
        self._then: list[tuple[float, Callable[[], object]]] = []
        self._next_loss = time.monotonic() + chance.uniform(0, 4)
        self._next_disturbance = time.monotonic() + chance.uniform(0, 5)
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done to the job."""
        return self.left == 0 and self._away is None and not self._then

    def turn(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        due = [action for when, action in self._then if when <= now]
        self._then = [(when, action) for when, action in self._then if when > now]
        for action in due:
            action()
        if self._away is None and self.left and now >= self._next_loss and self._is_whole():
            self.left -= 1
            self._lose()
        if now >= self._next_disturbance and (self.left or self._away is not None):
            self._next_disturbance = now + self.chance.uniform(1, 7)
            self._disturb()

    def unexpected_ends(self) -> list[str]:
        """Launchers that have ended by themselves with anything but 0."""
        codes = {index: own[-1].exit_code for index, own in self.job.launches.items() if index not in self._ended}
        return [f"node{index}'s launcher ended with {code}" for index, code in codes.items() if code not in (None, 0)]

    def _note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:.1f} s: {text}")

    def _is_whole(self) -> bool:
        """Whether every node runs a launcher that is connected."""
        return all(self.job.is_connected(index) for index in self.job.launches) and len(self.job.running()) == len(
            self.job.launches
        )

    def _after(self, seconds: float, action: Callable[[], object]) -> None:
        self._then.append((time.monotonic() + seconds, action))

    def _back(self, node: int, how: Callable[[], object]) -> None:
        how()
        self._note(f"node{node} is back")
        self._ended.discard(node)
        self._away, self._next_loss = None, time.monotonic() + _SETTLE_SECONDS + self.chance.uniform(0, 4)

    def _lose(self) -> None:
        node = self._away = self.chance.choice(self.job.running())
        kind = self.chance.choice(["kill", "power-off", "term", "cut", "stop"])
        seconds = self.chance.choice([0.5, 2.0, 4.5, 5.5, 9.0, 14.0])
        self._note(f"{kind} node{node} for {seconds} s")
        launch, machine = self.job.launches[node][-1], self.job.machines.nodes[node]
        if kind == "cut":
            machine.cut()
            self._after(seconds, lambda: self._back(node, machine.heal))
        elif kind == "stop":
            launch.signal(signal.SIGSTOP)
            self._after(seconds, lambda: self._back(node, lambda: launch.signal(signal.SIGCONT)))
        else:
            self._ended.add(node)
            if kind == "power-off":
                machine.power_off()
            else:
                launch.signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            self._after(seconds, lambda: self._return(node))

    def _return(self, node: int) -> None:
        """Start a launcher again, once the one before has ended: after SIGTERM its ranks may save first."""
        if self.job.machines.nodes[node].is_on and self.job.launches[node][-1].exit_code is None:
            self._after(0.5, lambda: self._return(node))
        else:
            self._back(node, lambda: self.job.come_back(node))

    def _disturb(self) -> None:
        node = self.chance.choice([each for each in self.job.running() if each != self._away])
        kind = self.chance.choice(["kill-rank", "cut", *_LOSSES])
        seconds = self.chance.uniform(0.1, 2.0)
        machine = self.job.machines.nodes[node]
        if kind == "kill-rank":
            rank = self.chance.randrange(2)
            try:
                self.job.kill_rank(node, rank)
            except (ProcessLookupError, StopIteration):
                return
            self._note(f"kill rank {rank} of node{node}")
        elif kind == "cut":
            self._note(f"cut node{node} for {seconds:.1f} s")
            machine.cut()
            self._after(seconds, lambda: self._heal(machine))
        else:
            percent = self.chance.choice([2, 10, 30])
            self._note(f"node{node} loses {percent} % for {seconds:.1f} s")
            machine.run("nft", *_NO_LOSS, *_LOSS[:2], _LOSS[2].format(percent))
            self._after(seconds, lambda: self._end_loss(machine))

    @staticmethod
    def _heal(machine: Node) -> None:
        if machine.is_on:  # else it comes back with another link
            machine.heal()

    @staticmethod
    def _end_loss(machine: Node) -> None:
        if machine.is_on:  # else the rule has gone with its network
            machine.run("nft", *_NO_LOSS)


def run_job(seed: int, folder: Path, expected: str) -> Outcome:
    """Run one job with the faults of a seed, and remove every process of it."""
    chance = random.Random(seed)
    spares = chance.choice([1, 2])
    membership = chance.choice(["fixed", "elastic"])
    low = _MEMBERS if membership == "fixed" else (_MEMBERS + spares) // 2 + 1
    endpoints = ",".join(f"node{index}:{STORE_PORT}" for index in range(3))
    options = ["--nnodes", f"{low}:{_MEMBERS + spares}", "--ft-membership", membership, "--max-restarts", "100"]
    options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoints, "--rdzv-conf", "last_call_timeout=1"]
    if chance.random() < 0.3:
        options += ["--ft-newcomers", "checkpoint"]
    problems: list[str] = []
    with Machines(_MEMBERS + spares, folder) as machines:
        job = Job(
            machines, folder / "shared", members=_MEMBERS, options=options, training=["--steps", str(STEPS)]
        )  # fmt: skip
        chaos = _Chaos(job, chance, losses=chance.randint(2, 5))
        try:
            job.begin()
            deadline = time.monotonic() + _BOUND_SECONDS
            while not job.is_completed():
                if not chaos.is_over:
                    chaos.turn()
                problems += chaos.unexpected_ends()
                if problems or time.monotonic() > deadline:
                    problems += [] if problems else [f"not completed within {_BOUND_SECONDS:g} s"]
                    break
                time.sleep(0.02)
            else:
                while not chaos.is_over and chaos.left == 0:  # nodes that are stopped could not end
                    chaos.turn()
                    time.sleep(0.02)
                _end_faults(job)
                job.wait_for(lambda: not job.running(), 60, "the end of every launcher")
                problems += chaos.unexpected_ends()
        except TooLateError as error:
            problems.append(str(error))
        notes, met = job.notes(), job.groups()
    digests = {digest for group in met for digest in group.digests}
    if not problems and digests != {expected}:
        problems.append(f"the weights differ: {digests}")
    problems += [f"TWO GROUPS AT A TIME: {each}" for each in overlaps(notes)]
    return Outcome(tuple(problems), tuple(chaos.log), len(met))


def _end_faults(job: Job) -> None:
    """Undo what would keep launchers from ending."""
    for index in job.running():
        job.machines.nodes[index].heal()
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            job.launches[index][-1].signal(signal.SIGCONT)


def main() -> int:
    """Run the jobs, say what came of each, and return the exit code."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nodes.chaos", description=__doc__, formatter_class=as_it_is
    )  # fmt: skip
    parser.add_argument("--seeds", default="0:5", metavar="FROM:TO", help="one job of each (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep outputs and journals of clean jobs, too")
    options = parser.parse_args()
    if problem := why_impossible():
        print(f"skipped: {problem}", file=sys.stderr)
        return 2
    expected = undisturbed_digest(STEPS)
    first, end = map(int, options.seeds.split(":"))
    failed = faults = generations = 0
    for seed in range(first, end):
        folder = Path(tempfile.mkdtemp(prefix=f"nodes-chaos-{seed}-"))
        outcome = run_job(seed, folder, expected)
        faults, generations = faults + len(outcome.faults), generations + outcome.generations
        print(f"seed {seed}: {len(outcome.faults)} lines of faults, {outcome.generations} groups", flush=True)
        if outcome.problems:
            failed += 1
            print("\n".join(["  FAILED", *outcome.problems, f"  files: {folder}", *outcome.faults]), flush=True)
        elif not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{end - first} jobs, {faults} lines of faults, {generations} groups: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
