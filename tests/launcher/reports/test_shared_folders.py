"""Reports of launchers that have left their files in one folder, some of which are damaged or missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from launcher.reports.build import make_report
from launcher.reports.evidence import Evidence
from launcher.reports.launches import read_launches
from launcher.reports.model import Report
from launcher.reports.named_nodes import with_nodes
from launcher.reports.terminal import lines as text_of
from launcher.reports.writers import UNKNOWN_NODE
from tests.launcher.reports.invented_runs import (
    EPOCH,
    Failure,
    in_one_folder,
    invent_failing_nodes,
    invent_run,
    invent_runs,
)

NAMES = ("", "-node0-100", "-node0-100-2", "-node0-100-3")
EVENTS = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "zero bytes": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The log folder of four runs, the last of which has succeeded."""
    return in_one_folder(invent_runs(tmp_path, 4, lines=40))


def reported(*folders: Path) -> Report:
    report = make_report([str(folder) for folder in folders])
    together = report.ledger.wall_seconds
    assert sum(entry.seconds for entry in report.ledger.entries) == pytest.approx(together, abs=1e-3)
    return report


def lose_first_line(path: Path, how: str = "zero bytes") -> None:
    first, *others = path.read_bytes().splitlines(keepends=True)
    lost = bytes(len(first) - 1) + b"\n" if how == "zero bytes" else first[len(first) // 2 :]
    path.write_bytes(b"".join([lost, *others]))


def assert_what_is_exact_is_true(report: Report, truth: Report) -> None:
    assert report.is_end_about
    expected = {entry.category.key: entry.seconds for entry in truth.ledger.entries}
    for entry in report.ledger.entries:
        assert entry.is_about or entry.seconds == pytest.approx(expected[entry.category.key], abs=0.1)
    if not report.is_length_about:
        assert report.seconds == pytest.approx(truth.seconds, abs=0.1)
    assert report.ledger.is_count_about
    assert not any(limit.is_about is False for limit in report.limits if limit.room is not None)


@pytest.mark.parametrize("events", EVENTS)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("figures", ["zero bytes", "cut"])
def test_a_run_whose_events_and_first_figures_are_lost_is_told_from_the_figures_that_are_left(
    folder: Path, number: int, events: str, figures: str
) -> None:
    truth = reported(folder)
    assert [(run.outcome, run.is_about) for run in truth.runs] == [("failed", False)] * 3 + [("succeeded", False)]
    EVENTS[events](folder / f"events{NAMES[number]}.jsonl")
    lose_first_line(folder / f"figures{NAMES[number]}.jsonl", figures)

    report = reported(folder)

    assert_what_is_exact_is_true(report, truth)
    told = [run.outcome for run in truth.runs]
    told[number] = None
    assert [run.outcome for run in report.runs] == told
    assert report.runs[number].is_about
    assert report.is_length_about == (number in (0, 3))
    assert len(report.incidents) == len(truth.incidents)
    assert [node.name for node in report.nodes] == ["node0"]
    assert not any(entry.category.key == "absent" for entry in report.ledger.entries)
    assert sum("so it is not known whether and how it has ended" in note for note in report.notes) == 1
    assert not any("is left out: no launcher" in note or "is not listed" in note for note in report.notes)


def test_figures_without_their_first_line_are_of_no_further_launcher_where_one_of_that_name_ran_then(
    folder: Path,
) -> None:
    lose_first_line(folder / f"figures{NAMES[1]}.jsonl")
    report = reported(folder)
    assert [run.outcome for run in report.runs] == ["failed"] * 3 + ["succeeded"]
    assert any("is left out: no launcher" in note for note in report.notes)


def test_figures_without_their_first_line_may_be_of_a_launcher_without_figures_that_ran_then(folder: Path) -> None:
    (folder / "figures.jsonl").rename(folder / "figures-b-7.jsonl")
    lose_first_line(folder / "figures-b-7.jsonl")
    report = reported(folder)
    assert [run.outcome for run in report.runs] == ["failed"] * 3 + ["succeeded"]
    assert any("figures-b-7.jsonl is left out: no launcher" in note for note in report.notes)
    assert report.is_end_about


@pytest.mark.parametrize("number", range(3))
def test_the_numbers_of_files_tell_that_those_of_a_launcher_are_missing(folder: Path, number: int) -> None:
    truth = reported(folder)
    for name in ("events", "figures"):
        (folder / f"{name}{NAMES[number]}.jsonl").unlink()

    report = reported(folder)

    assert_what_is_exact_is_true(report, truth)
    assert [run.is_unread for run in report.runs] == [index == number for index in range(4)]
    assert report.runs[0].is_begin_about == (number == 0)
    assert report.is_length_about
    said = f"there is neither events{NAMES[number]}.jsonl nor figures{NAMES[number]}.jsonl"
    assert sum(said in note for note in report.notes) == 1
    assert not any("nor how the training ended" in note for note in report.notes)


@pytest.mark.parametrize("lost", ["events", "figures"])
def test_where_a_launcher_has_left_one_of_its_files_it_is_not_missing(folder: Path, lost: str) -> None:
    (folder / f"{lost}.jsonl").unlink()
    report = reported(folder)
    assert len(report.runs) == 4
    assert not any("there is neither" in note for note in report.notes)


def test_a_node_of_which_the_name_ends_with_a_number_is_not_taken_for_a_later_launcher(tmp_path: Path) -> None:
    """What looks like the third file of a launcher is the first one of a node of another name."""
    path = invent_run(tmp_path, failures=0, steps=5).folders[0]
    for name in ("events", "figures"):
        lines = (
            (path / f"{name}.jsonl")
            .read_text()
            .replace('"node0"', '"node-4"')
            .replace('"launcher": 100', '"launcher": 3')
        )
        (path / f"{name}-node-4-3.jsonl").write_text(lines)
        (path / f"{name}.jsonl").unlink()
    report = reported(path)
    missing = [note for note in report.notes if "there is neither" in note]
    assert len(missing) == 1
    assert "there is neither events.jsonl nor figures.jsonl, after which events-node-4-3.jsonl was named" in missing[0]


# ---- the names of nodes ------------------------------------------------------------------------------------


def lose_first_events_and_figures(folder: Path) -> None:
    lose_first_line(folder / "events.jsonl")
    (folder / "figures.jsonl").write_bytes(b"")


def test_the_node_of_a_culprit_is_the_one_of_other_incidents_of_its_launcher(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(3, 1), Failure(8, 0, "hang", 31.0)], steps=12)
    folder = run.folders[0]
    lose_first_events_and_figures(folder)
    (folder / "incidents" / "0002" / "incident.json").write_bytes(b"")
    report = reported(folder)
    assert [[each.node for each in incident.culprits] for incident in report.incidents] == [["node0"], ["node0"]]
    assert any("the launcher of node0: its first events" in note for note in report.notes)


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("events-node1-101.jsonl", "node1"),
        ("figures-node1-101-2.jsonl", "node1"),
        ("events-node1-b-101.jsonl", "node1-b"),
        ("events-node2-101.jsonl", UNKNOWN_NODE),  # it may be another one, or a part of a longer name
        ("events-node1-c-101.jsonl", UNKNOWN_NODE),
        ("events.jsonl", UNKNOWN_NODE),
    ],
)
def test_a_node_that_other_lines_name_is_known_by_the_name_of_a_file(tmp_path: Path, name: str, node: str) -> None:
    folder = str(invent_run(tmp_path, failures=0, steps=5).folders[0])
    (launch,) = read_launches(folder, [])
    others = [launch._replace(node=each, epoch=0.0) for each in ("node1", "node1-b", "node")]
    unnamed = launch._replace(node=UNKNOWN_NODE, file=str(Path(folder, name)))
    assert with_nodes([*others, unnamed], Evidence({}, {}, {}, {}))[-1].node == node


def test_of_a_node_without_events_and_first_figures_the_ranks_are_its_own(tmp_path: Path) -> None:
    folder = invent_failing_nodes(tmp_path, own_folders=False).folders[0]
    (folder / "events-node1-101.jsonl").unlink()
    lose_first_line(folder / "figures-node1-101.jsonl")
    report = reported(folder)
    assert [(node.name, node.ranks) for node in report.nodes] == [("node0", (0, 1)), ("node1", (2, 3))]
    assert report.is_end_about


def test_of_a_node_that_nothing_names_the_report_says_that_it_is_not_known(tmp_path: Path) -> None:
    folder = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8).folders[0]
    lose_first_events_and_figures(folder)
    for path in (folder / "incidents").iterdir():
        (path / "incident.json").write_bytes(b"")
    report = reported(folder)
    assert [each.node for incident in report.incidents for each in incident.culprits] == ["an unknown node"]
    assert any("the launcher of an unknown node: its first events" in note for note in report.notes)
    text = " ".join(" ".join(text_of(report, 1000)).split())
    assert "rank 1 on an unknown node" in text
    assert "on invented" not in text


@pytest.mark.parametrize(("apart", "node"), [(0.0, "node0"), (50.0, "an unknown node")])
def test_a_launcher_has_the_node_of_another_run_on_the_same_clock(tmp_path: Path, apart: float, node: str) -> None:
    first, second = (run.folders[0] for run in invent_runs(tmp_path, 2))
    shutil.rmtree(second / "incidents")
    lose_first_events_and_figures(second)
    path = second / "events.jsonl"
    lost, *events = path.read_text().splitlines()
    shifted = [json.loads(line) for line in events]
    for event in shifted:
        event["t_ns"] += int(apart * 1e9)
    path.write_text("\n".join([lost, *map(json.dumps, shifted)]) + "\n")
    report = reported(first, second)
    assert [each.name for each in report.nodes] == list(dict.fromkeys(["node0", node]))
    assert not any(entry.category.key == "absent" for entry in report.ledger.entries)


# ---- whether it still runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("events", ["first line", "file"])
def test_without_the_event_of_its_begin_it_is_not_known_whether_a_launcher_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: str
) -> None:
    run = invent_run(tmp_path, failures=0, steps=20, is_going_on=True)
    monkeypatch.setattr("launcher.reports.launches.time.time", lambda: EPOCH + run.seconds + 1.0)
    whole = reported(run.folders[0])
    assert (whole.is_running, whole.runs[0].may_run) == (True, False)
    path = run.folders[0] / "events.jsonl"
    if events == "file":
        path.unlink()
    else:
        lose_first_line(path)
    report = reported(run.folders[0])
    assert (report.is_running, report.runs[0].may_run) == (False, True)
    assert "not known whether it still runs" in text_of(report)[1]
    assert sum("not known whether it has ended or still runs" in note for note in report.notes) == 1


def test_a_file_of_events_that_was_made_anew_tells_whether_its_launcher_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats where the run folder is: on another machine its age tells, as that of a whole one."""
    run = invent_run(tmp_path, failures=0, steps=20, is_going_on=True)
    monkeypatch.setattr("launcher.reports.launches.time.time", lambda: EPOCH + run.seconds + 1.0)
    path = run.folders[0] / "events.jsonl"
    first, second, *others = [json.loads(line) for line in path.read_text().splitlines()]
    anew = {**first, **second, "event": "lost", "lines": 1}
    path.write_text("".join(json.dumps(event) + "\n" for event in (anew, *others)))
    assert reported(run.folders[0]).is_running
