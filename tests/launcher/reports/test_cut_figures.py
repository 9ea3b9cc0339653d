"""Reports of runs whose figures end early: what is shown as exact is what the whole run shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.model import Report
from launcher.reports.phrases import cost_of
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_failing_nodes, invent_run, invent_runs
from tests.launcher.reports.test_lost_nodes import with_lost_nodes

FAILURES = (Failure(3, 1), Failure(8, 0, "hang", 31.0), Failure(12, 1))
SECONDS = 0.02
"""More than the last line of a generation is written before its ranks have stopped."""

HOW: dict[str, Callable[[list[bytes], int], bytes]] = {
    "cut": lambda lines, number: b"".join(lines[:number]),
    "within a line": lambda lines, number: b"".join(lines[:number]) + lines[number][: len(lines[number]) // 2],
    "zero bytes": lambda lines, number: b"".join(lines[:number]) + bytes(sum(map(len, lines[number:]))),
}


def reported(*runs: InventedRun) -> Report:
    return make_report([str(folder) for run in runs for folder in run.folders])


def rows_of(report: Report) -> dict[str, tuple[float, bool]]:
    return {entry.category.key: (entry.seconds, entry.is_about) for entry in report.ledger.entries}


def cut_at_every_line(paths: list[Path], how: str) -> Iterator[str]:
    """Cut one file after another at every line, and yield where."""
    for path in paths:
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        for number in range(len(lines)):
            path.write_bytes(HOW[how](lines, number))
            yield f"{path.name} after line {number}"
        path.write_bytes(whole)


def assert_what_is_exact_is_true(report: Report, truth: Report, where: str) -> None:
    assert sum(seconds for seconds, _ in rows_of(report).values()) == pytest.approx(report.ledger.wall_seconds)
    exact = rows_of(truth)
    for key, (seconds, is_about) in rows_of(report).items():
        if not is_about and key != "unknown":
            assert seconds == pytest.approx(exact[key][0], abs=SECONDS), (where, key)
    for own, other in zip(report.incidents, truth.incidents, strict=True):
        shown = cost_of(own)
        if shown is not None and not shown.startswith("~"):
            assert own.cost_seconds == pytest.approx(other.cost_seconds, abs=SECONDS), (where, own.number)
    ledger = report.ledger
    assert ledger.is_wall_about or ledger.wall_seconds == pytest.approx(truth.ledger.wall_seconds, abs=SECONDS), where
    if not ledger.is_count_about:
        assert ledger.steps in (None, truth.ledger.steps), where
        assert ledger.repeated in (None, truth.ledger.repeated), where
    observed = {limit.kind: limit for limit in truth.limits}
    for limit in report.limits:
        if not limit.is_about:
            assert limit == observed[limit.kind], where
    assert saves_of(report) in ("~", saves_of(truth)), where
    assert len(report.notes) > len(truth.notes), where


def saves_of(report: Report) -> str:
    """Return how many saves a recommendation rests on; ``~`` where that is about right only, or nothing is said."""
    texts = (each.text for each in report.recommendations if each.about == "checkpoint interval")
    shown = next((found[1] for text in texts if (found := re.search(r"(\S+) save\(s\)", text))), "~")
    return "~" if shown.startswith("~") else shown


@pytest.mark.parametrize("how", HOW)
def test_where_figures_end_early_nothing_that_is_shown_as_exact_is_wrong(tmp_path: Path, how: str) -> None:
    run = invent_run(tmp_path, failures=FAILURES, steps=16, save_every=5, lines=40)
    truth = reported(run)
    assert not any(is_about for _, is_about in rows_of(truth).values())
    assert not any(incident.is_cost_about for incident in truth.incidents)
    for where in cut_at_every_line([run.folders[0] / "figures.jsonl"], how):
        assert_what_is_exact_is_true(reported(run), truth, where)


@pytest.mark.parametrize("own_folders", [False, True])
def test_where_figures_of_one_node_end_early_nothing_that_is_shown_as_exact_is_wrong(
    tmp_path: Path, own_folders: bool
) -> None:
    run = invent_failing_nodes(tmp_path, own_folders=own_folders)
    truth = reported(run)
    paths = sorted({path for folder in run.folders for path in folder.glob("figures*.jsonl")})
    assert len(paths) == 2
    for where in cut_at_every_line(paths, "cut"):
        assert_what_is_exact_is_true(reported(run), truth, where)


def test_where_figures_of_one_of_two_runs_end_early_nothing_that_is_shown_as_exact_is_wrong(tmp_path: Path) -> None:
    runs = invent_runs(tmp_path, 2, lines=20)
    truth = reported(*runs)
    for where in cut_at_every_line([run.folders[0] / "figures.jsonl" for run in runs], "cut"):
        report = reported(*runs)
        if "after line 0" not in where or not report.lacks_runs:
            assert_what_is_exact_is_true(report, truth, where)


def test_where_the_last_generation_has_no_figures_it_is_not_known_what_was_lost_before_it(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    path = run.folders[0] / "figures.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["generation"] == 0))
    report = reported(run)
    (incident,) = report.incidents
    assert (incident.cost_seconds, incident.repeated) == (None, None)
    assert (report.ledger.steps, report.ledger.repeated) == (None, None)
    rows = rows_of(report)
    assert rows["productive"][1]
    assert "lost_work" not in rows
    assert any("what was lost of those before them is not known" in note for note in report.notes)


def test_of_a_lost_node_what_it_did_last_and_when_it_left_is_about_right_only(tmp_path: Path) -> None:
    report = reported(with_lost_nodes(tmp_path))
    rows = rows_of(report)
    assert report.runs[0].nodes_lost == 1
    for key in ("productive", "checkpointing", "lost_work", "absent"):
        assert rows[key][1], key
    incident = json.loads(as_json(report))["incidents"][0]
    assert incident["cost_seconds"] > 0
    assert incident["is_cost_about"]
    assert str(cost_of(report.incidents[0])).startswith("~")
    assert any("for how long it was in the job, is about right only" in note for note in report.notes)


def test_the_time_between_runs_is_about_right_only_where_the_first_launcher_was_killed(tmp_path: Path) -> None:
    runs = invent_runs(tmp_path, 2)
    assert not rows_of(reported(*runs))["between_runs"][1]
    path = runs[0].folders[0] / "events.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    rows = rows_of(reported(*runs))
    assert rows["between_runs"][1]


def test_idle_time_is_about_right_only_where_neither_figures_nor_an_event_tell_of_the_end(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=30)
    events, figures = (run.folders[0] / f"{name}.jsonl" for name in ("events", "figures"))
    told = [line for line in events.read_text().splitlines(keepends=True) if '"stopped"' not in line]
    events.write_text("".join(told))
    figures.write_text("".join(figures.read_text().splitlines(keepends=True)[:5]))
    rows = rows_of(reported(run))
    assert rows["productive"][1]
    assert rows.get("idle", (0.0, True))[1]
    assert rows["unknown"][0] > 0
