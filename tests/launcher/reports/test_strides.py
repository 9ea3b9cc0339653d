"""Reports of runs whose iterations count on by more than one for each step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.reports.build import make_report
from launcher.reports.model import Report
from launcher.reports.page import page
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run, invent_runs

ITERATIONS = ("iteration", "done", "first_iteration", "resumed_from", "saved")


def reported(*runs: InventedRun) -> Report:
    return make_report([str(run.folders[0]) for run in runs])


def with_a_stride(run: InventedRun, stride: int, *, has_sections: bool = True, later: int = 0) -> None:
    """Let the ranks have counted samples, of which there are so many in each step."""
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for facts in line["ranks"].values():
            facts |= {key: stride * facts[key] + later for key in ITERATIONS if facts.get(key) is not None}
            for save in facts.get("saves", ()):
                save["iteration"] *= stride
            if not has_sections:
                facts["sections"].pop("step", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("stride", [2, 8])
def test_iterations_that_are_no_steps_are_not_counted_as_steps(tmp_path: Path, stride: int) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1), Failure(33, 0)], steps=50)
    whole = reported(run)
    assert (whole.ledger.steps, whole.ledger.repeated) == (50, run.truth.repeated)
    with_a_stride(run, stride)
    report = reported(run)
    ledger = report.ledger
    assert (ledger.steps, ledger.repeated, ledger.step_seconds) == (None, None, None)
    assert [incident.repeated for incident in report.incidents] == [None, None]
    assert {generation.repeated for generation in report.generations} == {None}
    assert ledger.entries == whole.ledger.entries, "when states were reached is known by the saves"
    assert [each.cost_seconds for each in report.incidents] == [each.cost_seconds for each in whole.incidents]
    assert "steps kept and done again: not known" in "\n".join(text_of(report))
    assert "done again: not known" in page(report)
    (interval,) = (each for each in report.recommendations if each.about == "checkpoint interval")
    assert "steps" not in interval.text
    assert sum("iterations count on by more than one for each step" in note for note in report.notes) == 1


@pytest.mark.parametrize("warmup", [1, 5])
@pytest.mark.parametrize("failures", [0, 3])
def test_first_steps_that_are_no_sections_are_no_stride(tmp_path: Path, failures: int, warmup: int) -> None:
    run = invent_run(tmp_path, failures=failures, steps=failures * 37 + 12)
    events = run.folders[0] / "events.jsonl"
    began, *rest = events.read_text().splitlines()
    told = json.loads(began)
    told["configuration"] |= {"num_warmup_iterations": warmup} if warmup > 1 else {}
    events.write_text("\n".join([json.dumps(told), *rest]) + "\n")
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for facts in line["ranks"].values():
            if "step" in facts["sections"]:
                step = facts["sections"]["step"]
                step["closed"] = max(step["closed"] - warmup, 0)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert reported(run).ledger.steps == failures * 37 + 12


def test_with_heartbeats_nothing_tells_of_a_stride(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=20)
    with_a_stride(run, 2, has_sections=False)
    assert reported(run).ledger.steps == 39


def counted(run: InventedRun, *, evaluation: int = 0) -> None:
    """Let the ranks have counted their steps, and have closed ``step`` for so many of an evaluation after each."""
    path = run.folders[0] / "figures.jsonl"
    lines, first = [json.loads(line) for line in path.read_text().splitlines()], {}
    for line in lines:
        for rank, facts in line["ranks"].items():
            key = line["generation"], rank
            first[key] = facts.get("first_iteration") if line["is_full"] else first.get(key)
            done = facts["done"]
            facts["passed"] = done - first[key] + 1 if done is not None and first[key] is not None else None
            if "step" in facts["sections"]:
                facts["sections"]["step"]["closed"] *= 1 + evaluation
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("has_sections", [True, False])
@pytest.mark.parametrize("stride", [1, 2, 8])
def test_ranks_that_count_their_steps_tell_of_a_stride_whatever_else_is_a_section(
    tmp_path: Path, stride: int, has_sections: bool
) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1), Failure(33, 0)], steps=50)
    counted(run, evaluation=stride)
    with_a_stride(run, stride, has_sections=has_sections)
    ledger = reported(run).ledger
    whole = (50, run.truth.repeated)
    assert (ledger.steps, ledger.repeated) == (whole if stride == 1 else (None, None))


def test_two_steps_of_ranks_that_count_them_tell_of_a_stride(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=1, failures=0, steps=2)
    counted(run)
    with_a_stride(run, 2)
    assert reported(run).ledger.steps is None


def test_a_run_that_begins_with_the_next_stride_is_no_reason_to_miss_another(tmp_path: Path) -> None:
    runs = invent_runs(tmp_path, 2, has_saves=False)
    with_a_stride(runs[0], 8)
    with_a_stride(runs[1], 8, later=8 * 34 - 8 * 30)  # from 30 it would have gone on, and 33 was the last that began
    report = reported(*runs)
    began = [each.iteration for each in report.generations if each.run == 0]
    assert max(each for each in began if each is not None) == 8 * 33
    assert not report.lacks_runs
