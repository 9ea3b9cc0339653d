"""One job under fire: ``python -m benchmarks.chaos.job FOLDER``, as number 1 of a PID namespace of its own.

``FOLDER/order.json`` holds the plan; what came of it is left in ``FOLDER/result.json``. Nothing of the launcher is
imported: this process knows what a user sees (options, process names, events.jsonl, incidents) and no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.chaos.effects import EFFECTS, ImpossibleHereError
from benchmarks.chaos.job_events import JobEvents, contradiction, place_of
from benchmarks.chaos.plan import KINDS, Fault, Plan
from benchmarks.chaos.surroundings import ControlGroup, Output, hide_py_spy, mount_tmpfs, processes, reap

__all__ = ["Job", "main"]

_LOOK_SECONDS = 0.003
_GONE_SECONDS = 2.0
_RUN_MEGABYTES = 16
_CORE_BYTES = 64 << 20
_ROOT = Path(__file__).parents[2]
# While these last, no restart can be expected; its time counts from their end.
_HOLD_UP_A_RESTART = ("run-full", "pids-max")


class JobOverError(Exception):
    """The launcher has ended, or does not go on; says which."""


class TooLateError(Exception):
    """Something that must follow from a fault did not, within its bound."""


class Job:
    """A launcher, its ranks, and what is done to them.

    Args:
        folder: Where its files are; holds ``order.json``.
        plan: What is to go wrong.
        step_limit: Seconds that a step may take.
        patience: Seconds within which the job must go on after a fault.
    """

    def __init__(self, folder: Path, plan: Plan, step_limit: float, patience: float) -> None:
        self.folder, self.plan, self._patience = folder, plan, patience
        self._step_limit = step_limit
        self.run_parent, self.logs, self._temporary = folder / "run", folder / "logs", folder / "tmp"
        for path in (
            self.run_parent,
            self.logs,
            self._temporary,
            *(folder / n for n in ("first", "progress", "fired")),
        ):
            path.mkdir()
        mount_tmpfs(self.run_parent, _RUN_MEGABYTES)
        self.run_parent.chmod(0o1777)
        if not plan.has_py_spy:
            hide_py_spy()
        self.freezer = ControlGroup("freezer", "freezer.state", "cgroup.freeze")
        self.pids = ControlGroup("pids", "pids.max", "pids.max")
        self.output = Output(folder / "output.txt")
        self.job_events = JobEvents(self.logs)
        self.exit_code: int | None = None
        self.violations: list[str] = []
        self.records: list[dict[str, Any]] = []
        self._expected: dict[int, int] = {}
        self._tolerated: dict[int, int] = {}
        self._most_zombies = 0
        self._open_gate(0)
        own = [fault._asdict() for fault in plan.faults if KINDS[fault.kind].in_script]
        (folder / "plan.json").write_text(json.dumps({"steps": plan.steps, "own_faults": own}))
        self.launcher = self._start()

    def _start(self) -> int:
        options = {
            "nproc-per-node": self.plan.ranks,
            "max-restarts": 3 * len(self.plan.faults) + 20,
            "log-dir": self.logs,
            "ft-run-dir": self.run_parent,
            "ft-worker-start": self.plan.worker_start,
            "ft-restart-backoff-after": 0,
            "ft-max-no-progress-cycles": 0,
            "ft-rank-section-timeouts": f"setup:60,step:{self._step_limit:g},checkpointing:{5 * self._step_limit:g}",
            "ft-rank-out-of-section-timeout": 5 * self._step_limit,
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        environment = {
            **os.environ,
            "TMPDIR": str(self._temporary),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(_ROOT),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),  # torch makes it, whoever optimises
        }

        def enter() -> None:
            resource.setrlimit(resource.RLIMIT_CORE, (_CORE_BYTES, _CORE_BYTES))
            self.freezer.enter()
            self.pids.enter()

        script = str(Path(__file__).with_name("training.py"))
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher", *arguments, script, str(self.folder)],
            cwd=self._temporary,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.output.write_end,
            stderr=self.output.write_end,
            start_new_session=True,
            preexec_fn=enter,
        )
        process.returncode = 0  # collected by reap()
        return process.pid

    # ---- what effects use -------------------------------------------------------------------------------

    def look(self) -> None:
        """Take up what has happened.

        Raises:
            JobOverError: The launcher has ended.
        """
        code = reap(self.launcher)
        if code is not None:
            self.exit_code = code
        self.job_events.read()
        for core in self._temporary.glob("core*"):
            core.unlink(missing_ok=True)
        if self.exit_code is not None:
            raise JobOverError(f"the launcher ended with {self.exit_code}")

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float | None = None) -> None:
        """Wait until something is so.

        Raises:
            TooLateError: It was not in time.
            JobOverError: The launcher has ended.
        """
        bound = self._patience if seconds is None else seconds
        end = time.monotonic() + bound
        self.look()
        while not condition():
            if time.monotonic() > end:
                raise TooLateError(f"waited {bound:g} s in vain for {what}")
            time.sleep(_LOOK_SECONDS)
            self.look()

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def rank_pid(self, rank: int) -> int:
        """The process of a rank now."""
        return self.job_events.pids(self.job_events.generation)[rank]

    def named(self, name: str) -> list[int]:
        """Live processes of a name, oldest number first."""
        return sorted(p.pid for p in processes().values() if p.name == name and p.state not in "ZX")

    def one_named(self, name: str) -> int:
        """The one live process of a name that is a child of the launcher."""
        self.wait_for(lambda: self.named(name), f"a process called {name}")
        return self.named(name)[0]

    def expect(self, generation: int, rank: int) -> None:
        """Have the incident of a generation blamed on a rank."""
        self._expected[generation] = rank

    # ---- the run ----------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Commit every fault, wait for the end, and say what was found."""
        began = time.monotonic()
        try:
            self.wait_for(self._everybody_trains, "the first steps", seconds=3 * self._patience)
            for fault in self.plan.faults:
                self._commit(fault)
            self._open_gate(self.plan.steps)
            self.wait_for(lambda: False, "the end")
        except JobOverError as over:
            undone = len(self.plan.faults) - len(self.records)
            if undone or self.exit_code != 0:
                self._violation(f"{over}, {undone} fault(s) before the plan's end")
                self._keep_diagnosis()
        except TooLateError as late:
            self._violation(str(late))
            self._keep_diagnosis()
        self._judge_what_is_left()
        self.output.close()
        self._judge_incidents()
        self.job_events.close()
        restarts = [record["restart_seconds"] for record in self.records if record["restart_seconds"] is not None]
        return {
            "seed": self.plan.seed,
            "ranks": self.plan.ranks,
            "worker_start": self.plan.worker_start,
            "has_py_spy": self.plan.has_py_spy,
            "steps": self.plan.steps,
            "planned": len(self.plan.faults),
            "seconds": round(time.monotonic() - began, 1),
            "exit_code": self.exit_code,
            "generations": self.job_events.generation + 1,
            "slowest_restart_seconds": max(restarts, default=None),
            "most_zombies": self._most_zombies,
            "digests": [self._digest(rank) for rank in range(self.plan.ranks)],
            "violations": self.violations,
            "faults": self.records,
        }

    def _commit(self, fault: Fault) -> None:
        kind = KINDS[fault.kind]
        self._open_gate(fault.step + 1)
        record: dict[str, Any] = {**fault._asdict(), "outcome": "done", "culprit": None, "restart_seconds": None}
        self.records.append(record)
        try:
            if not kind.in_script:
                self.wait_for(lambda: self._is_at(fault), f"rank {fault.rank} to reach step {fault.step}")
            generation = record["generation"] = self.job_events.generation
            if kind.hits_rank:
                self.expect(generation, fault.rank)
            if kind.may_restart:
                self._tolerated[generation] = fault.rank
            try:
                EFFECTS[fault.kind](self, fault)
            except ImpossibleHereError as why:
                record["outcome"] = f"skipped: {why}"
                self._expected.pop(generation, None)
                return
            except TooLateError as late:
                self._violation(str(late), fault)
            undone_ns = time.monotonic_ns() if fault.kind in _HOLD_UP_A_RESTART else 0
            if kind.hits_rank:
                wanted = max(self._expected) + 1
                self.wait_for(
                    lambda: self.job_events.generation >= wanted and self._everybody_trains(), "the group to be back"
                )
            else:
                self._settle(1.0 if kind.may_restart else 0.25)
            record["restart_seconds"] = self._restart_seconds(generation, undone_ns)
            self._most_zombies = max(self._most_zombies, sum(p.state == "Z" for p in processes().values()))
            if record["restart_seconds"] is not None and not kind.hits_rank:
                record["outcome"] = "restarted"
        except (JobOverError, TooLateError) as over:
            record["outcome"] = str(over)
            raise
        finally:
            self._tell(record)

    def _settle(self, seconds: float) -> None:
        """Wait until every rank has gone on for a while, so that what follows from a fault is seen as its own."""
        end = time.monotonic() + seconds
        marks = {rank: place_of(self.folder, rank) for rank in range(self.plan.ranks)}

        def has_gone_on() -> bool:
            for rank, mark in marks.items():
                place = place_of(self.folder, rank)
                if place.generation != self.job_events.generation:
                    return False
                if place.count < (mark.count if place.generation == mark.generation else 0) + 5:
                    return False
            return time.monotonic() > end

        self.wait_for(has_gone_on, "every rank to go on")

    def _is_at(self, fault: Fault) -> bool:
        place = place_of(self.folder, fault.rank)
        return place.generation == self.job_events.generation and place.step >= fault.step

    def _everybody_trains(self) -> bool:
        places = [place_of(self.folder, rank) for rank in range(self.plan.ranks)]
        return all(place.generation == self.job_events.generation and place.count >= 2 for place in places)

    def _open_gate(self, step: int) -> None:
        temporary = self.folder / "gate"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(descriptor, b"%-16d" % step, 0)
        os.close(descriptor)

    def _restart_seconds(self, generation: int, undone_ns: int) -> float | None:
        """From the trouble's being seen to the first line of the last rank of the next generation."""
        seen_ns = self.job_events.seen_ns(generation)
        lines = []
        for rank in range(self.plan.ranks):
            with contextlib.suppress(FileNotFoundError, ValueError):
                lines.append(int((self.folder / "first" / f"{generation + 1}-{rank}").read_text()))
        if seen_ns is None or not lines:
            return None
        return round(max(0, max(lines) - max(seen_ns, undone_ns)) / 1e9, 3)

    # ---- judging ----------------------------------------------------------------------------------------

    def _judge_what_is_left(self) -> None:
        if self.exit_code is None:
            return  # it is stalled; the namespace ends with us
        end = time.monotonic() + _GONE_SECONDS
        while (left := self._left()) and time.monotonic() < end:
            reap(self.launcher)
            time.sleep(0.01)
        if left:
            self._violation(f"left behind: {', '.join(left)}")
        self.freezer.remove()
        self.pids.remove()

    def _left(self) -> list[str]:
        found = [f"process {p.pid} {p.name} ({p.state})" for p in processes().values() if p.state not in "ZX"]
        return found + [str(path) for folder in (self.run_parent, self._temporary) for path in folder.iterdir()]

    def _judge_incidents(self) -> None:
        self.job_events.read()
        by_generation = {record.get("generation"): record for record in self.records}
        for generation in range(self.job_events.generation + 1):
            incidents = self.job_events.incidents(generation)
            named = {rank for event in incidents for rank in event["culprits"]}
            for event in incidents:
                if (problem := contradiction(event)) is not None:
                    self._violation(problem)
            if generation in self._expected:
                rank = self._expected[generation]
                # Of two faults in a row the second stands in a generation of its own.
                record = by_generation.get(generation) or by_generation[max(g for g in by_generation if g < generation)]
                score = "wrong" if named - {rank} else "right" if named else "none" if incidents else "no incident"
                record["culprit"] = score if record["culprit"] in (None, "right") else record["culprit"]
                is_enough = score == "right" or (score == "none" and KINDS[record["kind"]].cannot_be_told)
                is_last = generation == self.job_events.generation and self.exit_code != 0
                if not is_enough and not is_last:
                    self._violation(f"culprit {score}: rank {rank} was hit, {sorted(named)} named", record)
            elif generation in self._tolerated:
                if named - {self._tolerated[generation]}:
                    self._violation(f"rank {self._tolerated[generation]} was damaged, {sorted(named)} named")
            elif incidents:
                near = [r["index"] for r in self.records if r.get("generation") == generation]
                kinds = [r["kind"] for r in self.records if r.get("generation") == generation]
                self._violation(
                    f"an incident that no fault explains, in generation {generation}, rank {sorted(named)} named; "
                    f"faults there: {list(zip(near, kinds, strict=True))}"
                )

    def _digest(self, rank: int) -> str | None:
        path = self.folder / f"digest-{rank}"
        return path.read_text() if path.exists() else None

    def _violation(self, what: str, fault: Fault | dict[str, Any] | None = None) -> None:
        if fault is not None:
            facts = fault if isinstance(fault, dict) else fault._asdict()
            what = f"fault {facts['index']} ({facts['kind']} at step {facts['step']}): {what}"
        self.violations.append(what)
        print(f"seed {self.plan.seed}  VIOLATION {what}", flush=True)

    def _keep_diagnosis(self) -> None:
        now = [f"{p.pid} (parent {p.parent}) {p.name} {p.state} {_waits_in(p.pid)}" for p in processes().values()]
        events = [json.dumps(event) for event in self.job_events.events[-12:]]
        text = "\n".join(["processes:", *now, "", "events:", *events, "", "output:", *self.output.tail(80)])
        (self.folder / "diagnosis.txt").write_text(text + "\n")

    def _tell(self, record: dict[str, Any]) -> None:
        took = f"restart {record['restart_seconds']:.3f} s" if record["restart_seconds"] is not None else ""
        print(
            f"seed {self.plan.seed}  #{record['index']:<3} step {record['step']:<4} {record['kind']:<22} "
            f"rank {record['rank']}  {record['seconds']:<5g} s  {record['outcome']:<9} {took}".rstrip(),
            flush=True,
        )


def _waits_in(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text()
    return ""


def main() -> None:
    """Run the job that the folder describes."""
    folder = Path(sys.argv[1])
    order = json.loads((folder / "order.json").read_text())
    given = order["plan"]
    plan = Plan(**{**given, "faults": tuple(Fault(**fault) for fault in given["faults"])})
    result = Job(folder, plan, order["step_limit"], order["patience"]).run()
    (folder / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
