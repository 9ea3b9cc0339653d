"""Restarts that find an older checkpoint, and later the newest again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.reports.build import make_report
from launcher.reports.model import Report
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run

SAID = "training has gone on from a checkpoint of generation(s) 0, or from one of a later generation"

BACK_AND_FORTH = [Failure(25, 1), Failure(15, 1)]
"""Saved at 10 and 20 and killed in step 25; from 10 again and killed in step 15; then from 20 to the end."""


def reported(run: InventedRun) -> Report:
    return make_report([str(folder) for folder in run.folders])


def seconds_of(report: Report, key: str) -> tuple[float, bool]:
    entry = next(entry for entry in report.ledger.entries if entry.category.key == key)
    return entry.seconds, entry.is_about


def change(run: InventedRun, how: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change lines of figures, or leave them out."""
    path = run.folders[0] / "figures.jsonl"
    lines = [how(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None))


def test_what_was_done_between_an_older_checkpoint_and_the_newest_was_lost(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=BACK_AND_FORTH, steps=50, lines=200, finds={1: 10})
    assert [life.resumed_from for life in run.lives] == [None, 10, 20]
    report = reported(run)
    ledger = report.ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (50, 10, False)
    for key in ("lost_work", "productive", "checkpointing"):
        assert seconds_of(report, key) == (pytest.approx(run.truth.seconds[key], abs=1e-3), False)
    assert not any("was not noted as a save" in note for note in report.notes)


@pytest.mark.parametrize(("finds", "repeated"), [({1: 0, 2: 20}, 20), ({1: 0}, 30)])
def test_of_two_saves_of_one_number_the_later_one_is_gone_on_from(
    tmp_path: Path, finds: dict[int, int], repeated: int
) -> None:
    """The second one begins anew and saves 10 again; then the save 20 of the first one is found, or that."""
    run = invent_run(tmp_path, failures=BACK_AND_FORTH, steps=50, lines=200, finds=finds)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated, report.ledger.is_count_about) == (50, repeated, False)
    for key in ("lost_work", "productive", "checkpointing"):
        assert seconds_of(report, key) == (pytest.approx(run.truth.seconds[key], abs=1e-3), False)


def test_an_incident_tells_how_many_of_the_iterations_that_it_has_lost_were_done_again(tmp_path: Path) -> None:
    """From 0 again to 14, which the first one's had been kept of; then from the newest."""
    run = invent_run(tmp_path, failures=BACK_AND_FORTH, steps=50, lines=200, finds={1: 0, 2: 20})
    report = reported(run)
    assert [generation.repeated for generation in report.generations] == [5, 15, 0]
    assert [incident.repeated for incident in report.incidents] == [5, 15]


@pytest.mark.parametrize("shift", [0, -1])
def test_checkpoints_that_are_loaded_by_another_number_than_saved(tmp_path: Path, shift: int) -> None:
    """Saved as 10, after ten steps, and loaded as that or as 9, the last step that was done."""
    run = invent_run(tmp_path, failures=[Failure(25, 1), Failure(37, 1), Failure(45, 1)], lines=200, ends_with="failed")

    def renumbered(line: dict[str, Any]) -> dict[str, Any]:
        for known in line["ranks"].values():
            if known.get("resumed_from") is not None:
                known["resumed_from"] += shift
        return line

    change(run, renumbered)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.is_count_about) == (40, False)
    assert any("Now it is every 10 steps." in each.text for each in report.recommendations)


def test_who_has_come_so_far_is_gone_on_from_where_no_save_was_noted(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=BACK_AND_FORTH, steps=50, lines=200, finds={1: 10}, has_saves=False)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated, report.ledger.is_count_about) == (50, 10, False)
    assert seconds_of(report, "lost_work")[1]


def test_a_later_one_that_has_come_so_far_and_noted_no_save_leaves_it_uncertain(tmp_path: Path) -> None:
    """It may have been killed just after it had saved that state anew."""
    run = invent_run(tmp_path, failures=[Failure(25, 1), Failure(22, 1)], steps=50, lines=200, finds={1: 10})
    exact = reported(run)
    assert (exact.ledger.steps, exact.ledger.repeated, exact.ledger.is_count_about) == (50, 17, False)
    assert not any(SAID in note for note in exact.notes)

    def without_the_save(line: dict[str, Any]) -> dict[str, Any]:
        for known in line["ranks"].values() if line["generation"] == 1 else ():
            known["saves"] = []
        return line

    change(run, without_the_save)
    report = reported(run)
    assert any(SAID in note for note in report.notes)
    assert report.ledger.is_count_about
    assert seconds_of(report, "productive")[1]
    first, between, _ = run.lives
    assert between.first_step is not None
    saved_at = next(at for iteration, at, _ in first.saves if iteration == 20)
    lost = first.last_sign - saved_at + between.last_sign - between.first_step
    assert seconds_of(report, "lost_work") == (pytest.approx(lost, abs=1e-3), True)


def test_a_later_one_whose_last_lines_are_missing_leaves_it_uncertain(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(25, 1), Failure(22, 1)], steps=50, lines=400, finds={1: 10})

    def cut(line: dict[str, Any]) -> dict[str, Any] | None:
        is_late = line["generation"] == 1 and any((rank["done"] or 0) >= 13 for rank in line["ranks"].values())
        return None if is_late else line

    change(run, cut)
    report = reported(run)
    assert any(SAID in note for note in report.notes)
    assert report.ledger.steps is None
    assert seconds_of(report, "productive")[1]
    assert seconds_of(report, "lost_work")[1]


def test_one_that_had_begun_behind_the_state_cannot_have_come_to_it(tmp_path: Path) -> None:
    """The second one starts where the first one has saved; what both have lost is exact."""
    run = invent_run(tmp_path, failures=[Failure(25, 1), Failure(27, 1)], steps=50, lines=200)
    report = reported(run)
    ledger = report.ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (50, 12, False)
    assert not seconds_of(report, "productive")[1]
    assert not seconds_of(report, "lost_work")[1]


@pytest.mark.parametrize(("number", "only_last"), [(30, False), (30, True), (17, False)])
def test_a_checkpoint_that_a_rank_loads_once_it_takes_steps_is_not_what_it_has_resumed_from(
    tmp_path: Path, number: int, only_last: bool
) -> None:
    """It had been killed after 20 and resumed from 10; it saves 30, loads that again, or another, and goes on."""
    run = invent_run(tmp_path, failures=[Failure(25, 1)], steps=60, lines=200, finds={1: 10})
    whole = reported(run)

    def reload(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["generation"] == 0:
            return line
        for known in line["ranks"].values():
            if 30 in [save["iteration"] for save in known.get("saves", [])]:
                known["resumed_from"] = number
        return line if line["is_last"] or not only_last else None

    change(run, reload)
    report = reported(run)
    assert [generation.resumed_from for generation in report.generations] == [None, None if only_last else 10]
    assert (report.ledger.steps, report.ledger.repeated) == (whole.ledger.steps, whole.ledger.repeated) == (60, 15)
    for key in ("lost_work", "productive"):
        assert seconds_of(report, key) == (pytest.approx(seconds_of(whole, key)[0], abs=0.2), False)


def test_a_restart_that_only_evaluates_has_nothing_to_do_again(tmp_path: Path) -> None:
    """It was killed when its training was done and saved."""
    run = invent_run(tmp_path, failures=[Failure(20, 1)], steps=30, lines=200)

    def evaluate(line: dict[str, Any]) -> dict[str, Any]:
        for known in line["ranks"].values() if line["generation"] else ():
            known |= dict.fromkeys({"first_iteration", "first_step_ns", "done", "passed"} & known.keys())
            known["iteration"] = None if known["iteration"] is None else 20
            known |= {"saves": []} if "saves" in known else {}
            known["open"].pop("step", None)
            known["sections"].pop("step", None)
        return line

    change(run, evaluate)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated, report.ledger.is_count_about) == (20, 0, False)
