"""The report of real jobs, against what their script has counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger.__main__ import compare, counted_again, plan
from launcher.reports.build import make_report
from launcher.top.source import open_run

pytestmark = pytest.mark.e2e

TRAINING = Path(__file__).parents[2] / "benchmarks" / "ledger" / "training.py"
LIMITS = {"rank_section_timeouts": "setup:60,step:1.5,checkpointing:60"}


@pytest.mark.long
def test_a_job_with_faults_is_accounted_for(launch: Callable[..., Any], tmp_path: Path) -> None:
    faults = plan(4, seed=3)
    began = time.monotonic()
    options = ["--max-restarts", 4]
    job = launch(TRAINING, tmp_path, faults[-1].step + 15, ",".join(map(str, faults)), options=options, **LIMITS)
    assert job.wait(120) == 0
    around = time.monotonic() - began

    report = make_report([str(job.log_folder)])
    assert report.ledger.repeated == counted_again(tmp_path) > 0
    assert [[culprit.rank for culprit in incident.culprits] for incident in report.incidents] == [
        [fault.rank] for fault in faults
    ]
    total = sum(entry.seconds for entry in report.ledger.entries)
    assert total == pytest.approx(report.ledger.wall_seconds, abs=1e-6)
    (ended,) = job.events("ended")
    (first,) = job.events("began")
    assert total == pytest.approx((ended["t_ns"] - first["process_began_ns"]) / 1e9, abs=1e-6)
    assert total <= around
    assert first["process_began_ns"] / 1e9 == pytest.approx(began, abs=0.5 * around)  # of the same clock
    assert report.ledger.steps == faults[-1].step + 15
    assert report.notes == ()


def test_a_job_that_goes_on_is_told_of_and_left_alone(launch: Callable[..., Any], tmp_path: Path) -> None:
    job = launch(TRAINING, tmp_path, 1_000_000, "exit:0:1000000", nproc=1, **LIMITS)
    job.until(lambda: (tmp_path / "checkpoint").exists(), "the first save")
    job.until(lambda: any(job.log_folder.glob("figures.jsonl")), "figures")
    before = sorted(os.listdir(job.log_folder))
    report = job.until(
        lambda: (found := make_report([str(job.log_folder)])).generations and found.generations[0].done and found,
        "a line of figures",
    )
    assert report.is_running
    assert report.runs[0].outcome is None
    assert "productive" in {entry.category.key for entry in report.ledger.entries}
    assert sorted(os.listdir(job.log_folder)) == before
    job.signal(15)
    job.wait()
    assert not make_report([str(job.log_folder)]).is_running


@pytest.mark.long
def test_the_ledger_of_a_job_with_20_faults_is_the_wall_time_within_a_hundredth(tmp_path: Path) -> None:
    assert compare(tmp_path, plan(20, seed=0)).wrong == ()


def test_a_run_whose_log_folder_was_emptied_is_found_again_though_nothing_happens(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-file", "stop")
    job.wait_for_output("runs in generation 0", count=2)
    job.wait_for_event("phases")
    for name in ("events.jsonl", "figures.jsonl"):
        (job.log_folder / name).unlink(missing_ok=True)
    lost = job.wait_for_event("lost")
    assert lost["launcher"] == job.pid
    assert lost["run_folder"] in map(str, job.run_parent.iterdir())
    report = make_report([str(job.log_folder)])
    assert (report.is_running, report.runs[0].is_about) == (True, True)
    live = open_run(str(job.log_folder))
    assert len(live.look().ranks) == 2
    live.close()

    (job.work / "stop").touch()
    assert job.wait() == 0
    (told,) = make_report([str(job.log_folder)]).runs
    assert (told.outcome, told.is_running) == ("succeeded", False)
