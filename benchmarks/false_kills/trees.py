"""One healthy job with all its processes, as something that can be frozen, and be looked at."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chaos.job_events import JobEvents
from benchmarks.chaos.surroundings import ControlGroup, processes, stop_all

__all__ = ["MODES", "Overrun", "Tree"]

MODES = ("sections", "out", "heartbeats")
LIMIT_FACTOR = 1.5
_ROOT = Path(__file__).parents[2]
_SCRIPT = Path(__file__).with_name("steady.py")


class Overrun(NamedTuple):
    """A step that took longer than it should have, with what it took while nothing was frozen."""

    rank: int
    net_seconds: float
    limit_seconds: float


class Tree:
    """One launcher or host, its monitor and its ranks.

    Args:
        folder: Its own.
        ranks: How many.
        mode: What of a rank is limited: see ``steady.py``.
        seconds: The longest true duration; the limit is 1.5 times as long.
        is_launcher: An ft_launcher, with warm workers; a host with ``start_monitor`` otherwise.
    """

    def __init__(self, folder: Path, ranks: int, mode: str, seconds: float, is_launcher: bool) -> None:
        self.folder, self.ranks, self.seconds = folder, ranks, seconds
        self.name = (
            f"{folder.name} ({'ft_launcher' if is_launcher else 'start_monitor'}, {ranks} x {mode}, {seconds:g} s)"
        )
        for name in ("notes", "logs", "run"):
            (folder / name).mkdir(parents=True)
        self.freezer = ControlGroup("freezer", "freezer.state", "cgroup.freeze")
        self.frozen: list[tuple[int, int]] = []
        self.frozen_seconds = 0.0
        self._stopped: set[int] = set()
        limit = LIMIT_FACTOR * seconds
        config: dict[str, Any] = {
            "sections": {"rank_section_timeouts": {"step": limit}},
            "out": {"rank_section_timeouts": {"step": 60}, "rank_out_of_section_timeout": limit},
            "heartbeats": {"initial_rank_heartbeat_timeout": 60, "rank_heartbeat_timeout": limit},
        }[mode]
        if is_launcher:
            (folder / "ft.json").write_text(json.dumps({"fault_tolerance": config}))  # JSON is YAML
            command = ["-m", "launcher", "--nproc-per-node", str(ranks), "--max-restarts", "1000"]
            command += ["--log-dir", str(folder / "logs"), "--ft-run-dir", str(folder / "run")]
            command += ["--ft-cfg-path", str(folder / "ft.json"), "--ft-max-no-progress-cycles", "0"]
            command += [str(_SCRIPT), str(folder / "notes"), mode, str(seconds)]
        else:
            command = ["-m", "benchmarks.false_kills.host", str(folder), str(ranks), mode, str(seconds)]
            command.append(json.dumps(config))
        self.job_events = JobEvents(folder / "logs")
        with (folder / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=self.freezer.enter,
            )

    # ---- disturbing -------------------------------------------------------------------------------------

    def everybody(self) -> list[int]:
        """All its processes."""
        table = processes()
        found = {self.process.pid}
        while children := {p.pid for p in table.values() if p.parent in found} - found:
            found |= children
        return sorted(found)

    def monitor(self) -> int | None:
        """Its monitor, None while there is none."""
        own = set(self.everybody())
        return next((p.pid for p in processes().values() if p.pid in own and p.name == "ft_monitor"), None)

    def freeze(self, by_signals: bool) -> None:
        """Stop everything."""
        if by_signals or not self.freezer:
            self._stopped = stop_all(self.everybody)
        else:
            self.freezer.set("FROZEN" if self.freezer.is_v1 else "1")

    def thaw(self, by_signals: bool) -> None:
        """Let everything go on."""
        if by_signals or not self.freezer:
            for pid in self._stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        else:
            self.freezer.set("THAWED" if self.freezer.is_v1 else "0")

    # ---- looking ----------------------------------------------------------------------------------------

    def false_kills(self) -> list[str]:
        """Every incident, death and restart so far: there should be none."""
        self.job_events.read()
        found = []
        for path in sorted(self.folder.glob("logs/*/incidents/*/report.txt")):
            if path.parts[len(self.folder.parts) + 1] == "latest":
                continue
            found.append(f"incident: {' | '.join(path.read_text().splitlines()[1:3])}")
        found += [
            f"restart: generation {e['generation']}" for e in self.job_events.named("started") if e["generation"] > 0
        ]
        if (self.folder / "deaths").exists():
            found += [f"death: rank {line}" for line in (self.folder / "deaths").read_text().splitlines()]
        if self.process.poll() not in (None, 0):
            found.append(f"the launcher or host ended with {self.process.returncode}")
        return found

    def near_misses(self) -> int:
        """How often a verdict was withdrawn, as the launcher says."""
        return len(self.job_events.named("near_miss", "withdrawn"))

    def overruns(self) -> list[Overrun]:
        """The steps that took notably long, less what they were frozen for."""
        found = []
        for path in (self.folder / "notes").iterdir():
            for line in path.read_text().splitlines() if path.name[0].isdigit() else ():
                words = line.split()
                if words[0] == "steps":
                    continue
                began, ended = int(words[0]), int(words[1])
                lost = sum(max(0, min(ended, b) - max(began, a)) for a, b in self.frozen)
                net = (ended - began - lost) / 1e9
                found.append(Overrun(int(path.name.partition("-")[0]), net, LIMIT_FACTOR * self.seconds))
        return found

    def steps(self) -> int:
        """Steps of ranks that have ended in good order."""
        texts = [path.read_text() for path in (self.folder / "notes").iterdir() if path.name[0].isdigit()]
        return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("steps"))

    # ---- the end ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Have the ranks leave in good order, and wait."""
        (self.folder / "notes" / "stop").touch()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.freezer.remove()
