"""Reports of several runs of one training, of which one cannot be read or was not named: nothing is shown as exact."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.folders import NoRunError, run_folders
from launcher.reports.model import Report
from launcher.reports.page import page
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import EPOCH, Failure, InventedRun, invent_run, invent_runs

COUNTS = re.compile(r"(\S+) ranks on (\S+) nodes?, (.*), (\S+) restarts?$", re.MULTILINE)
STEPS = re.compile(r"; (\S+) steps kept, (\S+) done again")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garbled(path: Path) -> None:
    path.write_text("no line\n" * 3)


def of_another_release(path: Path) -> None:
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))


def damage(run: InventedRun, how: Callable[[Path], None]) -> None:
    for path in run.folders[0].glob("*.jsonl"):
        how(path)


def reported(*runs: InventedRun) -> Report:
    report = make_report([str(folder) for run in runs for folder in run.folders])
    assert sum(entry.seconds for entry in report.ledger.entries) == pytest.approx(report.ledger.wall_seconds)
    return report


def text(report: Report) -> str:
    return "\n".join(text_of(report, 1000))


def assert_nothing_is_exact(report: Report) -> None:
    assert report.lacks_runs
    assert all(entry.is_about for entry in report.ledger.entries)
    shown = text(report)
    for pattern in (COUNTS, STEPS):
        found = pattern.search(shown)
        assert found is not None
        assert all(each.startswith("~") for each in found.groups() if each[-1].isdigit()), found[0]
    assert re.search(r"^INCIDENTS ~\d", shown, re.MULTILINE)
    assert all(f"cost {cost}".startswith("cost ~") for cost in re.findall(r"cost (\S+)", shown))
    assert json.loads(as_json(report))["lacks_runs"] is True


def assert_all_is_exact(report: Report) -> None:
    assert not report.lacks_runs
    assert "~" not in text(report)
    assert not report.notes


def test_a_whole_chain_is_exact(tmp_path: Path) -> None:
    report = reported(*invent_runs(tmp_path, 3))
    assert_all_is_exact(report)
    assert [run.is_unread for run in report.runs] == [False, False, False]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (cut, "events.jsonl ends within its first line"),
        (emptied, "events.jsonl is empty and figures.jsonl is empty"),
        (zeroed, "events.jsonl holds zero bytes alone"),
        (garbled, "events.jsonl holds no line that can be read"),
        (of_another_release, "events.jsonl was written by another release"),
    ],
)
def test_of_a_last_run_that_cannot_be_read_the_end_is_not_known(
    tmp_path: Path, how: Callable[[Path], None], why: str
) -> None:
    runs = invent_runs(tmp_path, 3)
    damage(runs[2], how)
    report = reported(*runs)
    assert_nothing_is_exact(report)
    assert report.title == "run-0 and 2 more"
    assert [(run.name, run.outcome, run.is_unread) for run in report.runs] == [
        *(("run-0", "failed", False), ("run-1", "failed", False), ("run-2", None, True))
    ]
    assert (report.runs[2].began, report.runs[2].seconds, report.runs[2].world_size) == (None, None, None)
    shown = text(report)
    found = COUNTS.search(shown)
    assert found is not None
    assert found[3] == "how it ended is not known"
    assert "  run-2: nothing of it can be read, how it ended is not known" in shown
    note = next(note for note in report.notes if note.startswith(f"{runs[2].folders[0]}: nothing of the run in it"))
    assert why in note
    assert "nor how the training ended" in note
    shown = page(report)
    assert '<h1>run-0 and 2 more <span class="badge close">how it ended is not known</span>' in shown
    assert '<th scope="row">run-2</th><td>unknown</td><td class="number">unknown</td><td>unknown</td>' in shown
    shutil.rmtree(runs[2].folders[0] / "incidents")
    with pytest.raises(NoRunError, match=r"no events can be read|left out"):
        make_report([str(runs[2].folders[0])])


@pytest.mark.parametrize("is_numbered", [True, False])
def test_a_run_in_the_middle_that_cannot_be_read_is_in_its_place(tmp_path: Path, is_numbered: bool) -> None:
    runs = invent_runs(tmp_path, 3)
    damage(runs[1], emptied)
    folders = [run.folders[0] for run in runs]
    if not is_numbered:  # its incidents tell when it ran
        folders[1] = folders[1].rename(tmp_path / "retried")
    report = make_report([str(folder) for folder in folders])
    assert_nothing_is_exact(report)
    assert [run.is_unread for run in report.runs] == [False, True, False]
    assert report.runs[-1].outcome == "succeeded"
    assert ", succeeded (exit code 0), " in text(report)
    assert {generation.run for generation in report.generations} == {0, 2}
    assert {incident.run for incident in report.incidents} == {0, 2}
    assert report.nodes[0].runs == (0, 2)
    keys = {entry.category.key for entry in report.ledger.entries}
    assert "between_runs" not in keys
    assert "unknown" in keys
    assert f'<th scope="row">{folders[1].name}</th><td>unknown</td>' in page(report)


def test_a_first_run_that_cannot_be_read_comes_first(tmp_path: Path) -> None:
    runs = invent_runs(tmp_path, 3)
    damage(runs[0], zeroed)
    report = reported(*runs)
    assert_nothing_is_exact(report)
    assert [run.is_unread for run in report.runs] == [True, False, False]
    assert {generation.run for generation in report.generations} == {1, 2}
    assert "between_runs" in {entry.category.key for entry in report.ledger.entries}


@pytest.mark.parametrize("changed", [315_532_800.0, EPOCH, EPOCH + 1e6], ids=["1980", "its begin", "later"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_where_nothing_tells_when_a_run_was_the_end_is_not_known(tmp_path: Path, number: int, changed: float) -> None:
    """Times of files are no proof: copies and archives have their own."""
    runs = invent_runs(tmp_path, 3)
    folders = [run.folders[0].rename(tmp_path / name) for run, name in zip(runs, ("one", "two", "three"), strict=True)]
    shutil.rmtree(folders[number] / "incidents", ignore_errors=True)
    for path in folders[number].glob("*.jsonl"):
        cut(path)
        os.utime(path, (changed, changed))
    os.utime(folders[number], (changed, changed))

    report = make_report([str(folder) for folder in folders])

    assert [run.is_unread for run in report.runs] == [False, False, True]
    assert "how it ended is not known" in text(report).splitlines()[1]
    assert any("nothing tells whether it was the last run" in note for note in report.notes)
    assert report.lacks_runs
    # Between any two of the others it may have run, too.
    assert not {"between_runs", "absent"} & {entry.category.key for entry in report.ledger.entries}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_run_is_in_its_place_by_the_time_in_a_line_that_is_cut(tmp_path: Path, number: int) -> None:
    runs = invent_runs(tmp_path, 3)
    folders = [run.folders[0].rename(tmp_path / name) for run, name in zip(runs, ("one", "two", "three"), strict=True)]
    shutil.rmtree(folders[number] / "incidents", ignore_errors=True)
    for path in folders[number].glob("*.jsonl"):
        path.write_bytes(path.read_bytes()[:120])
        os.utime(path, (1.0, 1.0))

    report = make_report([str(folder) for folder in folders])

    assert [run.is_unread for run in report.runs] == [each == number for each in range(3)]
    assert ("how it ended is not known" in text(report).splitlines()[1]) == (number == 2)
    assert not any("nothing tells whether" in note for note in report.notes)


@pytest.mark.parametrize("time", ["2026-99-21T00:00:00+00:00", "2026-01-01T00:00:00", "now"])
def test_a_time_that_is_none_tells_of_no_run(tmp_path: Path, time: str) -> None:
    runs = invent_runs(tmp_path, 3)
    folders = [run.folders[0].rename(tmp_path / name) for run, name in zip(runs, ("one", "two", "three"), strict=True)]
    shutil.rmtree(folders[0] / "incidents", ignore_errors=True)
    for path in folders[0].glob("*.jsonl"):
        path.write_text(f'{{"event": "began", "time": "{time}", "t_n')
    report = make_report([str(folder) for folder in folders])
    assert [run.is_unread for run in report.runs] == [False, False, True]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_that_was_not_named_is_missed_by_its_steps(tmp_path: Path, is_there: bool) -> None:
    runs = invent_runs(tmp_path, 3)
    if not is_there:
        runs[1].folders[0].rename(tmp_path / "elsewhere")
    report = reported(runs[0], runs[2])
    assert_nothing_is_exact(report)
    (note, *_) = report.notes
    assert note.startswith("run-2 began with iteration 60, and those before it are known to have come to 33: a run")
    assert ("(beside them, and not named: run-1)" in note) == is_there
    assert [run.outcome for run in report.runs] == ["failed", "succeeded"]
    assert "between_runs" not in {entry.category.key for entry in report.ledger.entries}


def chained(parent: Path, resumed: Sequence[int | None], failed: Sequence[int]) -> list[InventedRun]:
    """Return runs ``t-0``, ``t-1`` ... that each begin with a save and fail in an iteration; the last one ends."""
    runs: list[InventedRun] = []
    epoch, boot = EPOCH, 5_000.0
    for number, (first, end) in enumerate(zip(resumed, failed, strict=True)):
        is_last = number == len(failed) - 1
        runs.append(
            invent_run(
                parent,
                f"t-{number}",
                failures=[] if is_last else [Failure(end, 0)],
                steps=end if is_last else end + 1,
                resumed_from=first,
                ends_with="succeeded" if is_last else "failed",
                goes_on=not is_last,
                began_epoch=epoch,
                boot_seconds=boot,
            )
        )
        epoch, boot = epoch + runs[-1].seconds + 30.0, boot + runs[-1].seconds + 30.0
    return runs


def test_a_run_that_lies_between_those_that_were_named_may_be_missing(tmp_path: Path) -> None:
    runs = chained(tmp_path, [None, 10, 10], [17, 18, 25])
    assert_all_is_exact(reported(*runs))
    report = reported(runs[0], runs[2])
    assert_nothing_is_exact(report)
    assert "between t-0 and t-2 there are runs that were not named, and may be of this training: t-1" in report.notes[0]
    runs[1].folders[0].rename(tmp_path / "other-1")
    assert_all_is_exact(reported(runs[0], runs[2]))  # nothing tells of it


def test_a_state_that_no_run_has_noted_as_a_save_is_that_of_another(tmp_path: Path) -> None:
    runs = chained(tmp_path, [None, 15], [17, 25])
    report = reported(*runs)
    assert_nothing_is_exact(report)
    assert report.notes[0].startswith("t-1 went on from the state of iteration 15, which none before it has noted")
    assert_all_is_exact(reported(*chained(tmp_path / "noted", [None, 10], [17, 25])))


def kill(run: InventedRun, after_seconds: float = math.inf) -> None:
    """Leave out its last lines, as of a machine that has failed: those after so many seconds, and how it ended."""
    for name in ("events.jsonl", "figures.jsonl"):
        path = run.folders[0] / name
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        until_ns = (5_000 + after_seconds) * 1e9
        told = [line for line in lines if line["event"] not in ("stopped", "ended", "given_up")]
        path.write_text("".join(json.dumps(line) + "\n" for line in told if line["t_ns"] < until_ns))


def test_what_a_killed_launcher_may_have_done_after_its_last_line_is_no_gap(tmp_path: Path) -> None:
    for begin, is_missing in ((21, False), (60, True)):
        runs = chained(tmp_path / str(begin), [None, begin], [19, begin + 5])
        kill(runs[0], (runs[0].lives[0].seen or 0.0) - 0.5)
        report = reported(*runs)
        assert report.lacks_runs == is_missing
        assert report.ledger.is_count_about
        told = next(note for note in report.notes if note.startswith(f"t-1 began with iteration {begin}, and those"))
        assert ("; t-0 may have gone further than its lines tell: what lies between" in told) != is_missing


def test_a_run_that_may_be_missing_after_one_that_was_killed_is_said_to_be_possible(tmp_path: Path) -> None:
    runs = chained(tmp_path, [None, 15, 21], [19, 24, 30])
    kill(runs[0], (runs[0].lives[0].seen or 0.0) - 0.5)
    runs[1].folders[0].rename(tmp_path / "elsewhere")
    report = reported(runs[0], runs[2])
    assert not report.lacks_runs
    assert re.match(r"t-2 began with iteration \d+, and .* to \d+; t-0 may have gone further than", report.notes[0])
    between = next(entry for entry in report.ledger.entries if entry.category.key == "between_runs")
    assert between.is_about


def test_of_a_state_that_a_killed_launcher_may_have_saved_the_report_says_so(tmp_path: Path) -> None:
    runs = chained(tmp_path, [None, 15], [17, 25])
    kill(runs[0])
    report = reported(*runs)
    assert not report.lacks_runs
    (note,) = [note for note in report.notes if "may have gone further" in note]
    assert note.startswith("t-1 went on from the state of iteration 15, which none before it has noted as a save; t-0")
    whole = chained(tmp_path / "noted", [None, 10], [17, 25])
    kill(whole[0])
    assert not any("may have gone further" in note for note in reported(*whole).notes)


def test_a_launcher_of_a_known_folder_that_cannot_be_read_is_one_more_run(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    for stem in ("events", "figures"):
        (run.folders[0] / f"{stem}-node0-422.jsonl").touch()
    report = reported(run)
    assert_nothing_is_exact(report)
    assert [each.is_unread for each in report.runs] == [False, True]
    assert "nothing of one of the launchers in it can be read (events-node0-422.jsonl is empty and" in report.notes[0]
    (run.folders[0] / "figures-node0-422.jsonl").unlink()
    (run.folders[0] / "events-node0-422.jsonl").unlink()
    assert not reported(run).lacks_runs


@pytest.mark.parametrize("own_folders", [False, True])
def test_a_node_that_cannot_be_read_is_no_run(tmp_path: Path, own_folders: bool) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 1)], steps=30, own_folders=own_folders)
    folders = [*run.folders]
    if own_folders:  # of one name, as with an --rdzv-id
        for number, folder in enumerate(folders):
            (tmp_path / f"n{number}").mkdir()
            folders[number] = folder.rename(tmp_path / f"n{number}" / "digits")
    for path in folders[1].glob("*.jsonl") if own_folders else folders[0].glob("*node1*.jsonl"):
        emptied(path)
    report = make_report([str(folder) for folder in folders])
    assert f"{folders[-1]}: nothing of one of the nodes can be read (" in report.notes[0]
    assert [each.is_unread for each in report.runs] == [False]
    assert (report.runs[0].outcome, report.is_about, report.ledger.is_count_about) == ("succeeded", True, True)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("how", [emptied, zeroed, Path.unlink])
def test_a_run_whose_events_alone_are_missing_is_no_other_job_while_its_last_line_is_young(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, how: Callable[[Path], None]
) -> None:
    runs = invent_runs(tmp_path, 3)
    how(runs[number].folders[0] / "events.jsonl")
    late = reported(*runs)
    monkeypatch.setattr("launcher.reports.launches.time.time", lambda: runs[2].began_epoch + runs[2].seconds)
    monkeypatch.setattr("launcher.reports.launches._STILL_WRITES_SECONDS", 1e6)

    early = reported(*runs)

    assert [run.is_running for run in early.runs] == [False] * 3
    assert [run.may_run for run in early.runs] == [False, False, number == 2]
    assert [run.began for run in early.runs] == [run.began for run in late.runs]
    assert "still running" not in text(early) + page(early)
    assert ("not known whether it still runs" in text(early)) == (number == 2)
    if number < 2:  # the next one tells that it is over
        assert (text(early), early.notes) == (text(late), late.notes)


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_of_which_incidents_alone_are_left_is_noted_beside_others(tmp_path: Path, number: int) -> None:
    run = invent_run(tmp_path, nodes=2, failures=[Failure(17, 1)], steps=30, own_folders=True)
    folder = run.folders[number].rename(tmp_path / "of-a-node" if number else run.folders[number])
    for path in folder.glob("*.jsonl"):
        path.unlink()
    folders = run_folders([str(folder), str(run.folders[1 - number])])

    report = make_report(folders)

    assert any(f"{folder}: nothing of" in note and "neither events.jsonl nor" in note for note in report.notes)
    assert report.is_about
    if number:  # the failure was on that node
        assert run_folders([str(folder)]) == [str(folder)]
        assert [each.is_of_incidents for each in make_report([str(folder)]).runs] == [True]
        shutil.rmtree(folder / "incidents")
    with pytest.raises(NoRunError, match="holds no run"):
        run_folders([str(folder)])
    with pytest.raises(NoRunError, match="no events can be read"):
        make_report([str(folder)])
    (tmp_path / "other" / "pictures").mkdir(parents=True)
    with pytest.raises(NoRunError, match="holds no run"):  # nothing tells that it is the log folder of a run
        run_folders([str(tmp_path / "other"), str(run.folders[1 - number])])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_empty_folder_beside_others_is_noted(tmp_path: Path, number: int) -> None:
    runs = invent_runs(tmp_path, 3)
    (empty,) = runs[number].folders
    shutil.rmtree(empty)
    empty.mkdir()

    report = make_report(run_folders([str(folder) for run in runs for folder in run.folders]))

    assert any(note.startswith(f"{empty}: nothing of the run in it can be read") for note in report.notes)
    assert [run.is_unread for run in report.runs] == [each == number for each in range(3)]
    with pytest.raises(NoRunError, match="holds no run"):
        run_folders([str(empty)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoRunError, match="no events can be read"):
        make_report(run_folders([str(empty), str(tmp_path / "empty")]))


def test_a_folder_of_the_same_name_that_cannot_be_read_is_one_of_the_nodes(tmp_path: Path) -> None:
    """Also where the lines are lost that tell on how many nodes the others ran."""
    run = invent_run(tmp_path, ranks=3, nodes=3, failures=[Failure(3, 1)], steps=8, own_folders=True)
    folders = [tmp_path / f"node{number}" / "run" for number in range(3)]
    for old, new in zip(run.folders, folders, strict=True):
        new.parent.mkdir()
        old.rename(new)
        events = new / "events.jsonl"
        events.write_text(re.sub(r', "nodes": \d', "", events.read_text()))
    damage(run._replace(folders=(folders[0],)), cut)

    report = make_report(list(map(str, folders)))
    assert [each.is_unread for each in report.runs] == [False]
    assert report.runs[0].is_about
    assert all(entry.is_about for entry in report.ledger.entries)
    assert any("nothing of one of the nodes can be read" in note for note in report.notes)
