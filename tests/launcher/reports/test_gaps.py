"""What a report says where lines are missing, or ranks did not tell everything: never a figure that is not known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.reports.build import make_report
from launcher.reports.model import Ledger, Report
from launcher.reports.page import page
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run

CLOSE = 1e-6


def reported(run: InventedRun) -> Report:
    report = make_report([str(folder) for folder in run.folders])
    assert_adds_up(report.ledger)
    return report


def assert_adds_up(ledger: Ledger) -> None:
    assert sum(entry.seconds for entry in ledger.entries) == pytest.approx(ledger.wall_seconds, abs=CLOSE)
    for row in ledger.by_rank:
        assert sum(row.seconds) == pytest.approx(row.wall_seconds, abs=CLOSE)


def seconds(report: Report) -> dict[str, float]:
    return {entry.category.key: entry.seconds for entry in report.ledger.entries}


def rewritten(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change each line of a file; None leaves it out."""
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None))


# ---- ranks that tell of no steps -------------------------------------------------------------------------


def without_steps(run: InventedRun, *, resumes: bool = True, saves: bool = True, iterations: bool = True) -> None:
    """Turn the figures into those of ranks that use bare sections and note their iterations."""
    removed = {"done": None, "first_iteration": None, "first_step_ns": None}
    removed |= {} if resumes else {"resumed_from": None}
    removed |= {} if saves else {"saves": [], "saved": None}
    removed |= {} if iterations else {"iteration": None}

    def change(line: dict[str, Any]) -> dict[str, Any]:
        for facts in line["ranks"].values():
            facts.update({key: value for key, value in removed.items() if key in facts})
        return line

    rewritten(run.folders[0] / "figures.jsonl", change)


def test_without_steps_the_time_that_was_lost_is_known_by_the_save_and_the_iterations_are_not(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    without_steps(run)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated, report.incidents[0].repeated) == (None, None, None)
    assert seconds(report)["lost_work"] == pytest.approx(run.truth.seconds["lost_work"], abs=1e-3)
    assert "; steps kept and done again: not known" in "\n".join(text_of(report))
    assert "iterations kept: not known, done again: not known" in page(report)
    assert any("generation(s) 0-1: no line of figures tells with which step" in note for note in report.notes)


@pytest.mark.parametrize("resumes", [True, False])
def test_without_steps_and_saves_what_was_done_again_is_not_called_productive(tmp_path: Path, resumes: bool) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    without_steps(run, saves=False, resumes=resumes)
    report = reported(run)
    first = run.lives[0]
    assert seconds(report)["unknown"] == pytest.approx(first.last_sign - first.started - 1.0, abs=1e-3)
    assert "lost_work" not in seconds(report)
    assert (report.ledger.repeated, report.incidents[0].cost_seconds) == (None, None)
    assert any("generation(s) 0: something was done again" in note for note in report.notes)


def test_without_iterations_whether_something_was_lost_is_not_known(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    without_steps(run, saves=False, resumes=False, iterations=False)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated) == (None, None)
    assert {"unknown", "lost_work"}.isdisjoint(seconds(report))
    assert any("generation(s) 0: whether something was lost is not known" in note for note in report.notes)


def test_a_job_without_steps_that_never_failed_has_nothing_done_again(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=30)
    without_steps(run)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated) == (None, 0)
    assert "; steps kept: not known, 0 done again" in "\n".join(text_of(report))


def test_a_line_that_tells_of_a_step_but_not_when_the_first_one_began_makes_no_start(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)

    def change(line: dict[str, Any]) -> dict[str, Any]:
        if line["generation"] == 0:
            for facts in line["ranks"].values():
                facts.update({key: None for key in ("first_iteration", "first_step_ns") if key in facts})
        return line

    rewritten(run.folders[0] / "figures.jsonl", change)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated) == (None, None)
    assert seconds(report)["unknown"] == pytest.approx(run.lives[0].last_sign - run.lives[0].started, abs=1e-3)
