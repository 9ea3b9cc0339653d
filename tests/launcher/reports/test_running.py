"""Whether a run still goes on is told by its run folder's lock, as ft_top tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.live.live_run import LiveRun
from launcher.reports.build import make_report
from launcher.reports.model import Report
from tests.launcher.reports.invented_runs import EPOCH, Failure, InventedRun, invent_run

MakeRun = Callable[..., Any]


def goes_on(run: Any) -> tuple[bool, bool]:
    """Return what a report says of that, and what ft_top does."""
    live = LiveRun(str(run.path))
    look = live.look()
    live.close()
    return make_report([str(run.path)]).is_running, look.goes_on


def changed(run: Any, **facts: Any) -> None:
    """Change facts of all events."""
    path = Path(run.log.path)
    lines = [json.loads(line) | facts for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("facts", [{}, {"launcher": 1 << 30}])
def test_a_run_goes_on_as_long_as_its_run_folder_is_held(make_run: MakeRun, facts: dict[str, Any]) -> None:
    """Even where its process has another number here, as in a container."""
    run = make_run()
    run.begin()
    run.start([0])
    changed(run, **facts)
    assert goes_on(run) == (True, True)
    run.folder.remove()
    assert goes_on(run) == (False, False)


def test_a_run_whose_launcher_was_killed_and_whose_number_another_process_has_is_over(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    path = run.folder.path
    run.folder.remove()
    Path(path).mkdir(mode=0o700)
    Path(path, "lock").touch()
    assert goes_on(run) == (False, False)


def test_a_run_goes_on_where_its_run_folder_has_moved_to(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    (tmp_path / "other").mkdir(mode=0o700)
    run.folder.move([str(tmp_path / "other")])
    run.write("run_folder_moved", former="x", run_folder=run.folder.path, why="full")
    assert goes_on(run) == (True, True)


def test_of_another_machine_the_age_of_the_last_line_tells(make_run: MakeRun) -> None:
    run = make_run()
    run.begin()
    run.start([0])
    changed(run, boot="another")
    run.folder.remove()
    assert make_report([str(run.path)]).is_running


def as_it_was(run: InventedRun, at: float, monkeypatch: pytest.MonkeyPatch) -> Report:
    """Return the report on an invented run at a moment, in seconds since its begin, when it went on."""
    for path in (run.folders[0] / "events.jsonl", run.folders[0] / "figures.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        until_ns = json.loads(lines[0])["process_began_ns"] + int(at * 1e9)
        path.write_text("".join(line for line in lines if json.loads(line)["t_ns"] <= until_ns))
    monkeypatch.setattr("launcher.reports.launches.time.time", lambda: EPOCH + at)
    report = make_report([str(run.folders[0])])
    assert report.is_running
    return report


def rows_about(report: Report) -> set[str]:
    return {entry.category.key for entry in report.ledger.entries if entry.is_about}


@pytest.mark.parametrize(
    ("after_seen", "about"),
    [
        (0.5, {"productive", "checkpointing", "detection", "stop"}),  # its last figures are to come
        (1.8, {"productive", "checkpointing"}),  # its ranks have ended, and the next generation has not been started
        (4.0, set()),  # it has told from which save it goes on, and is in its setup
    ],
)
def test_from_a_failure_until_the_next_step_what_it_lost_and_cost_is_about_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_seen: float, about: set[str]
) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    assert run.lives[0].seen is not None
    report = as_it_was(run, run.lives[0].seen + after_seen, monkeypatch)
    assert rows_about(report) == about
    assert report.ledger.is_count_about == ("productive" in about)
    assert [incident.is_cost_about for incident in report.incidents] == [True]
    notes = [note for note in report.notes if "is still running" not in note]
    assert ["no step has begun since" in note for note in notes] == [True]


def test_once_the_next_generation_has_begun_a_step_a_failure_has_cost_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30, lines=1000)
    assert run.lives[1].first_step is not None
    report = as_it_was(run, run.lives[1].first_step + 3.0, monkeypatch)
    assert not rows_about(report)
    assert [incident.is_cost_about for incident in report.incidents] == [False]


def test_what_was_lost_and_is_not_done_again_yet_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 17 steps, those since the save of 10 were lost, and one of them is done again."""
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30, lines=1000)
    assert run.lives[1].first_step is not None
    report = as_it_was(run, run.lives[1].first_step + 3.0, monkeypatch)
    assert (report.ledger.steps, report.ledger.repeated) == (11, 1)
    assert report.ledger.step_seconds == pytest.approx(2.0, rel=0.2)


def test_while_a_first_generation_goes_on_nothing_is_said_of_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save is noted before its section is closed: what that took is in the next line, and was over before a step."""
    run = invent_run(tmp_path, failures=0, steps=30, lines=1000)
    figures = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in figures.read_text().splitlines()]
    for line in lines:
        for rank in line["ranks"].values():
            for save in rank.get("saves", ()):
                save["checkpointing_ns"] -= 5_000
    figures.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first_save = run.lives[0].saves[0][1]
    for after in (5.0, 2.5, 1.6):  # the folder is cut each time
        report = as_it_was(run, first_save + after, monkeypatch)
        assert not rows_about(report)
        assert not [note for note in report.notes if "is still running" not in note]
