"""Reports of runs whose machine lost power: files end early, hold zero bytes, are empty, or are missing."""

from __future__ import annotations

import json
import shutil
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.evidence import read_evidence
from launcher.reports.folders import NoRunError, run_folders
from launcher.reports.formats import duration
from launcher.reports.from_incidents import launches_of
from launcher.reports.model import Report
from launcher.reports.page import page
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import (
    Failure,
    InventedRun,
    invent_failing_nodes,
    invent_run,
    invent_runs,
)

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


# ---- incidents alone -------------------------------------------------------------------------------------

FAILURES = (Failure(3, 1), Failure(8, 0, "hang", 31.0), Failure(12, 1))


def leave_incidents(run: InventedRun, how: str = "missing") -> None:
    for folder in run.folders:
        for path in folder.glob("*.jsonl"):
            damage(path, how)


def told_of(report: Report) -> list[tuple[object, ...]]:
    """Return what incidents tell of themselves; when they were seen, and what they cost, is told by others."""
    return [
        (i.generation, i.kind, i.why, i.culprits, i.victims, i.stacks, i.machine, i.action, i.report, i.wall_time)
        for i in report.incidents
    ]


@pytest.mark.parametrize("how", FIGURES)
def test_of_whole_incidents_alone_a_report_is_made_and_nothing_is_invented(tmp_path: Path, how: str) -> None:
    run = invent_run(tmp_path, failures=FAILURES, steps=16, save_every=5)
    truth = reported(run)
    leave_incidents(run, how)
    report = make_report(run_folders([str(run.folders[0])]))
    assert told_of(report) == told_of(truth)
    since = truth.incidents[0].at
    assert [i.at for i in report.incidents] == pytest.approx([i.at - since for i in truth.incidents], abs=1e-3)
    assert [(i.cost_seconds, i.repeated, i.late_seconds) for i in report.incidents] == [
        (None, None, truth.incidents[number].late_seconds) for number in range(3)
    ]
    assert [(entry.category.key, entry.is_about) for entry in report.ledger.entries] == [("unknown", True)]
    assert (report.recommendations, report.limits, report.near_misses) == ((), (), ())
    assert (report.ledger.steps, report.ledger.repeated) == (None, None)
    (told,) = report.runs
    assert (told.is_of_incidents, told.is_about, told.outcome, told.ended) == (True, True, None, None)
    (node,) = report.nodes
    assert node.name == truth.nodes[0].name
    text = said(report)
    assert "~2 ranks on ~1 node, no end was written, ~2 restarts" in text
    assert f"at least ~{duration(report.seconds)}; steps kept and done again: not known" in text
    assert f"<dd>at least ~{duration(report.seconds)}</dd>" in page(report)
    (note,) = [note for note in report.notes if "nothing of events and figures can be read" in note]
    assert f"from {run.folders[0] / 'incidents'} alone" in note
    assert not any(word in note for note in report.notes for word in ("productive", "detection", "the launcher of"))


def test_of_a_single_incident_alone_no_length_is_told(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    leave_incidents(run)
    report = reported(run)
    assert len(report.incidents) == 1
    assert report.ledger.entries == ()
    assert ", its length is not known" in said(report)
    assert "<dd>its length is not known</dd>" in page(report)
    assert "~0" not in "".join(text_of(report)[2])


def test_whether_a_run_of_recent_incidents_alone_goes_on_is_not_known(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8, began_epoch=time.time() - 30.0)
    leave_incidents(run)
    assert "not known whether it still runs" in said(reported(run))


@pytest.mark.parametrize("own_folders", [False, True])
def test_incidents_alone_of_two_nodes_are_of_one_job(tmp_path: Path, own_folders: bool) -> None:
    run = invent_failing_nodes(tmp_path, own_folders=own_folders)
    truth = reported(run)
    leave_incidents(run)
    folders = []
    for number, folder in enumerate(run.folders):  # log folders of one run have one name
        folders.append(tmp_path / f"node-{number}" / "run")
        folders[-1].parent.mkdir()
        folder.rename(folders[-1])
    report = make_report([str(folder) for folder in folders])
    assert [(i.generation, i.kind, [c.rank for c in i.culprits]) for i in report.incidents] == [
        (i.generation, i.kind, [c.rank for c in i.culprits]) for i in truth.incidents
    ]
    assert [c.node for i in report.incidents for c in i.culprits] == ["node0", "node1", "node1"]
    (told,) = report.runs
    assert (told.nodes, told.nodes_lost, told.outcome) == (2, 0, None)
    assert {entry.category.key for entry in report.ledger.entries} == {"unknown"}


def change(folder: Path, **fields: object) -> None:
    path = folder / "incident.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_incidents_alone_of_two_nodes_in_one_generation_are_of_one_run(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    leave_incidents(run)
    incidents = run.folders[0] / "incidents"
    shutil.copytree(incidents / "0001", incidents / "0002")
    change(incidents / "0002", node="node9")
    report = reported(run)
    assert [each.nodes for each in report.runs] == [2]
    one, other = launches_of(read_evidence([str(run.folders[0])], []).incidents)
    assert one.boot != other.boot, "clocks of two machines, which were started at the same time"


def test_two_incidents_alone_of_one_generation_of_a_node_are_of_two_runs(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    leave_incidents(run)
    incidents = run.folders[0] / "incidents"
    shutil.copytree(incidents / "0001", incidents / "0002")
    told = json.loads((incidents / "0001" / "incident.json").read_text())
    later = datetime.strptime(told["wall_time"], "%Y-%m-%dT%H:%M:%S%z") + timedelta(seconds=100)
    change(
        incidents / "0002",
        seen_ns=told["seen_ns"] + 100_000_000_000,
        wall_time=later.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    assert [each.nodes for each in reported(run).runs] == [1, 1]


def test_of_a_verdict_that_was_taken_back_alone_no_report_is_made(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    leave_incidents(run)
    change(run.folders[0] / "incidents" / "0001", kind="near_miss")
    with pytest.raises(NoRunError):
        reported(run)


def test_incidents_alone_of_a_node_of_a_known_run_are_no_run(tmp_path: Path) -> None:
    run = invent_failing_nodes(tmp_path, own_folders=True)
    folders = [tmp_path / f"node-{number}" / "run" for number in range(2)]
    for folder, other in zip(run.folders, folders, strict=True):
        other.parent.mkdir()
        folder.rename(other)
    for path in folders[1].glob("*.jsonl"):
        damage(path, "empty")
    report = make_report([str(folder) for folder in folders])
    assert [each.is_of_incidents for each in report.runs] == [False]
    assert [incident.generation for incident in report.incidents] == [0, 1, 2]
    assert any("nothing of one of the nodes can be read" in note for note in report.notes)


def test_incidents_alone_of_two_folders_with_other_names_invent_no_absence(tmp_path: Path) -> None:
    run = invent_failing_nodes(tmp_path, own_folders=True)
    leave_incidents(run)
    assert {entry.category.key for entry in reported(run).ledger.entries} == {"unknown"}


def test_two_runs_in_one_folder_are_told_apart_by_their_generations(tmp_path: Path) -> None:
    first, second = invent_runs(tmp_path, 2)
    leave_incidents(first)
    for number in (1, 2):
        (second.folders[0] / "incidents" / f"{number:04d}").rename(first.folders[0] / "incidents" / f"{number + 2:04d}")
    report = reported(first)
    assert [(i.run, i.generation) for i in report.incidents] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [run.is_of_incidents for run in report.runs] == [True, True]


def test_incidents_alone_beside_runs_that_can_be_read_are_noted(tmp_path: Path) -> None:
    runs = invent_runs(tmp_path, 3)
    leave_incidents(runs[1], "zero bytes")
    report = reported(*runs)
    assert [run.is_of_incidents for run in report.runs] == [False] * 3
    noted = [note for note in report.notes if "is not listed" in note]
    assert [str(runs[1].folders[0] / "incidents" / f"000{n}") in note for n, note in enumerate(noted, 1)] == [True] * 2
    assert len(reported(runs[1]).incidents) == 2


def test_a_folder_of_damaged_incidents_alone_holds_no_run(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    leave_incidents(run)
    damage(run.folders[0] / "incidents" / "0001" / "incident.json", "zero bytes")
    with pytest.raises(NoRunError, match="no events can be read"):
        reported(run)


def test_incidents_beside_files_of_another_release_are_refused_with_these(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    for path in run.folders[0].glob("*.jsonl"):
        path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(NoRunError, match="left out"):
        reported(run)
