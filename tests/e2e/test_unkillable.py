"""A rank that SIGKILL does not end: in uninterruptible sleep, as in a driver or on a file system that hangs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_a_rank_that_sigkill_does_not_end_is_replaced_all_the_same(
    launch: Callable[..., Any], uninterruptible: Any
) -> None:
    """It is named with its state, waited for once, left alone at the next restart, and collected when it ends."""
    job = launch(
        *("loop.py", "--until-file", "stop"),
        options=["--max-restarts", 2],
        rank_section_timeouts="setup:90,step:2,checkpointing:90",
        rank_out_of_section_timeout=2,
        kill_timeout=0.5,
        failure_stop_timeout=0.2,
    )
    job.wait_for_output("runs in generation 0", count=2)
    stuck = job.workers(0)[1]

    uninterruptible.put_in(stuck)

    job.wait_for_output("runs in generation 1", count=2)
    job.wait_for_error_output(f"rank 1 (pid {stuck}) was killed and is not gone (uninterruptible sleep")
    job.wait_for_error_output(f"killed, but not gone after 0.5 s: local rank 1, pid {stuck} (uninterruptible sleep")
    (incident,) = job.incidents()
    assert [rank.rank for rank in incident.condemned] == [1]
    os.kill(job.workers(1)[0], 9)
    job.wait_for_output("runs in generation 2", count=2)
    assert job.stderr.count("but not gone") == 1
    assert stuck in job.processes()
    uninterruptible.let_go()
    job.until(lambda: stuck not in {**job.processes(), **job.zombies()}, "end of the rank that was thawed")
    (job.work / "stop").touch()
    assert job.wait() == 0


@pytest.mark.long
def test_a_monitor_that_cannot_be_killed_is_replaced_and_not_waited_for(
    launch: Callable[..., Any], uninterruptible: Any
) -> None:
    """A restart needs the lock under which it is replaced, and the end of the job ends it."""
    job = launch("loop.py", "--until-file", "stop", options=["--max-restarts", 1], nproc=1)
    job.wait_for_output("runs in generation 0")
    stuck = job.monitor_pid

    uninterruptible.put_in(stuck)

    job.wait_for_event("monitor_replaced")
    os.kill(job.workers(0)[0], 9)
    job.wait_for_output("runs in generation 1")
    (job.work / "stop").touch()
    assert job.wait() == 0
    assert stuck in job.processes()
