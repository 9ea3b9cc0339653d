"""Reports of runs whose machine lost power: files end early, hold zero bytes, are empty, or are missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.model import Report
from launcher.reports.page import page
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run, invent_runs

FIGURES = ("zero bytes", "empty", "missing")
SAID = {
    "zero bytes": "figures.jsonl holds zero bytes alone",
    "empty": "figures.jsonl is empty",
    "missing": "there is no figures.jsonl",
}


def lose_power(folder: Path, figures: str, *, events: int = 1) -> None:
    """Leave the first lines of events, and of figures what is said."""
    path = folder / "events.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:events]))
    damage(folder / "figures.jsonl", figures)


def damage(path: Path, how: str) -> None:
    size = path.stat().st_size
    path.unlink()
    if how != "missing":
        path.write_bytes(bytes(size) if how == "zero bytes" else b"")


def reported(*runs: InventedRun) -> Report:
    report = make_report([str(folder) for run in runs for folder in run.folders])
    assert page(report)
    json.loads(as_json(report))
    return report


def said(report: Report) -> str:
    return " ".join(" ".join(text_of(report, 1000)).split())


@pytest.mark.parametrize("figures", FIGURES)
def test_of_a_launcher_whose_lines_end_before_its_ranks_nothing_is_known_of_these(tmp_path: Path, figures: str) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    shutil.rmtree(run.folders[0] / "incidents")
    lose_power(run.folders[0], figures)
    report = reported(run)
    (note,) = [note for note in report.notes if "started" in note]
    assert "is not known to have started a rank, and may have: nothing is known of its ranks" in note
    assert f"may be missing ({SAID[figures]})" in note
    assert (report.runs[0].world_size, report.runs[0].is_about, report.is_length_about) == (None, True, True)
    assert "an unknown number of ranks on ~1 node, no end was written, ~0 restarts" in said(report)


@pytest.mark.parametrize("figures", FIGURES)
def test_a_last_run_of_whose_ranks_nothing_is_known_may_have_gone_on(tmp_path: Path, figures: str) -> None:
    first, second = invent_runs(tmp_path, 2)
    shutil.rmtree(second.folders[0] / "incidents")
    lose_power(second.folders[0], figures)
    report = reported(first, second)
    assert not any("has started no rank" in note for note in report.notes)
    assert any("is not known to have started a rank" in note for note in report.notes)
    (lost,) = [note for note in report.notes if "counts as lost" in note]
    assert "about right only: a run of whose ranks nothing is known may have gone on" in lost
    assert all(entry.is_about for entry in report.ledger.entries)
    assert "~2 ranks on ~1 node, no end was written, ~1 restart " in said(report)


def test_the_time_around_a_run_of_whose_ranks_nothing_is_known_is_unknown(tmp_path: Path) -> None:
    runs = invent_runs(tmp_path, 3)
    whole = {entry.category.key for entry in reported(*runs).ledger.entries}
    assert "between_runs" in whole
    shutil.rmtree(runs[1].folders[0] / "incidents")
    lose_power(runs[1].folders[0], "missing")
    report = reported(*runs)
    entries = {entry.category.key: entry.seconds for entry in report.ledger.entries}
    assert "between_runs" not in entries
    assert entries["unknown"] >= runs[1].seconds
    assert not any("is missing; name its log folder" in note for note in report.notes)
    assert sum("; run-1 may have gone further than its lines tell" in note for note in report.notes) == 1


@pytest.mark.parametrize(("is_whole", "what"), [(True, "has started no rank"), (False, "is not known to have started")])
def test_that_a_launcher_has_started_no_rank_is_known_where_all_its_lines_are_there(
    tmp_path: Path, is_whole: bool, what: str
) -> None:
    run = invent_run(tmp_path, failures=0, steps=5)
    (run.folders[0] / "figures.jsonl").unlink()
    path = run.folders[0] / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *([] if is_whole else ["\0\n"]), lines[-1]]))
    assert sum(what in note for note in reported(run).notes) == 1


@pytest.mark.parametrize("name", ["figures", "events"])
def test_a_file_of_zero_bytes_is_named_among_those_left_out(tmp_path: Path, name: str) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    path = run.folders[0] / f"{name}.jsonl"
    damage(path, "zero bytes")
    notes = reported(run).notes
    assert sum(f"{path} is left out: it holds zero bytes alone" in note for note in notes) == 1


@pytest.mark.parametrize("name", ["figures", "events"])
def test_zero_bytes_at_the_end_of_a_file_are_told(tmp_path: Path, name: str) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    path = run.folders[0] / f"{name}.jsonl"
    assert not any("zero bytes" in note for note in reported(run).notes)
    path.write_bytes(path.read_bytes()[:-40] + bytes(4096))
    report = reported(run)
    assert sum(f"{path}: zero bytes at its end are left out" in note for note in report.notes) == 1
    assert report.is_about


def test_zero_bytes_in_all_files_of_a_launcher_are_told_once(tmp_path: Path) -> None:
    runs = invent_runs(tmp_path, 2)
    for name in ("events", "figures"):
        damage(runs[1].folders[0] / f"{name}.jsonl", "zero bytes")
    shutil.rmtree(runs[1].folders[0] / "incidents")
    notes = reported(*runs).notes
    assert sum("zero bytes" in note for note in notes) == 1
