"""The monitor may be killed, stopped or frozen with everything else: training goes on, and no hang is lost."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

FREEZERS = (Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_monitor_that_is_lost_is_replaced_and_training_does_not_notice(
    launch: Callable[..., Any], number: signal.Signals
) -> None:
    job = launch("loop.py", "--until-file", "stop", rank_section_timeouts="setup:90,step:20,checkpointing:90")
    job.wait_for_output("runs in generation 0", count=2)
    first = job.monitor_pid

    os.kill(first, number)
    replaced = job.wait_for_event("monitor_replaced")

    assert ("was stopped" if number == signal.SIGSTOP else "signal 9") in replaced["reason"]
    assert job.monitor_pid != first
    (job.work / "stop").touch()
    assert job.wait() == 0
    assert job.incidents() == []
    assert len(job.events("started")) == 1
    assert job.stdout.count("is done in generation 0") == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_a_hang_that_began_before_is_still_caught(launch: Callable[..., Any], number: signal.Signals) -> None:
    job = launch(
        *("loop.py", "--until-stopped"),
        options=["--max-restarts", 1],
        faults="deadlock:rank=1,step=3",
        rank_section_timeouts="setup:90,step:2,checkpointing:90",
    )
    job.wait_for_error_output("simulated fault on rank 1")

    os.kill(job.monitor_pid, number)

    assert job.wait() == 0
    (incident,) = job.incidents()
    assert [rank.rank for rank in incident.condemned] == [1]
    assert len(job.events("monitor_replaced")) == 1


def test_every_monitor_that_is_killed_is_replaced(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-file", "stop", nproc=1)
    job.wait_for_output("runs in generation 0")
    pids = set()
    for count in range(1, 4):
        pids.add(job.monitor_pid)
        os.kill(job.monitor_pid, signal.SIGKILL)
        job.wait_for_event("monitor_replaced", count)
    (job.work / "stop").touch()

    assert job.wait() == 0
    assert len(pids) == 3


def test_a_job_that_did_not_get_its_protection_back_says_so_at_its_end(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-file", "stop", nproc=1)
    job.wait_for_output("runs in generation 0")
    while not job.events("monitor_lost"):
        pid = job.monitor_pid
        os.kill(pid, signal.SIGSTOP)
        job.until_gone({pid})
        job.until(lambda: any("launcher.monitor.monitor" in what for what in job.processes().values()), "new monitor")
    (job.work / "stop").touch()

    assert job.wait() == 0
    assert job.stderr.count("PROTECTION IS OFF") == 1
    assert ("PROTECTION WAS STILL OFF when the job ended" in job.stderr) == (not job.events("monitor_back"))


@pytest.fixture
def freezer() -> Iterator[Callable[[set[int], bool], None]]:
    """Freeze or thaw processes with the kernel's cgroup freezer, version 1 or 2."""
    for root in FREEZERS:
        folder = root / f"ft_test_{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if any((folder / name).exists() for name in ("freezer.state", "cgroup.freeze")):
            break
        folder.rmdir()
    else:
        pytest.skip("no cgroup freezer that may be written to")
    is_v1 = (folder / "freezer.state").exists()

    def set_frozen(pids: set[int], frozen: bool) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended since it was listed
                (folder / "cgroup.procs").write_text(str(pid))
        file, words = ("freezer.state", ("THAWED", "FROZEN")) if is_v1 else ("cgroup.freeze", ("0", "1"))
        (folder / file).write_text(words[frozen])

    yield set_frozen
    set_frozen(set(), False)
    for pid in (folder / "cgroup.procs").read_text().split():
        (root / "cgroup.procs").write_text(pid)
    folder.rmdir()


def stop_all(pids: set[int], frozen: bool) -> None:
    for pid in pids:
        # A launcher that is awake before its parked workers replaces those that are still stopped.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)


@pytest.mark.parametrize(
    ("way", "api"),
    [
        ("cgroup", "sections"),
        pytest.param("cgroup", "heartbeats", marks=pytest.mark.long),
        pytest.param("signals", "sections", marks=pytest.mark.long),
    ],
)
def test_a_freeze_of_the_whole_tree_kills_nothing(
    launch: Callable[..., Any], request: pytest.FixtureRequest, way: str, api: str
) -> None:
    """A container pause for longer than every limit, then a thaw: lost time is given back."""
    freeze = request.getfixturevalue("freezer") if way == "cgroup" else stop_all
    job = launch(
        *("loop.py", "--until-file", "stop", "--api", api, "--step-seconds", 0.3),
        rank_section_timeouts="setup:90,step:1.2,checkpointing:90" if api == "sections" else "null",
        rank_heartbeat_timeout=1.2,
        initial_rank_heartbeat_timeout=20,
    )
    job.wait_for_output("runs in generation 0", count=2)
    everybody = set(job.processes())
    assert len(everybody) >= 4
    freeze(everybody, True)
    select.select([], [], [], 2)  # nothing can happen in this time, so there is nothing to wait for
    freeze(everybody, False)
    select.select([], [], [], 1.4)  # longer than any limit: what would be killed has been killed by then
    (job.work / "stop").touch()

    assert job.wait() == 0
    assert job.incidents() == []
    assert len(job.events("started")) == 1
    assert job.stdout.count("is done in generation 0") == 2


def test_a_hang_after_a_freeze_is_still_caught(launch: Callable[..., Any]) -> None:
    job = launch(
        *("loop.py", "--until-stopped"),
        options=["--max-restarts", 1],
        faults="deadlock:rank=1,delay=0,step=40",
        rank_section_timeouts="setup:90,step:1,checkpointing:90",
    )
    job.wait_for_output("runs in generation 0", count=2)
    everybody = set(job.processes())
    stop_all(everybody, True)
    select.select([], [], [], 1.5)
    stop_all(everybody, False)

    assert job.wait() == 0
    (incident,) = job.incidents()
    assert [rank.rank for rank in incident.condemned] == [1]
