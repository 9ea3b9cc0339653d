"""A rank that SIGKILL does not end: in uninterruptible sleep, as in a driver or on a file system that hangs."""

from __future__ import annotations

import os
import select
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

FREEZER = Path("/sys/fs/cgroup/freezer")
PATIENCE = 60.0


class Freezer:
    """The freezer of cgroup version 1: what is in it sleeps uninterruptibly, whatever signal comes."""

    def __init__(self) -> None:
        self.folder = FREEZER / f"ft_test_{uuid.uuid4().hex[:12]}"
        self.folder.mkdir()

    def freeze(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))
        (self.folder / "freezer.state").write_text("FROZEN")

    def thaw(self) -> None:
        (self.folder / "freezer.state").write_text("THAWED")

    def remove(self) -> None:
        self.thaw()
        end = time.monotonic() + PATIENCE
        while (pids := (self.folder / "cgroup.procs").read_text().split()) and time.monotonic() < end:
            select.select([], [], [], 0.01)
        assert not pids, f"still there, although they were thawed: {pids}"
        self.folder.rmdir()


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    try:
        made = Freezer()
    except OSError as error:
        pytest.skip(f"no freezer of cgroup version 1 may be used here: {error}")
    yield made
    made.remove()


def test_a_rank_that_sigkill_does_not_end_is_replaced_all_the_same(
    launch: Callable[..., Any], freezer: Freezer
) -> None:
    """It is named with its state, waited for once, left alone at the next restart, and collected when it ends."""
    job = launch(
        *("loop.py", "--until-file", "stop"),
        options=["--max-restarts", 2],
        rank_section_timeouts="setup:20,step:0.5,checkpointing:20",
        kill_timeout=0.5,
        failure_stop_timeout=0.2,
    )
    job.wait_for_output("runs in generation 0", count=2)
    stuck = job.workers(0)[1]

    freezer.freeze(stuck)

    job.wait_for_output("runs in generation 1", count=2)
    assert f"rank 1 (pid {stuck}) was killed and is not gone (uninterruptible sleep" in job.stderr
    assert f"killed, but not gone after 0.5 s: local rank 1, pid {stuck} (uninterruptible sleep" in job.stderr
    (incident,) = job.incidents()
    assert [rank.rank for rank in incident.condemned] == [1]
    os.kill(job.workers(1)[0], 9)
    job.wait_for_output("runs in generation 2", count=2)
    assert job.stderr.count("but not gone") == 1
    assert stuck in job.processes()
    freezer.thaw()
    job.until(lambda: stuck not in {**job.processes(), **job.zombies()}, "end of the rank that was thawed")
    (job.work / "stop").touch()
    assert job.wait() == 0
