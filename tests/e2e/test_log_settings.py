"""``log_level`` and ``log_format`` count for launcher, monitor, zygote and ranks alike."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.monitor.replacement_rules import STOPPED_NS
from resilience_core.system.clock import NS_PER_SECOND

pytestmark = pytest.mark.e2e

LIMITS = "setup:60,step:20,checkpointing:60"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def told(job: Any) -> list[dict[str, Any]]:
    """What is written to standard error, all of it JSON."""
    return [json.loads(line) for line in job.stderr.splitlines()]


@pytest.mark.parametrize("level", LEVELS)
def test_a_job_that_fails_says_what_its_level_asks_for(launch: Callable[..., Any], level: str) -> None:
    """Both ranks die of the same, one after a restart; why the job has ended is said whatever the level is."""
    job = launch(
        "loop.py",
        options=["--max-restarts", 1],
        faults="exit:rank=0,step=3,generation=any,code=5",
        max_no_progress_cycles=0,
        rank_section_timeouts=LIMITS,
        log_format="json",
        log_level=level,
    )
    assert job.wait() == 1
    said = told(job)

    assert {LEVELS.index(each["level"]) < LEVELS.index(level) for each in said} == {False}
    assert {each["node"] for each in said} == {os.uname().nodename}
    heard = {
        "CRITICAL": {"job_failed"},
        "ERROR": {"job_failed", "failure"},
        "WARNING": {"job_failed", "failure", "restart", "started"},
    }
    events = [each["event"] for each in said if each["source"] == "launcher" and each["event"] != "log"]
    assert set(events) == heard.get(level, heard["WARNING"])
    assert events.count("job_failed") == 1
    failed = next(each for each in said if each["event"] == "job_failed")
    assert "no restart is left (--max-restarts 1)" in failed["text"]
    assert "exited with code 5" in failed["who"][0]
    assert failed["culprits"] == [0]
    for each in said:
        if each["event"] == "failure":
            assert (each["ranks"], each["culprits"]) == ([0], [0])
            assert os.path.basename(each["report"]) == "report.txt"
    assert any(each["source"] == "monitor" for each in said) is (level == "DEBUG")
    ranks = {each["rank"] for each in said if each["source"] == "client"}
    # The fault itself is a warning. Rank 1 may have been ended before it had anything to say.
    assert ranks - {1} == ({0} if level in ("DEBUG", "INFO", "WARNING") else set())
    assert level == "DEBUG" or 1 not in ranks
    assert any(each["source"] == "client" and each["level"] == "DEBUG" for each in said) is (level == "DEBUG")


def test_a_hang_is_told_by_the_launcher_alone(launch: Callable[..., Any]) -> None:
    job = launch(
        "loop.py",
        options=["--max-restarts", 1],
        faults="deadlock:rank=1,step=3",
        rank_section_timeouts="setup:60,step:1,checkpointing:60",
        log_format="json",
        log_level="ERROR",
    )
    assert job.wait() == 0
    (hang,) = told(job)
    assert (hang["event"], hang["ranks"], hang["generation"], hang["source"]) == ("hang", [1], 0, "launcher")
    assert "section 'step' open for" in hang["who"][0]
    assert hang["culprits"] == [1]
    assert any("_deadlock" in line for line in hang["stack"])


@pytest.mark.long
def test_a_monitor_speaks_in_the_form_and_from_the_level_that_was_asked_for(launch: Callable[..., Any]) -> None:
    for level in ("WARNING", "ERROR"):
        form = {"log_format": "json", "log_level": level, "rank_section_timeouts": LIMITS}
        job = launch("loop.py", "--until-file", "{work}/end", nproc=1, **form)
        job.wait_for_output("runs in generation 0")
        job.signal(signal.SIGSTOP)
        if level == "WARNING":
            job.wait_for_error_output("launcher_stopped")
        else:
            time.sleep(2 * STOPPED_NS / NS_PER_SECOND)  # that nothing is said has no event to wait for
        job.signal(signal.SIGCONT)
        job.wait_for_event("launcher_stopped")
        (job.work / "end").touch()
        assert job.wait() == 0
        assert [(each["source"], each["event"]) for each in told(job)] == (
            [("monitor", "launcher_stopped")] if level == "WARNING" else []
        )


def test_lines_for_people_say_every_thing_once(launch: Callable[..., Any]) -> None:
    """No line comes twice but those about the culprit; the last words repeat why, too, where that is not certain."""
    job = launch(
        "loop.py",
        options=["--max-restarts", 0],
        faults="exit:rank=0,step=3,code=5",
        env={"OMP_NUM_THREADS": ""},
    )
    assert job.wait() == 1
    lines = [line.removeprefix("ft_launcher:").strip() for line in job.stderr.splitlines() if "ft_launcher" in line]
    twice = {line for line in lines if lines.count(line) > 1}
    assert len(twice) == 3
    assert any(line.startswith("why     likely: ") for line in twice)
    assert any("exited with code 5" in line for line in twice)
    assert any(line.startswith("report ") for line in twice)
    assert sum("OMP_NUM_THREADS" in line for line in job.stderr.splitlines()) == 1
    assert sum("--max-restarts" in line for line in lines) == 1


def test_the_oldest_of_several_runs_go_with_all_that_is_in_them(launch: Callable[..., Any]) -> None:
    """--ft-keep-runs: the second and third run of three stay."""
    first = launch("loop.py", nproc=1, options=["--redirects", 3])
    assert first.wait() == 0
    for number in (2, 3):
        options = ["--redirects", 3, "--log-dir", first.logs, "--rdzv-id", f"run{number}"]
        job = launch("loop.py", nproc=1, options=options, keep_runs=2, log_format="json")
        assert job.wait() == 0
    removed = [each for each in told(job) if each["event"] == "runs_removed"]

    assert sorted(path.name for path in first.log_folders) == ["run2", "run3"]
    assert [each["level"] for each in removed] == ["INFO"]
    assert (first.logs / "latest").resolve().name == "run3"
    for folder in first.log_folders:
        assert [path.read_text() for path in folder.rglob("stdout.log")] == [
            "rank 0 runs in generation 0\nrank 0 is done in generation 0\n"
        ]


def test_copies_of_log_folders_that_have_kept_their_names_stay(launch: Callable[..., Any], tmp_path: Path) -> None:
    first = launch("loop.py", nproc=1)
    assert first.wait() == 0
    copies = tmp_path / "copies"
    shutil.copytree(first.logs, copies, symlinks=True)
    kept = first.log_folder.name
    options = ["--log-dir", copies, "--rdzv-id", "new"]
    job = launch("loop.py", nproc=1, options=options, keep_runs=1)
    assert job.wait() == 0
    assert sorted(path.name for path in copies.iterdir()) == sorted(["latest", "new", kept])
    assert job.stderr.count("--ft-keep-runs") == 0
