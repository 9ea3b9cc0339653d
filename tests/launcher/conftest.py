"""Processes that the tests of the launcher's parts look at."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.records.event_log import EventLog
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import (
    CLOSED,
    HEARTBEAT,
    ITERATION,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    SHUT_DOWN,
    STATE,
    WATCHED,
)
from resilience_core.protocol.figures import create_figures, figures_path, open_figures
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.proc import process_start_time


class MadeRank:
    """A rank that does what a test says; its process is the test's."""

    def __init__(self, path: str, generation: int, local_rank: int, rank: int) -> None:
        self.cell = Cell.create(path, rank=rank, generation=generation)
        os.close(create_figures(figures_path(path)))
        self.figures = open_figures(figures_path(path))
        self._slots: dict[str, int] = {}

    def begin(self, pid: int | None = None) -> None:
        """Initialise monitoring."""
        pid = os.getpid() if pid is None else pid
        self.cell.claim(pid, process_start_time(pid) or 0)
        self.cell.words[LAST_HEARTBEAT] = self.cell.words[LEFT_SECTION] = time.monotonic_ns()
        self.cell.words[STATE] = WATCHED

    def open(self, section: str, limit: float, age: float = 0.0, iteration: int | None = None) -> None:
        """Open a section that was opened ``age`` seconds ago."""
        words = self.cell.words
        slot = self._slots.setdefault(section, -1)
        if slot < 0:
            slot = self._slots[section] = self.cell.add_section(section)
        opened_ns = time.monotonic_ns() - int(age * NS_PER_SECOND)
        words[LAST_HEARTBEAT] = words[LEFT_SECTION] = min(words[LEFT_SECTION], opened_ns)
        if iteration is not None:
            words[ITERATION] = iteration
        words[slot + 1] = opened_ns
        words[slot] = opened_ns + int(limit * NS_PER_SECOND)

    def close(self, section: str) -> None:
        """Close it."""
        self.cell.words[self._slots[section]] = CLOSED
        self.cell.words[LEFT_SECTION] = time.monotonic_ns()

    def beat(self, limit: float, age: float) -> None:
        """Send a heartbeat, ``age`` seconds ago."""
        words = self.cell.words
        words[LAST_HEARTBEAT] = words[LEFT_SECTION] = time.monotonic_ns() - int(age * NS_PER_SECOND)
        words[HEARTBEAT] = words[LAST_HEARTBEAT] + int(limit * NS_PER_SECOND)

    def shut_down(self) -> None:
        """Say that monitoring is over."""
        self.cell.words[STATE] = SHUT_DOWN


class MadeRun:
    """The folders of a run, as a launcher leaves them, and ranks that do what a test says."""

    def __init__(self, parent: Path, name: str) -> None:
        self.logs = parent / "ft_logs"
        self.path = self.logs / name
        self.path.mkdir(parents=True)
        memory = parent / "memory"
        memory.mkdir(exist_ok=True)
        self.folder = RunFolder(str(memory))
        self.log = EventLog(str(self.path))
        self.ranks: dict[int, MadeRank] = {}
        self._generation = -1

    def write(self, event: str, **facts: Any) -> None:
        """Write an event."""
        self.log.write(event, **facts)

    def begin(self, **facts: Any) -> None:
        """Write the first event."""
        self.write("began", run_folder=self.folder.path, launcher=os.getpid(), **{"max_restarts": 3, **facts})

    def start(self, local_ranks: Collection[int], restarts: int = 0, first_rank: int = 0) -> None:
        """Start the next generation, whose ranks have begun monitoring."""
        self._generation += 1
        self.ranks = {}
        for local_rank in local_ranks:
            path = self.folder.cell(self._generation, local_rank)
            self.ranks[local_rank] = MadeRank(path, self._generation, local_rank, first_rank + local_rank)
            self.ranks[local_rank].begin()
        pids = {str(local_rank): os.getpid() for local_rank in local_ranks}
        self.write("started", generation=self._generation, restarts=restarts, pids=pids)

    def stop(self) -> None:
        """End the generation."""
        self.folder.remove_cells(self._generation)
        self.write("stopped", generation=self._generation)

    def end(self, outcome: str = "succeeded", exit_code: int = 0, why: str | None = None) -> None:
        """End the run."""
        self.write("ended", generation=self._generation, outcome=outcome, exit_code=exit_code, why=why)
        self.folder.remove()

    def tidy(self) -> None:
        """Close what is open."""
        self.folder.remove()
        with contextlib.suppress(OSError):
            self.log.close()


@pytest.fixture
def open_run() -> Iterator[MadeRun]:
    """Make the folders of a run where every user comes to them; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="ft-open-") as folder:
        os.chmod(folder, 0o755)
        run = MadeRun(Path(folder), "run-1")
        run.begin()
        run.start([0])
        yield run
        run.tidy()


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[..., MadeRun]]:
    """Make the folders of a run below the test's own."""
    made: list[MadeRun] = []

    def make_run(name: str = "run-1") -> MadeRun:
        made.append(MadeRun(tmp_path, name))
        return made[-1]

    yield make_run
    for run in made:
        run.tidy()


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python on a program that prints a line when it is ready; killed at the end of the test."""
    started = []

    def spawn(program: str, *arguments: str, session: bool = False) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=session,
        )
        started.append(process)
        assert process.stdout is not None
        process.ready = process.stdout.readline().strip()  # type: ignore[attr-defined]
        return process

    yield spawn
    for process in started:
        with process:
            process.kill()
