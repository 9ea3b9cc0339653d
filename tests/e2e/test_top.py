"""ft_top beside a real job: it follows a restart, a replaced monitor and the end, and the job does not notice it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.launcher.top.conftest import PROGRAM, Top

pytest.importorskip("rich")
pytestmark = pytest.mark.e2e

LIMITS = {"rank_section_timeouts": "setup:90,step:20,checkpointing:90"}


@pytest.fixture
def watch() -> Iterator[Callable[..., Top]]:
    """Start ft_top on a job's log folder, in a terminal."""
    started: list[Top] = []

    def watch(job: Any) -> Top:
        started.append(Top([str(job.log_folder), "--interval", "0.1"], PROGRAM, 110, 24))
        return started[-1]

    yield watch
    for each in started:
        each.tidy()


def shows_line(top: Top, pattern: str) -> None:
    """Wait until a line that matches is shown."""
    top.until(lambda: any(re.fullmatch(pattern, line) for line in top.screen), pattern)


def test_it_follows_a_restart_the_monitor_and_the_end(launch: Callable[..., Any], watch: Callable[..., Top]) -> None:
    job = launch("loop.py", "--until-file", "stop", options=["--max-restarts", 2], **LIMITS)
    job.wait_for_output("runs in generation 0", count=2)
    top = watch(job)
    top.shows("generation 0 since")
    shows_line(top, r" +0  step +\d+ +0\.\d s +(19|20) s +\d.*")

    os.kill(job.workers()[1], signal.SIGKILL)
    top.shows("generation 1 since")
    top.shows("1 of 2 restarts used")
    top.shows("rank 1 (pid")
    shows_line(top, r" +1  .* 1 \(1\) +\d+ MiB")  # which was to blame
    shows_line(top, r" +0  step +\d+ .*")

    os.kill(job.monitor_pid, signal.SIGKILL)
    top.shows("the monitor was replaced 1 time(s)")

    said = subprocess.run(
        [sys.executable, "-m", "launcher.top", str(job.log_folder), "--json"], capture_output=True, text=True
    )
    document = json.loads(said.stdout)
    assert [(rank["rank"], rank["generation"], rank["restarts"]) for rank in document["ranks"]] == [
        (0, 1, 1),
        (1, 1, 1),
    ]
    assert all(rank["steps_per_second"] > 1 for rank in document["ranks"])  # from the figures, at the first look

    (job.work / "stop").touch()
    assert top.wait() == 0
    top.assert_left_as_found()
    assert b"succeeded, exit code 0" in top.raw.rpartition(b"\x1b[?1049l")[2]
    assert job.wait() == 0


def test_one_that_is_stopped_delays_nothing(launch: Callable[..., Any], watch: Callable[..., Top]) -> None:
    job = launch("loop.py", "--until-file", "stop", options=["--max-restarts", 1], **LIMITS)
    job.wait_for_output("runs in generation 0", count=2)
    top = watch(job)
    top.shows("generation 0 since")
    os.kill(top.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, top.process.pid, os.WSTOPPED | os.WNOWAIT)

    os.kill(job.workers()[1], signal.SIGKILL)
    job.wait_for_output("runs in generation 1", count=2)
    (job.work / "stop").touch()
    assert job.wait() == 0
    assert len(job.incidents()) == 1
    assert not list(job.run_parent.iterdir())

    os.kill(top.process.pid, signal.SIGCONT)
    assert top.wait() == 0
    assert b"succeeded, exit code 0" in top.raw
