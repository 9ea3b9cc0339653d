"""Log folders of runs that never were: every line in them is invented here, in the formats that real runs write.

A schedule is made first, in seconds since the run's begin, then written down as the launchers of its nodes would have,
each by a clock of its own. :class:`Truth` says what the schedule holds, by sums that share no code with the reports.

    python -m tests.launcher.reports.invented_runs FOLDER --ranks 64 --nodes 8 --failures 50
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from launcher.incidents.frames import Frame, Thread
from launcher.incidents.incident import ELSEWHERE, Incident, one_line_each, write_files
from launcher.incidents.job_incident import Culprit, JobIncident
from launcher.incidents.rank_report import RankReport
from resilience_core.protocol.error_record import ErrorRecord

__all__ = [
    "Failure",
    "InventedRun",
    "Truth",
    "in_one_folder",
    "invent_failing_nodes",
    "invent_failures",
    "invent_run",
    "invent_runs",
]

EPOCH = 1_790_000_000.0
"""Seconds since 1970 at which the first run begins."""
CONFIGURATION = {"safety_factor": 5.0, "rank_section_timeouts": {"step": 30.0, "checkpointing": 60.0, "setup": 600.0}}
LIMITS = {"section step": 30.0, "section checkpointing": 60.0, "section setup": 600.0, "out of section": 60.0}
GAP_SECONDS = 0.05
"""Between two steps."""
SETUP_SECONDS = 4.0


class Failure(NamedTuple):
    """A failure of one rank in a step."""

    iteration: int
    rank: int
    kind: str = "failure"
    """Or ``hang``."""
    seconds_to_see: float = 0.25
    """From when the step was opened to the failure, or from there to the verdict."""


class Closed(NamedTuple):
    """A section that was closed, in seconds since the run's begin."""

    name: str
    start: float
    end: float
    iteration: int


class Life(NamedTuple):
    """What all ranks of a generation did, together."""

    number: int
    resumed_from: int | None
    started: float
    first_step: float | None
    sections: tuple[Closed, ...]
    open: tuple[str, float, int] | None
    """The section in which it failed, since when, and its iteration."""
    saves: tuple[tuple[int, float, float], ...]
    """Iteration, when, seconds of checkpointing so far."""
    failure: Failure | None
    seen: float | None
    """When it was over."""
    stopped: float
    backed_off: float
    saves_beside: bool = False
    """Steps go on while it saves."""

    @property
    def done(self) -> int | None:
        """The last iteration that was done."""
        return max((section.iteration for section in self.sections if section.name == "step"), default=None)

    @property
    def first_iteration(self) -> int | None:
        """The first iteration that was begun."""
        steps = [s.iteration for s in self.sections if s.name == "step"]
        return steps[0] if steps else self.open[2] if self.open is not None and self.open[0] == "step" else None

    @property
    def last_sign(self) -> float:
        """When something was opened or closed last."""
        signs = [section.end for section in self.sections] or [self.started]
        return max([*signs, *([self.open[1]] if self.open is not None else [])])


class Truth(NamedTuple):
    """What the schedule holds; seconds of each rank."""

    seconds: dict[str, float]
    """By the key of a category."""
    wall: float
    repeated: int
    failures: int
    saves: int


class InventedRun(NamedTuple):
    """One run, written down."""

    folders: tuple[Path, ...]
    truth: Truth
    lives: tuple[Life, ...]
    began_epoch: float
    seconds: float


def invent_failures(count: int, ranks: int, every: int = 37) -> list[Failure]:
    """Return failures of both kinds, spread over ranks and iterations, each in a later generation."""
    return [
        Failure(every * (number + 1), (number * 7 + 1) % ranks, *(("hang", 31.0) if number % 3 == 0 else ()))
        for number in range(count)
    ]


def schedule(
    failures: Sequence[Failure],
    steps: int,
    *,
    first_iteration: int = 0,
    resumed_from: int | None = None,
    step_seconds: float = 2.0,
    slow_iteration: int | None = None,
    save_every: int = 10,
    save_seconds: float = 1.0,
    beside_seconds: float = 0.0,
    launcher_seconds: float = 3.0,
    stop_seconds: float = 1.5,
    rendezvous_seconds: float = 0.5,
    back_off_seconds: float = 0.0,
    finds: Mapping[int, int] | None = None,
) -> tuple[list[Life], float]:
    """Return the lives of all generations and when the launcher ended, in seconds since it began.

    ``slow_iteration`` takes 27 s, close to the limit of 30 s. A checkpoint is numbered by the steps that were done.
    With ``beside_seconds`` a thread saves for so long, and steps go on. ``finds`` says by generation which checkpoint
    it finds, if not the newest; the failures are in order then.
    """
    lives: list[Life] = []
    now, saved = launcher_seconds, resumed_from
    pending = sorted(failures) if finds is None else list(failures)
    while True:
        started = now
        loaded = (finds or {}).get(len(lives), saved)
        next_step = first_iteration if loaded is None else loaded
        sections = [Closed("setup", now + 1.0, now + 1.0 + SETUP_SECONDS, -1)]
        now += 1.0 + SETUP_SECONDS
        first_step, checkpointing, saves, failure, still_open = None, 0.0, [], None, None
        while next_step < steps:
            now += GAP_SECONDS
            first_step = now if first_step is None else first_step
            if pending and pending[0].iteration <= next_step:
                failure = pending.pop(0)
                still_open = ("step", now, next_step)
                now += failure.seconds_to_see
                break
            took = 27.0 if next_step == slow_iteration and not lives else step_seconds
            sections.append(Closed("step", now, now + took, next_step))
            now, next_step = now + took, next_step + 1
            if next_step % save_every == 0 and beside_seconds:
                sections.append(Closed("checkpointing", now, now + beside_seconds, next_step))
                saves.append((next_step, now, 0.0))
            elif next_step % save_every == 0:
                sections.append(Closed("checkpointing", now, now + save_seconds, next_step))
                now, checkpointing, saved = now + save_seconds, checkpointing + save_seconds, next_step
                saves.append((next_step, now, checkpointing))
        seen = now
        if beside_seconds:
            sections = [section for section in sections if section.end <= seen]
            saves = [save for save in saves if save[1] + beside_seconds <= seen]
            saved = saves[-1][0] if saves else saved
        backs_off = back_off_seconds if failure is not None else 0.0
        now += stop_seconds if failure is not None else 0.2
        lives.append(
            Life(
                *(len(lives), loaded, started, first_step, tuple(sections), still_open),
                *(tuple(saves), failure, seen, now, backs_off, bool(beside_seconds)),
            )
        )
        if failure is None:
            return lives, now + 0.8
        now += backs_off + rendezvous_seconds


def truth_of(lives: Sequence[Life], ended: float, *, goes_on: bool = False) -> Truth:
    """Add up a schedule; ``goes_on`` says that another run follows, which begins with the last save of this one."""
    seconds = dict.fromkeys(
        ("start", "productive", "checkpointing", "lost_work", "detection", "stop", "rendezvous", "waiting", "idle"), 0.0
    )
    repeated = 0
    before = 0.0
    for life, successor in zip(lives, [*lives[1:], None], strict=True):
        assert life.first_step is not None
        assert life.seen is not None
        if life.number == 0:
            before = 0.0
            seconds["start"] += life.started
        else:
            seconds["waiting"] += lives[life.number - 1].backed_off
            seconds["rendezvous"] += life.started - before - lives[life.number - 1].backed_off
        seconds["start"] += life.first_step - life.started
        kept_until = life.last_sign
        if successor is not None:
            again = {s.iteration for each in lives[life.number + 1 :] for s in each.sections if s.name == "step"}
            repeated += sum(s.iteration in again for s in life.sections if s.name == "step")
            # An older one may have been found in between; what was saved here may be gone on from later, or never.
            later = lives[life.number + 1 :]
            from_here = [
                at
                for each in later
                for iteration, at, _ in life.saves
                if iteration == each.resumed_from
                and _who_has_saved_last(lives[: each.number], iteration) == life.number
            ]
            kept_until = max(from_here, default=life.first_step)
        elif life.failure is not None:
            kept_until = life.saves[-1][1] if life.saves else life.first_step
            resumed = life.saves[-1][0] if life.saves else life.first_iteration
            assert resumed is not None
            repeated += max(0, (life.done or 0) - resumed + 1) if goes_on else 0
        blocking = [s for s in life.sections if s.name == "checkpointing" and not life.saves_beside]
        saved = sum(s.end - s.start for s in blocking if s.end <= kept_until + 1e-6)
        seconds["checkpointing"] += saved
        seconds["productive"] += kept_until - life.first_step - saved
        seconds["lost_work"] += life.last_sign - kept_until
        if life.failure is not None:
            seconds["detection"] += life.seen - life.last_sign
            seconds["stop"] += life.stopped - life.seen
            seconds["idle"] += ended - life.stopped if successor is None else 0.0
        else:
            seconds["idle"] += ended - life.last_sign
        before = life.stopped
    return Truth(
        seconds, ended, repeated, sum(life.failure is not None for life in lives), sum(len(x.saves) for x in lives)
    )


def _who_has_saved_last(lives: Sequence[Life], iteration: int) -> int:
    return max(life.number for life in lives if any(save[0] == iteration for save in life.saves))


# ---- written down -----------------------------------------------------------------------------------------


class Clocks(NamedTuple):
    """The clocks of one node."""

    node: str
    boot: str
    began_epoch: float
    boot_seconds: float
    """What its monotonic clock showed when the run began."""
    skew: float
    """By how much its wall clock is wrong."""

    def ns(self, at: float) -> int:
        return round((self.boot_seconds + at) * 1e9)

    def wall(self, at: float, digits: str = "milliseconds") -> str:
        moment = datetime.fromtimestamp(self.began_epoch + self.skew, timezone.utc) + timedelta(seconds=at)
        return moment.isoformat(timespec=digits)


def invent_run(
    parent: str | os.PathLike[str],
    name: str = "invented",
    *,
    ranks: int = 2,
    nodes: int = 1,
    failures: Sequence[Failure] | int = 3,
    steps: int | None = None,
    lines: int = 60,
    own_folders: bool = False,
    has_figures: bool = True,
    is_going_on: bool = False,
    began_epoch: float = EPOCH,
    boot_seconds: float = 5_000.0,
    skew: float = 0.0,
    near_misses: int = 0,
    has_saves: bool = True,
    ends_with: str = "succeeded",
    goes_on: bool = False,
    **timings: Any,
) -> InventedRun:
    """Write the log folder of a run that never was.

    Args:
        parent: The folder of log folders.
        name: Of the run.
        ranks: In all; a multiple of ``nodes``.
        nodes: How many; each has clocks of its own.
        failures: Which, or how many.
        steps: Of the training; by default a few more than the last failure needs.
        lines: How many lines of figures, beside the last of each generation.
        own_folders: Each node has a log folder of its own, in place of one for all.
        has_figures: Without, it is a folder of an older release.
        is_going_on: Nothing is written of its end.
        began_epoch: Seconds since 1970 when it began.
        boot_seconds: What the monotonic clock of the first node showed then.
        skew: Seconds by which the wall clock of each further node is wrong.
        near_misses: How many verdicts were taken back.
        has_saves: Whether saves are noted.
        ends_with: The outcome; with anything but ``succeeded`` the last failure is final.
        goes_on: Another run follows, which begins with the last save of this one.
        timings: As of :func:`schedule`.
    """
    planned = invent_failures(failures, ranks) if isinstance(failures, int) else list(failures)
    last = max((failure.iteration for failure in planned), default=0)
    lives, ended = schedule(planned, steps if steps is not None else last + 25, **timings)
    if ends_with != "succeeded":
        lives = lives[:-1]
        ended = lives[-1].stopped + 0.8
    each = ranks // nodes
    folders = [Path(parent, f"{name}-node{node}" if own_folders else name) for node in range(nodes)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    seen: dict[int, list[Incident]] = {}
    for node in range(nodes):
        clocks = Clocks(
            f"node{node}", f"boot-{node}", began_epoch, boot_seconds + 1000.0 * node, skew * node
        )  # fmt: skip
        own = list(range(node * each, (node + 1) * each))
        tells = _Node(folders[node], clocks, own, node, nodes, ranks)
        tells.write_events(lives, ended, is_going_on=is_going_on, near_misses=near_misses, outcome=ends_with)
        if has_figures:
            tells.write_figures(lives, ended, lines, has_saves=has_saves)
        for number, incident in tells.write_incidents(lives).items():
            seen.setdefault(number, []).append(incident)
    for number, incidents in seen.items() if nodes > 1 else ():
        _write_job_incident(incidents, folders[0] / "job_incidents" / f"{number + 1:04d}")
    return InventedRun(
        tuple(dict.fromkeys(folders)), truth_of(lives, ended, goes_on=goes_on), tuple(lives), began_epoch, ended
    )


def invent_failing_nodes(folder: Path, *, own_folders: bool) -> InventedRun:
    """Write the log of a job on two nodes that fails, hangs and fails again."""
    failures = (Failure(3, 1), Failure(8, 3, "hang", 31.0), Failure(12, 2))
    return invent_run(
        folder, ranks=4, nodes=2, own_folders=own_folders, failures=failures, steps=16, save_every=5, lines=20
    )


def invent_runs(
    parent: str | os.PathLike[str], count: int = 2, pause: float = 30.0, **options: Any
) -> list[InventedRun]:
    """Write several runs of one training, each of which goes on from the last checkpoint of the one before."""
    runs: list[InventedRun] = []
    epoch, boot_seconds = options.pop("began_epoch", EPOCH), 5_000.0
    first: int | None = None
    for number in range(count):
        start = first or 0
        failures = [Failure(start + 17, 0), Failure(start + 33, 1, "hang", 31.0)]
        is_last = number == count - 1
        run = invent_run(
            parent,
            f"run-{number}",
            failures=failures,
            steps=start + 60,
            began_epoch=epoch,
            boot_seconds=boot_seconds,
            resumed_from=first,
            ends_with="succeeded" if is_last else "failed",
            goes_on=not is_last,
            **options,
        )
        runs.append(run)
        saved = [iteration for life in run.lives for iteration, _, _ in life.saves]
        first = max(saved, default=first)
        epoch, boot_seconds = epoch + run.seconds + pause, boot_seconds + run.seconds + pause
    return runs


def in_one_folder(runs: Sequence[InventedRun]) -> Path:
    """Move all runs of one training into the log folder of the first, as where they have one name; return it."""
    into, before = runs[0].folders[0], runs[0].truth.failures
    for number, run in enumerate(runs[1:], 1):
        other, own = run.folders[0], run.truth.failures
        suffix = "-node0-100" + (f"-{number}" if number > 1 else "")
        for name in ("figures", "events"):
            text = (other / f"{name}.jsonl").read_text()
            for incident in range(own, 0, -1):
                text = text.replace(f"{other}/incidents/{incident:04d}", f"{into}/incidents/{before + incident:04d}")
            (into / f"{name}{suffix}.jsonl").write_text(text)
        for incident in range(1, own + 1):
            (other / "incidents" / f"{incident:04d}").rename(into / "incidents" / f"{before + incident:04d}")
        before += own
        shutil.rmtree(other)
    return into


def begin_later(folder: Path, seconds: float) -> None:
    """Let the launcher of a node have been started later than it was."""
    for name in ("events", "figures"):
        path = folder / f"{name}.jsonl"
        first, *others = path.read_text().splitlines(keepends=True)
        told = json.loads(first)
        told["process_began_ns"] += int(seconds * 1e9)
        if name == "events":
            told["t_ns"] = told["process_began_ns"]
        path.write_text("".join([json.dumps(told) + "\n", *others]))


class _Node:
    """What one node's launcher writes."""

    def __init__(self, folder: Path, clocks: Clocks, ranks: list[int], node: int, nodes: int, world: int) -> None:
        self._folder, self._clocks, self._ranks = folder, clocks, ranks
        self._node, self._nodes, self._world = node, nodes, world

    def _about_the_file(self) -> dict[str, Any]:
        return {
            "version": 1,
            "node": self._clocks.node,
            "boot": self._clocks.boot,
            "launcher": 100 + self._node,
            "process_began_ns": self._clocks.ns(0.0),
        }

    def _path(self, name: str) -> Path:
        own = f"{name}-{self._clocks.node}-{100 + self._node}"
        names = (name, own, *(f"{own}-{number}" for number in range(2, 100)))
        return next(path for each in names if not (path := self._folder / f"{each}.jsonl").exists())

    def _fails_here(self, life: Life) -> bool:
        return life.failure is not None and life.failure.rank in self._ranks

    # ---- events ----

    def write_events(
        self, lives: Sequence[Life], ended: float, *, is_going_on: bool, near_misses: int, outcome: str
    ) -> None:
        rows: list[tuple[float, str, dict[str, Any]]] = [
            (
                0.0,
                "began",
                {
                    **self._about_the_file(),
                    "run_folder": "/invented/run",
                    "monitor": 51,
                    "arguments": ["--nproc-per-node", str(len(self._ranks)), "invented.py"],
                    "configuration": CONFIGURATION,
                },
            )
        ]
        for life in lives:
            about = {"generation": life.number}
            rows.append((life.started - 0.05, "rendezvous", {**about, "nodes": self._nodes}))
            pids = {str(local): 10_000 + rank for local, rank in enumerate(self._ranks)}
            rows.append((life.started, "started", {**about, "pids": pids}))
            phases = {
                str(local): {
                    "first_line_ns": self._clocks.ns(life.started + 0.5),
                    "initialised_ns": self._clocks.ns(life.started + 0.9),
                    "first_sign_ns": self._clocks.ns(life.started + 1.0),
                }
                for local in range(len(self._ranks))
            }
            rows.append((life.started + 1.0, "phases", {**about, "ranks": phases}))
            rows += self._events_of_end(life, ended, is_last=life is lives[-1], is_going_on=is_going_on)
        spread = lives[0].sections[3:]
        for number in range(near_misses if self._node == 0 else 0):
            section = spread[number * len(spread) // max(near_misses, 1)]
            miss = {
                "generation": 0,
                "count": number + 1,
                "rank": self._ranks[-1],
                "local_rank": len(self._ranks) - 1,
                "pid": 10_000,
                "cause": "section",
                "section": section.name,
                "limit_seconds": 30.0,
                "late_seconds": 0.004,
                "late_at_most_seconds": 0.004,
                "was_asked": False,
                "waited_for": None,
                "was_late": True,
                "was_announced": False,
            }
            rows.append((section.end, "near_miss", miss))
        if not is_going_on:
            code = 0 if outcome == "succeeded" else 1
            if code:
                rows.append((ended - 0.7, "given_up", {"generation": lives[-1].number, "why": "no restart is left"}))
            rows.append((ended - 0.1, "shut_down", {"generation": lives[-1].number, "cleanly": not code}))
            reached = [life.done for life in lives if life.done is not None]
            facts = {
                "generation": lives[-1].number,
                "outcome": outcome,
                "exit_code": code,
                "why": None,
                "iteration": max(reached, default=None),
                "resumed_from": lives[-1].resumed_from,
                "saved": None,
                "went_back": False,
                "failures": sum(life.failure is not None for life in lives),
            }
            rows.append((ended, "ended", facts))
        with self._path("events").open("w", encoding="utf-8") as file:
            for at, event, facts in sorted(rows, key=lambda row: row[0]):
                line = {"event": event, "t_ns": self._clocks.ns(at), "time": self._clocks.wall(at), **facts}
                file.write(json.dumps(line) + "\n")

    def _events_of_end(
        self, life: Life, ended: float, *, is_last: bool, is_going_on: bool
    ) -> Iterator[tuple[float, str, dict[str, Any]]]:
        about: dict[str, Any] = {"generation": life.number}
        if is_last and is_going_on:
            return
        assert life.seen is not None
        if life.failure is None:
            yield life.last_sign + 0.1, "finished", about
            yield life.stopped, "stopped", about
            return
        if self._fails_here(life):
            is_hang = life.failure.kind == "hang"
            facts = {
                "culprits": [life.failure.rank],
                "condemned": [life.failure.rank] if is_hang else [],
                "deadline_ns": self._clocks.ns(life.seen - 0.004) if is_hang else None,
                "seen_ns": self._clocks.ns(life.seen),
                "folder": str(self._incident_folder(life)),
            }
            yield life.seen + 0.01, life.failure.kind, {**about, **facts}
            if is_hang:
                both = {"verdict_ns": self._clocks.ns(life.seen), "signalled_ns": self._clocks.ns(life.seen + 0.02)}
                yield life.seen + 0.02, "signalled", {**about, **both}
            after = 0.05 if is_hang else 0.0
            yield life.seen + after, "seen", {**about, "failed": [self._ranks.index(life.failure.rank)]}
            yield life.seen + after + 0.01, "asked", about
        if life.backed_off:
            yield life.stopped - 0.001, "backing_off", {**about, "seconds": life.backed_off + 0.001}
        if self._nodes > 1:
            job = {"kind": life.failure.kind, "culprits": [life.failure.rank], "nodes": [self._node_of(life)]}
            yield (
                life.seen + 0.3,
                "job_incident",
                {**about, **job, "heard": self._nodes, "folder": None, "gathered_on": "node0"},
            )
        yield life.stopped, "stopped", about

    def _node_of(self, life: Life) -> str:
        assert life.failure is not None
        return f"node{life.failure.rank * self._nodes // self._world}"

    # ---- figures ----

    def write_figures(self, lives: Sequence[Life], ended: float, lines: int, *, has_saves: bool) -> None:
        is_first, count, has_begun = True, 0, False
        told: dict[str, Any] = {}
        saves: list[Any] = []
        with self._path("figures").open("w", encoding="utf-8") as file:
            for life in lives:
                moments = [life.started + 1.0]
                step = max(ended / max(lines, 1), 1.0)
                assert life.seen is not None
                while moments[-1] + step < life.seen:
                    moments.append(moments[-1] + step)
                for at in [*moments, life.stopped - 0.01]:
                    is_first_of, is_last = at == moments[0], at == life.stopped - 0.01
                    count += 1
                    begins = life.first_step is not None and life.first_step <= at
                    is_full = is_first_of or is_last or count % 30 == 0 or begins != has_begun
                    has_begun = begins
                    figures = self._figures(life, at, is_full=is_full, has_saves=has_saves)
                    sections = figures["sections"]
                    if not is_full:
                        figures["sections"] = {n: s for n, s in sections.items() if told.get(n) != s}
                        if new := [save for save in figures.pop("saves") if save not in saves]:
                            figures["saves"] = new
                    saves = [*saves, *figures.get("saves", ())]
                    told = {n: {k: v for k, v in s.items() if k != "durations"} for n, s in sections.items()}
                    line = {
                        "event": "figures",
                        "t_ns": self._clocks.ns(at),
                        "time": self._clocks.wall(at),
                        "generation": life.number,
                        "is_full": is_full,
                        "is_last": is_last,
                    }
                    if is_first:
                        line, is_first = {**line, **self._about_the_file()}, False
                    rest = json.dumps(figures)[1:]  # the same for all ranks, and slow for a thousand
                    ranks = ", ".join(
                        f'"{rank}": {{' + (f'"local_rank": {local}, ' if is_full else "") + rest
                        for local, rank in enumerate(self._ranks)
                    )
                    file.write(f'{json.dumps(line)[:-1]}, "ranks": {{{ranks}}}}}\n')

    def _figures(self, life: Life, at: float, *, is_full: bool, has_saves: bool) -> dict[str, Any]:
        closed = [section for section in life.sections if section.end <= at]
        under_way = [s for s in life.sections if s.start <= at < s.end]
        is_open = {s.name: self._clocks.ns(s.start) for s in under_way}
        if life.open is not None and life.open[1] <= at:
            is_open[life.open[0]] = self._clocks.ns(life.open[1])
        begun = [s.iteration for s in life.sections if s.name == "step" and s.start <= at]
        begun += [life.open[2]] if life.open is not None and life.open[1] <= at else []
        done = [s.iteration for s in closed if s.name == "step"]
        sections: dict[str, Any] = {}
        for name in dict.fromkeys(s.name for s in closed):
            took = [s.end - s.start for s in closed if s.name == name]
            sections[name] = {
                "closed": len(took),
                "took_ns": round(sum(took) * 1e9),
                "longest_ns": round(max(took) * 1e9),
                "close_calls": sum(t >= 0.8 * LIMITS[f"section {name}"] for t in took),
            }
            if is_full:
                bits = [round(t * 1e9).bit_length() for t in took]
                sections[name]["durations"] = {str(bit): bits.count(bit) for bit in sorted(set(bits))}
        known: dict[str, Any] = {
            "iteration": max(begun, default=None),
            "done": max(done, default=None),
            "open": is_open,
            "sections": sections,
        }
        if life.saves_beside:
            known["beside_ns"] = sections["checkpointing"]["took_ns"] if "checkpointing" in sections else 0
        saves = [save for save in life.saves if save[1] <= at][-8:] if has_saves else []
        known["saves"] = [
            {
                "iteration": n,
                "t_ns": self._clocks.ns(t),
                "checkpointing_ns": round(total * 1e9),
                "done": None if life.saves_beside else n - 1,
            }
            for n, t, total in saves
        ]
        if not is_full:
            return known
        signs = [s.end for s in closed] + [s.start for s in under_way]
        signs += [life.open[1]] if life.open is not None and life.open[1] <= at else []
        steps_begun = life.first_step is not None and life.first_step <= at
        return {
            **known,
            "first_iteration": life.first_iteration if steps_begun else None,
            "first_step_ns": self._clocks.ns(life.first_step) if steps_begun and life.first_step is not None else None,
            "first_sign_ns": self._clocks.ns(life.started + 1.0),
            "last_sign_ns": self._clocks.ns(max(signs)) if signs else None,
            "resumed_from": life.resumed_from,
            "saved": saves[-1][0] if saves else None,
            "longest_gap_ns": round(GAP_SECONDS * 1e9),
            "longest_heartbeat_gap_ns": 0,
            "limits": {kind: {"seconds": seconds, "source": "configured"} for kind, seconds in LIMITS.items()},
        }

    # ---- incidents ----

    def _incident_folder(self, life: Life) -> Path:
        return self._folder / "incidents" / f"{life.number + 1:04d}"

    def write_incidents(self, lives: Sequence[Life]) -> dict[int, Incident]:
        seen = {}
        for life in lives:
            if life.failure is None or life.open is None or life.seen is None:
                continue
            here = self._fails_here(life)
            incident = self._incident(life)
            folder = self._incident_folder(life)
            if not here:
                folder = self._folder / "elsewhere" / f"{life.number:04d}-{self._clocks.node}-{100 + self._node}"
            folder.mkdir(parents=True, exist_ok=True)
            incident = incident._replace(folder=str(folder))
            write_files(str(folder), incident.report(), one_line_each(incident.to_json(), "ranks"))
            seen[life.number] = incident
        return seen

    def _incident(self, life: Life) -> Incident:
        assert life.failure is not None
        assert life.seen is not None
        here = self._fails_here(life)
        ranks = tuple(self._rank(life, rank, local) for local, rank in enumerate(self._ranks))
        return Incident(
            kind=life.failure.kind if here else ELSEWHERE,
            generation=life.number,
            why="invented: its stack stands outside any collective, the others wait in one",
            action=f"SIGKILL to rank {life.failure.rank}" if life.failure.kind == "hang" else "the peers are ended",
            ranks=ranks,
            deadline_ns=self._clocks.ns(life.seen - 0.004) if life.failure.kind == "hang" and here else None,
            seen_ns=self._clocks.ns(life.seen),
            wall_time=self._clocks.wall(life.seen, "seconds").replace("+00:00", "+0000"),
            node=self._clocks.node,
            machine=("invented: the kernel has killed nothing",) if life.number % 5 == 0 else (),
        )

    def _rank(self, life: Life, rank: int, local: int) -> RankReport:
        assert life.failure is not None
        assert life.seen is not None
        assert life.open is not None
        is_it = rank == life.failure.rank
        is_hang = life.failure.kind == "hang"
        trace = f'  File "/invented/train.py", line {31 + life.number % 3}, in load_batch\n    bad()\nValueError: bad\n'
        error = ErrorRecord("ValueError", "invented: a batch is broken", "Traceback:\n" + trace, "step", life.open[2])
        report = RankReport(
            rank=rank,
            local_rank=local,
            pid=10_000 + rank,
            is_culprit=is_it,
            is_condemned=is_it and is_hang,
            section="step",
            open_seconds=life.seen - life.open[1],
            iteration=life.open[2],
            stack=self._stack(is_it, life.number) if is_hang or not is_it else (),
            waits_in=None if is_it else "all_reduce (torch/distributed/distributed_c10d.py:2501)",
        )
        if not is_it:
            return report
        if is_hang:
            return report._replace(cause="section", limit_seconds=30.0, limit_origin="--ft-rank-section-timeouts")
        return report._replace(cause="exit", exit_code=1, error=error, message=error.first_line())

    def _stack(self, is_culprit: bool, number: int) -> tuple[Thread, ...]:
        outer = (Frame("train", "train.py", 88), Frame("main", "train.py", 120), Frame("<module>", "train.py", 131))
        wait = Frame("all_reduce", "torch/distributed/distributed_c10d.py", 2501, "torch")
        inner = (Frame("load_batch", "train.py", 31 + number % 3),) if is_culprit else (wait,)
        return (Thread("MainThread", is_culprit, False, (*inner, *outer)),)


def _write_job_incident(seen: Sequence[Incident], folder: Path) -> None:
    """Write what the first node makes of what all have seen."""
    folder.mkdir(parents=True, exist_ok=True)
    own = next(incident for incident in seen if incident.kind != ELSEWHERE)
    story = JobIncident(
        generation=own.generation,
        kind=own.kind,
        why=own.why,
        culprits=tuple(Culprit(own.node, rank) for rank in own.culprits),
        nodes_to_blame=(),
        heard=tuple(incident.node for incident in seen),
        silent=(),
        lost=(),
        seconds=0.2,
        gathered_on=seen[0].node,
        wall_time=own.wall_time,
    )
    story.write_into(str(folder), seen)


def main() -> None:
    """Write a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--failures", type=int, default=3)
    parser.add_argument("--lines", type=int, default=60)
    parser.add_argument("--near-misses", type=int, default=2)
    options = parser.parse_args()
    run = invent_run(
        options.folder,
        ranks=options.ranks,
        nodes=options.nodes,
        failures=options.failures,
        lines=options.lines,
        near_misses=options.near_misses,
        slow_iteration=5,
    )
    assert math.isclose(sum(run.truth.seconds.values()), run.truth.wall)
    print(*run.folders, run.truth, sep="\n")


if __name__ == "__main__":
    main()
