"""Whatever is removed or cut off under a running launcher costs at most a restart, and never the protection."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


def test_a_run_folder_that_is_removed_and_a_cell_that_is_cut_off(launch: Callable[..., Any]) -> None:
    job = launch(
        *("loop.py", "--until-file", "stop"),
        options=["--max-restarts", 2],
        rank_section_timeouts="setup:60,step:60,checkpointing:60",
    )
    job.wait_for_output("runs in generation 0", count=2)
    (folder,) = job.run_parent.iterdir()

    shutil.rmtree(folder)
    mended = job.wait_for_event("run_folder_mended")
    assert str(folder / "cells") in mended["missing"]
    os.kill(job.workers(0)[0], signal.SIGKILL)
    job.wait_for_output("runs in generation 1", count=2)
    assert sorted(os.listdir(folder)) == ["cells", "config.json", "control.sock", "lock"]

    # What a restart reads is what the launcher wrote, whatever somebody has put there meanwhile.
    (folder / "config.json").write_bytes(b"\xff\x00")
    (folder / "control.sock").unlink()
    (folder / "control.sock").touch()
    # The rank dies by SIGBUS at its next store; whoever looks at the cell does not.
    os.truncate(folder / "cells" / "1-0", 0)
    job.wait_for_output("runs in generation 2", count=2)
    damaged = [str(folder / name) for name in ("config.json", "control.sock")]
    assert job.events("run_folder_mended")[-1]["damaged"] == damaged

    (job.work / "stop").touch()
    assert job.wait() == 0
    assert job.stdout.count("is done in generation 2") == 2
    assert job.events("monitor_replaced") == job.events("monitor_lost") == []


def test_what_a_failed_rank_has_left_may_be_anything(launch: Callable[..., Any]) -> None:
    """The launcher ended with 1 for an error file that was cut short, and waited for ever for a pipe's other end."""
    job = launch("damages.py", options=["--max-restarts", 1, "--redirects", 3])

    assert job.wait() == 0
    assert "error.json is not what torch's @record writes" in job.stderr
    (incident,) = job.incidents()
    assert [rank.rank for rank in incident.culprits] == [0]
    assert len(job.events("started")) == 2


def test_a_launcher_that_is_stopped_is_told_by_its_monitor_and_goes_on(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-file", "stop", nproc=1)
    job.wait_for_output("runs in generation 0")

    job.signal(signal.SIGSTOP)
    job.wait_for_error_output(f"the launcher (pid {job.pid}) is stopped")
    job.signal(signal.SIGCONT)
    job.wait_for_event("launcher_stopped")
    (job.work / "stop").touch()

    assert job.wait() == 0
    assert job.stderr.count("is stopped: hung ranks are found and ended, but nothing is restarted") == 1
