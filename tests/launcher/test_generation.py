"""One generation: whom it does not wait for, whom it kills, and what becomes of a verdict that was withdrawn.

Workers and cells are real; what a generation only passes things to (monitor, diary, control socket) is made up.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import Worker, WorkerGroup, WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from launcher.cells import Cells
from launcher.folders import RunFolder
from launcher.generation import Generation, Outfit
from launcher.lost_time import Freeze
from launcher.processes import wait_for_exit
from launcher.starters import SpawnStarter
from resilience_core import FaultToleranceConfig
from resilience_core.cell import PID, START_TIME, STATE, WATCHED, Cell
from resilience_core.cell import process_start_time as start_time

S = 1_000_000_000
FOREVER = 600.0
HEARS = (
    "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
    "open('ready' + os.environ['RANK'], 'w').close(); signal.pause()"
)


class Made:
    """A generation of two workers that end with 0 when they are asked to, and what was made up around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.freezes: list[Freeze] = []
        self.run_folder = RunFolder(str(folder))
        monitor = SimpleNamespace(
            pid=os.getpid(), watch=lambda *_, **__: None, forget=lambda *_, **__: None, freezes=lambda _: self.freezes
        )
        rendezvous = SimpleNamespace(get_run_id=lambda: "test", use_agent_store=True)
        outfit: Any = Outfit(
            config=FaultToleranceConfig(failure_stop_timeout=0.1),
            upkeep=SimpleNamespace(  # type: ignore[arg-type]
                control=SimpleNamespace(path=None),
                config_file="",
                make_cells=lambda number, ranks: Cells(self.run_folder, number, ranks),
                mend=lambda _: [],
            ),
            log_folder=str(folder),
            monitor=monitor,  # type: ignore[arg-type]
            signals=SimpleNamespace(is_insisted=False),  # type: ignore[arg-type]
            events=SimpleNamespace(write=lambda *_, **__: None),  # type: ignore[arg-type]
            disk=SimpleNamespace(),  # type: ignore[arg-type]
            starter=SpawnStarter(),
            logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        )
        spec = WorkerSpec(
            role="trainer",
            local_world_size=2,
            rdzv_handler=rendezvous,  # type: ignore[arg-type]
            entrypoint=sys.executable,
            args=("-c", f"import os; os.chdir({str(folder)!r}); {HEARS}"),
        )
        group = WorkerGroup(spec)
        group.workers = [Worker(local_rank=n, global_rank=n, world_size=2) for n in range(2)]
        group.group_rank, group.group_world_size = 0, 1
        self.generation = Generation(0, group, outfit, 0)
        while not all((folder / f"ready{n}").exists() for n in range(2)):
            assert len(self.generation.processes.running) == 2
            select.select([], [], [], 0.005)

    def open_section(self, local_rank: int, since_ns: int, deadline_ns: int) -> None:
        """Have a worker's rank be in a section."""
        cell, pid = Cell(self.run_folder.cell(0, local_rank)), self.generation.processes.workers[local_rank].pid
        cell.words[PID], cell.words[START_TIME], cell.words[STATE] = pid, start_time(pid) or 0, WATCHED
        word = cell.add_section("step")
        cell.words[word + 1], cell.words[word] = since_ns, deadline_ns
        cell.close()

    def end(self) -> list[int | None]:
        """End it; the exit codes."""
        self.generation.end(signal.SIGTERM, FOREVER, wait_for_exit)
        return [worker.exit_code for worker in self.generation.processes.workers.values()]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[], Made]]:
    made: list[Made] = []

    def make() -> Made:
        made.append(Made(tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.generation.end(signal.SIGKILL, 0.0, wait_for_exit)
        each.run_folder.remove()


def test_who_is_overdue_or_condemned_is_not_waited_for_at_the_end(make: Callable[[], Made]) -> None:
    made, now_ns = make(), time.monotonic_ns()
    made.open_section(0, now_ns - 2 * S, now_ns - S)
    made.open_section(1, now_ns, now_ns + 600 * S)
    assert made.end() == [-signal.SIGKILL, 0]


def test_who_was_frozen_with_everybody_is_not_overdue_and_may_save(make: Callable[[], Made]) -> None:
    made, now_ns = make(), time.monotonic_ns()
    made.open_section(0, now_ns - 700 * S, now_ns - S)
    made.freezes = [Freeze(now_ns - 650 * S, now_ns - 2 * S)]
    assert made.end() == [0, 0]


def test_a_worker_that_lives_on_around_a_condemned_rank_is_killed_in_time(make: Callable[[], Made]) -> None:
    made = make()
    made.generation.condemn([1])
    killed, seconds = made.generation.kill_lingering()
    assert killed == []
    assert seconds is not None
    assert seconds <= 0.2
    select.select([], [], [], seconds)
    assert made.generation.kill_lingering()[0] == [1]
    assert wait_for_exit([made.generation.processes.workers[1].pidfd], 30)


def test_a_verdict_that_was_withdrawn_is_none(make: Callable[[], Made]) -> None:
    made = make()
    made.generation.condemn([0, 1])
    made.generation.acquit(1)
    assert made.generation.condemned == {0}
    assert made.end() == [-signal.SIGKILL, 0]
    assert [worker.local_rank for worker in made.generation.processes.failed] == [0]
