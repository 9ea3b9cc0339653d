"""Checkpoints that are not numbered by the steps completed so far, and steps that have no iterations of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.reports.build import make_report
from launcher.reports.model import Report
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run

FAILURES = [Failure(27, 0), Failure(38, 1)]
SAID = "its checkpoints are not numbered by the training steps that were completed until then"


def with_figures(run: InventedRun, change: Callable[[dict[str, Any]], None]) -> InventedRun:
    """Change what each line of figures says of a rank."""
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for known in line["ranks"].values():
            change(known)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def numbered(run: InventedRun, number: Callable[[int], int]) -> InventedRun:
    """Number the checkpoints of a run, which are saved every ten steps, in another way."""

    def change(known: dict[str, Any]) -> None:
        for save in known.get("saves", []):
            save["iteration"] = number(save["iteration"])
        for key in ("resumed_from", "saved"):
            if known.get(key) is not None:
                known[key] = number(known[key])

    return with_figures(run, change)


def reported(run: InventedRun) -> Report:
    return make_report([str(folder) for folder in run.folders])


def interval(report: Report) -> str:
    return next(each.text for each in report.recommendations if each.about == "checkpoint interval")


@pytest.mark.parametrize("per_save", [1, 3])
def test_numbers_of_epochs_are_no_steps(tmp_path: Path, per_save: int) -> None:
    made = [
        invent_run(tmp_path, name, failures=FAILURES, steps=60, lines=200, ends_with=end)
        for name, end in (("well", "succeeded"), ("failed", "failed"))
    ]
    whole = [reported(run) for run in made]
    well, failed = (reported(numbered(run, lambda n: n // 10 * per_save)) for run in made)
    assert (well.ledger.steps, well.ledger.repeated) == (whole[0].ledger.steps, whole[0].ledger.repeated) == (60, 15)
    assert [entry.seconds for entry in well.ledger.entries] == [entry.seconds for entry in whole[0].ledger.entries]
    assert "Now it is every 10 steps." in interval(whole[0])
    assert "Now it is" not in interval(well)
    assert (whole[1].ledger.steps, failed.ledger.steps) == (30, None)
    assert f"since the save numbered {3 * per_save} counts as lost" in str(failed.notes)
    for report, is_told in ((whole[0], False), (whole[1], False), (well, True), (failed, True)):
        assert (SAID in str(report.notes)) is is_told


def failed_after_one_save(tmp_path: Path, number: int, done: int | None) -> InventedRun:
    """Invent a run of which no line of figures was written before its save."""

    def change(known: dict[str, Any]) -> None:
        known["saves"] = [{**save, "iteration": number, "done": done} for save in known.get("saves", [])[:1]]
        known["saved"] = number if known["saves"] else None

    run = invent_run(tmp_path, failures=[Failure(13, 0)], steps=40, lines=2, ends_with="failed")
    return with_figures(run, change)


@pytest.mark.parametrize(
    ("number", "done", "are_steps"),
    [(1, 9, False), (1, 2, False), (8, 9, False), (9, 9, True), (10, 9, True), (11, 9, False), (8, None, True)],
)
def test_one_save_that_the_steps_have_waited_for_tells_by_the_step_before_it(
    tmp_path: Path, number: int, done: int | None, are_steps: bool
) -> None:
    report = reported(failed_after_one_save(tmp_path, number, done))
    assert (SAID in str(report.notes)) is not are_steps
    assert (report.ledger.steps is None) is not are_steps


@pytest.mark.parametrize(
    ("number", "done", "steps", "is_about"), [(10, 9, 10, False), (9, 9, 10, False), (9, None, 9, True)]
)
def test_how_many_steps_a_save_of_a_failed_run_holds_is_told_by_the_step_before_it(
    tmp_path: Path, number: int, done: int | None, steps: int, is_about: bool
) -> None:
    """Numbered by the steps completed, or by the last one; nothing has gone on from it."""
    report = reported(failed_after_one_save(tmp_path, number, done))
    assert (report.ledger.steps, report.ledger.is_count_about) == (steps, is_about)
    assert ("whether it holds that step" in str(report.notes)) is is_about


def test_what_is_loaded_may_be_numbered_in_another_way_than_what_was_saved(tmp_path: Path) -> None:
    """Saves beside steps, numbered by the last one: what training went on with tells how many steps are in them."""

    def change(known: dict[str, Any]) -> None:
        for save in known.get("saves", []):
            save |= {"iteration": save["iteration"] - 1, "done": None}

    run = invent_run(tmp_path, failures=FAILURES, steps=60, lines=200, ends_with="failed")
    report = reported(with_figures(run, change))
    assert (report.ledger.steps, report.ledger.is_count_about) == (30, False)


def test_numbers_of_samples_are_no_steps(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=FAILURES[:1], steps=60, lines=200, ends_with="failed")
    report = reported(numbered(run, lambda n: n * 32))
    assert SAID in str(report.notes)
    assert report.ledger.steps is None


@pytest.mark.parametrize("waits", [True, False])
def test_numbers_that_grow_more_slowly_than_iterations_are_no_steps(tmp_path: Path, waits: bool) -> None:
    """The last one, 27, is near the iteration at which it was saved, 30; beside steps, nothing else tells."""

    def forget(known: dict[str, Any]) -> None:
        for save in known.get("saves", []):
            save["done"] = save["done"] if waits else None

    run = invent_run(tmp_path, failures=[Failure(38, 1)], steps=60, lines=200, ends_with="failed")
    report = reported(with_figures(numbered(run, lambda n: 24 + n // 10), forget))
    assert SAID in str(report.notes)
    assert report.ledger.steps is None


def test_numbers_that_are_noted_late_are_steps(tmp_path: Path) -> None:
    """A save in another thread is noted some steps after its state."""

    def later(known: dict[str, Any]) -> None:
        for save in known.get("saves", []):
            save["t_ns"] += 900_000_000

    run = with_figures(invent_run(tmp_path, failures=FAILURES, steps=60, lines=200, ends_with="failed"), later)
    report = reported(run)
    assert SAID not in str(report.notes)
    assert report.ledger.steps == 30


def test_a_checkpoint_far_below_the_first_step_is_no_number_of_a_step(tmp_path: Path) -> None:
    """Nothing was saved since, so it is all that tells."""

    def change(known: dict[str, Any]) -> None:
        known["saves"] = []
        if known.get("resumed_from"):
            known["resumed_from"] //= 10

    run = with_figures(invent_run(tmp_path, failures=FAILURES, steps=60, lines=200), change)
    assert SAID in str(reported(run).notes)


def test_a_rank_that_ends_more_steps_than_it_notes_makes_the_counts_estimates(tmp_path: Path) -> None:
    def change(known: dict[str, Any]) -> None:
        if known.get("done") is not None:
            known["passed"] = known["done"] + 1 + late

    said = []
    for late in (0, 1):
        run = with_figures(invent_run(tmp_path, f"late{late}", failures=0, steps=40, lines=200), change)
        report = reported(run)
        assert (report.ledger.steps, report.ledger.is_count_about) == (40, bool(late))
        said += [note for note in report.notes if "has ended" in note]
    assert [note.partition(":")[0] for note in said] == ["rank 0 has ended 41 steps in 40 iterations"]
