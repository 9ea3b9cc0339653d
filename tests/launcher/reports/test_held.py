"""Steps that a checkpoint holds from which training has gone on, and of which lines of figures do not tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.reports.build import make_report
from launcher.reports.model import Report
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run

SAID = "training has gone on beyond the last step"


def clip(run: InventedRun, done: int, iteration: int, ranks: Sequence[str] = ("0", "1"), **facts: Any) -> None:
    """Let ranks have come no further in the first generation, and have the next ones loaded something else."""
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for rank in ranks if line["generation"] == 0 else ():
            known = line["ranks"][rank]
            for key, most in (("done", done), ("iteration", iteration)):
                known[key] = None if known[key] is None or most < 0 else min(known[key], most)
        for known in line["ranks"].values() if line["generation"] else ():
            for key, shift in facts.items():
                if known.get(key) is not None:
                    known[key] = None if shift is None else known[key] + shift
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def reported(run: InventedRun) -> Report:
    report = make_report([str(folder) for folder in run.folders])
    assert any(SAID in note for note in report.notes) == report.ledger.is_count_about
    return report


def killed_in_the_save(folder: Path, *failures: int) -> InventedRun:
    """Write a run that fails after 20 steps, of which a checkpoint was saved."""
    return invent_run(folder, failures=[Failure(number, 0) for number in (20, *failures)], steps=60, lines=200)


def test_the_step_in_which_the_checkpoint_was_written_was_kept(tmp_path: Path) -> None:
    run = killed_in_the_save(tmp_path)
    clip(run, done=18, iteration=19)
    report = reported(run)
    assert [(each.done, each.resumed_from) for each in report.generations] == [(19, None), (59, 20)]
    assert (report.ledger.steps, report.ledger.repeated, report.ledger.is_count_about) == (60, 0, False)


def test_a_first_step_that_the_checkpoint_holds_was_kept(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(1, 0)], steps=60, save_every=1, lines=200)
    clip(run, done=-1, iteration=0)
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (60, 0, False)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_behind_the_checkpoint_makes_the_counts_estimates(tmp_path: Path, rank: str) -> None:
    run = killed_in_the_save(tmp_path)
    clip(run, done=11, iteration=12, ranks=rank)
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (60, 0, True)


def test_steps_that_no_rank_has_begun_are_not_counted(tmp_path: Path) -> None:
    """They were left out, or the checkpoint is of another training."""
    run = killed_in_the_save(tmp_path)
    clip(run, done=11, iteration=12)
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (52, 0, True)


def test_without_a_note_of_the_checkpoint_a_step_may_have_been_left_out(tmp_path: Path) -> None:
    run = killed_in_the_save(tmp_path)
    clip(run, done=18, iteration=19, resumed_from=None)
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (60, 0, True)


def test_a_step_that_another_rank_has_done_was_kept_without_a_note_too(tmp_path: Path) -> None:
    run = killed_in_the_save(tmp_path)
    clip(run, done=18, iteration=19, ranks="1", resumed_from=None)
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (60, 0, False)


def test_a_checkpoint_that_has_the_number_of_the_step_may_not_hold_it(tmp_path: Path) -> None:
    run = killed_in_the_save(tmp_path)
    clip(run, done=18, iteration=19, resumed_from=-1)
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (60, 0, True)


def test_a_checkpoint_that_has_the_number_of_its_last_step_holds_it_if_others_do(tmp_path: Path) -> None:
    run = killed_in_the_save(tmp_path, 35)
    clip(run, done=18, iteration=19, resumed_from=-1)
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (60, 5, False)


@pytest.mark.parametrize("behind", ["01", "1"])
def test_the_last_save_of_a_run_that_has_failed_holds_the_step_that_it_is_in(tmp_path: Path, behind: str) -> None:
    run = invent_run(tmp_path, failures=[Failure(20, 0)], steps=60, lines=200, ends_with="failed")
    clip(run, done=18, iteration=19, ranks=behind)
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (20, 0, False)


def test_a_rank_behind_the_last_save_makes_the_count_an_estimate(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(20, 0)], steps=60, lines=200, ends_with="failed")
    clip(run, done=11, iteration=12, ranks="1")
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (20, 0, True)


def test_a_generation_that_has_loaded_it_and_failed_in_its_setup_tells_it_too(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(20, 0), Failure(20, 1)], steps=60, lines=200, ends_with="failed")
    clip(run, done=18, iteration=19, first_iteration=None, first_step_ns=None)
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for known in line["ranks"].values() if line["generation"] else ():
            known |= {"iteration": None, "open": {}}
        for known in line["ranks"].values() if line["generation"] == 0 else ():
            known["saves"] = [save for save in known.get("saves", ()) if save["iteration"] < 20]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ledger = reported(run).ledger
    # Whether the checkpoint holds the step of its number, too, no later step tells.
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (20, 0, True)


@pytest.mark.parametrize(("last", "steps"), [(59, 60), (54, 55)])
def test_steps_that_an_exception_has_left_are_passed_once_a_later_one_has_ended(
    tmp_path: Path, last: int, steps: int
) -> None:
    """A script that catches it goes on; of those at the very end nothing tells that it has."""
    run = invent_run(tmp_path, failures=0, steps=60, lines=200)
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for known in line["ranks"].values():
            known["done"] = None if known["done"] is None else min(known["done"], last)
            if "step" in known["sections"]:
                known["sections"]["step"] |= {"left": 5, "left_ns": 10**9}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (steps, 0, False)
