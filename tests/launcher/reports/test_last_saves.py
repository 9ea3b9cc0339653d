"""Last saves of failed trainings that not all ranks have noted: one has failed in it, or before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.reports.as_json import as_json
from launcher.reports.model import Report
from launcher.reports.page import page
from launcher.reports.terminal import lines
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run
from tests.launcher.reports.test_lineage import change, reported, seconds_of

SAID = "nothing has gone on from the last save, which rank(s)"
SAVING = {"closed": 1, "took_ns": 10**9, "longest_ns": 10**9, "close_calls": 0}


def failed(folder: Path, iteration: int = 25, **options: Any) -> InventedRun:
    """Write a run whose two ranks save every ten steps, and of which the writer, rank 1, fails in a step."""
    return invent_run(folder, failures=[Failure(iteration, 1)], steps=60, lines=200, ends_with="failed", **options)


def with_saves(
    run: InventedRun, noted: set[int], left: int = 0, rank: str = "1", *, is_open: bool = False, never: bool = False
) -> InventedRun:
    """Let a rank of the first generation have noted only some saves.

    Args:
        run: Which.
        noted: Their numbers.
        left: How many others an exception has left.
        rank: Which.
        is_open: It is in another one when it ends.
        never: It has opened none.
    """

    def how(line: dict[str, Any]) -> dict[str, Any]:
        known = line["ranks"].get(rank)
        if line["generation"] != 0 or known is None:
            return line
        known["saves"] = [save for save in known.get("saves", ()) if save["iteration"] in noted]
        if never:
            known["sections"].pop("checkpointing", None)
            known["open"].pop("checkpointing", None)
        elif left and line["is_last"]:
            known["sections"]["checkpointing"] = {**SAVING, "left": left, "left_ns": 10**9, "durations": {"30": 1}}
        if is_open and line["is_last"]:
            known["open"] = {"checkpointing": line["t_ns"] - 10**9}
        return line

    change(run, how)
    return run


def with_one_that_ended_well(run: InventedRun, rank: int) -> InventedRun:
    """Let a rank have ended with 0 before the other one failed."""
    path = run.folders[0] / "incidents/0001/incident.json"
    incident = json.loads(path.read_text())
    evidence = {"local_rank": rank, "state": "Z", "exit_code": 0, "has_left": True, "ended_ns": 1}
    incident["ranks"][rank] |= {"exit_code": 0, "is_culprit": False, "evidence": evidence}
    path.write_text(json.dumps(incident))
    return run


def counts(report: Report) -> tuple[int | None, bool]:
    assert any(SAID in note for note in report.notes) == report.ledger.is_count_about
    return report.ledger.steps, report.ledger.is_count_about


def lost_since(run: InventedRun, save: int | None) -> float:
    """Return what is lost of the first generation where training would go on from a save, or from the begin."""
    life = run.lives[0]
    since = next((at for iteration, at, _ in life.saves if iteration == save), life.first_step)
    assert since is not None
    return life.last_sign - since


@pytest.mark.parametrize("how", [{"left": 1}, {"is_open": True}, {}], ids=["in it", "open", "before it"])
@pytest.mark.parametrize(("noted", "steps"), [({10}, 10), ({10, 20}, 20)])
def test_a_last_save_that_the_writer_has_not_noted_does_not_count(
    tmp_path: Path, how: dict[str, Any], noted: set[int], steps: int
) -> None:
    run = with_saves(failed(tmp_path, 35), noted, **how)
    report = reported(run)
    assert counts(report) == (steps, True)
    assert seconds_of(report, "lost_work") == (pytest.approx(lost_since(run, steps), abs=1e-3), True)
    assert seconds_of(report, "productive")[1]


@pytest.mark.parametrize("how", [{"left": 1}, {"is_open": True}], ids=["left", "open"])
def test_where_the_writer_fails_in_its_first_save_nothing_is_kept(tmp_path: Path, how: dict[str, Any]) -> None:
    run = with_saves(failed(tmp_path, 15), set(), **how)
    report = reported(run)
    assert counts(report) == (0, True)
    assert seconds_of(report, "lost_work") == (pytest.approx(lost_since(run, None), abs=1e-3), True)
    assert any(SAID in note and note.endswith("have noted: there is none") for note in report.notes)


@pytest.mark.parametrize("how", [{"left": 1}, {"left": 1, "rank": "0"}])
def test_a_save_that_has_failed_and_was_caught_is_no_doubt_once_a_later_one_is_noted(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    run = with_saves(failed(tmp_path), {20}, **how)
    report = reported(run)
    assert counts(report) == (20, False)
    assert seconds_of(report, "lost_work") == (pytest.approx(lost_since(run, 20), abs=1e-3), False)


def test_a_save_in_which_all_ranks_have_failed_is_none(tmp_path: Path) -> None:
    run = failed(tmp_path)
    for rank in ("0", "1"):
        with_saves(run, {10}, left=1, rank=rank)
    assert counts(reported(run)) == (10, False)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_never_saves_is_not_asked(tmp_path: Path, rank: str) -> None:
    run = with_saves(failed(tmp_path), set(), rank=rank, never=True)
    report = reported(run)
    assert counts(report) == (20, False)
    assert not seconds_of(report, "lost_work")[1]


@pytest.mark.parametrize(("iteration", "done", "is_about"), [(15, 8, True), (15, 14, False), (25, 8, True)])
def test_who_fails_before_the_first_save_of_all_may_be_the_one_that_writes(
    tmp_path: Path, iteration: int, done: int, is_about: bool
) -> None:
    """One that has passed by a save is none that does; with heartbeats nothing tells that it has begun one."""
    run = with_saves(failed(tmp_path, iteration), set(), never=True)

    def how(line: dict[str, Any]) -> dict[str, Any]:
        known = line["ranks"]["1"]
        known |= {key: min(known[key] or 0, done) for key in ("done", "iteration")}
        return line

    change(run, how)
    report = reported(run)
    assert any(f"{SAID} 1 have not noted" in note for note in report.notes) == is_about
    assert not is_about or report.ledger.is_count_about
    assert seconds_of(report, "lost_work")[1] == is_about


def test_a_save_that_all_ranks_have_noted_counts(tmp_path: Path) -> None:
    run = failed(tmp_path)
    report = reported(run)
    assert counts(report) == (20, False)
    assert seconds_of(report, "lost_work") == (pytest.approx(run.truth.seconds["lost_work"], abs=1e-3), False)


def test_a_rank_that_ended_well_before_is_not_asked(tmp_path: Path) -> None:
    run = with_one_that_ended_well(with_saves(failed(tmp_path), set(), rank="0", never=True), 0)

    def how(line: dict[str, Any]) -> dict[str, Any]:
        known = line["ranks"]["0"]
        known |= {key: min(known[key] or 0, 5) for key in ("done", "iteration")}
        return line

    change(run, how)
    assert not any(SAID in note for note in reported(run).notes)


def test_a_rank_that_ended_well_after_a_save_may_lack_in_the_newest_one(tmp_path: Path) -> None:
    """Each writes its part, say, and the last one was made without this rank."""
    run = with_one_that_ended_well(with_saves(failed(tmp_path), {10}, rank="0"), 0)
    assert counts(reported(run)) == (10, True)


def test_who_has_saved_in_another_generation_is_asked_in_the_last_one(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(25, 1), Failure(35, 1)], steps=60, lines=200, ends_with="failed")
    whole = counts(reported(run))

    def how(line: dict[str, Any]) -> dict[str, Any]:
        known = line["ranks"].get("1")
        if line["generation"] == 1 and known is not None:
            known["saves"] = []
            known["sections"].pop("checkpointing", None)
            known["open"].pop("checkpointing", None)
        return line

    change(run, how)
    assert (whole, counts(reported(run))) == ((30, False), (20, True))


def test_a_last_generation_that_began_with_an_older_state_leaves_open_what_was_kept(tmp_path: Path) -> None:
    """A restart may find the newer save again."""
    failures = [Failure(25, 1), Failure(17, 1)]
    run = invent_run(tmp_path, failures=failures, steps=60, lines=200, finds={1: 10}, ends_with="failed")
    report = reported(run)
    assert (report.ledger.steps, report.ledger.is_count_about) == (10, True)
    (note,) = (note for note in report.notes if "had begun with an older state" in note)
    assert note.startswith("nothing has gone on from generation 1, which had begun with an older state than that of ")


def test_a_save_before_the_first_step_is_no_newer_state(tmp_path: Path) -> None:
    """Its number is 0, as is the iteration with which the last generation began."""
    run = invent_run(tmp_path, failures=[Failure(5, 1), Failure(4, 1)], steps=60, lines=200, ends_with="failed")
    change(run, with_a_save_of(0))
    report = reported(run)
    assert [save for life in run.lives for save in life.saves] == []
    assert not any("had begun with an older state" in note for note in report.notes)


def with_a_save_of(number: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a change by which all ranks of the first generation have noted a save before their steps."""

    def how(line: dict[str, Any]) -> dict[str, Any]:
        for known in line["ranks"].values():
            if line["generation"] == 0:
                known["saves"] = [{"iteration": number, "t_ns": line["t_ns"], "checkpointing_ns": 0, "done": None}]
        return line

    return how


@pytest.mark.parametrize(("at", "is_open"), [(17, True), (29, False)])
@pytest.mark.parametrize("is_noted", [False, True])
def test_an_end_without_a_step_leaves_open_what_it_has_found(
    tmp_path: Path, at: int, is_open: bool, is_noted: bool
) -> None:
    """Unless the generation before it has come as far as all others, or it tells what it has loaded."""
    run = invent_run(tmp_path, failures=[Failure(25, 1), Failure(at, 1)], steps=60, lines=200, finds={1: 10, 2: 20})

    def how(line: dict[str, Any]) -> dict[str, Any]:
        if line["generation"] == 2:
            nothing = {"first_iteration": None, "first_step_ns": None, "iteration": None, "done": None, "saves": []}
            for known in line["ranks"].values():
                known |= {**nothing, "resumed_from": 20 if is_noted else None}
        return line

    change(run, how)
    report = reported(run)
    assert any("generation 2 has taken no step" in note for note in report.notes) == (is_open and not is_noted)
    assert not (is_open and not is_noted) or report.ledger.is_count_about


def test_what_a_rank_has_noted_that_ended_well_before_is_asked_of_the_others(tmp_path: Path) -> None:
    run = with_one_that_ended_well(with_saves(failed(tmp_path), set(), is_open=True), 0)
    assert counts(reported(run)) == (0, True)


def test_a_rank_that_takes_no_steps_is_not_asked(tmp_path: Path) -> None:
    """It saves by itself, as one that keeps the states of data loaders."""
    run = failed(tmp_path)

    def how(line: dict[str, Any]) -> dict[str, Any]:
        line["ranks"]["0"] |= {"first_iteration": None, "first_step_ns": None, "iteration": None, "done": None}
        return line

    change(with_saves(run, {10}, rank="0"), how)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.is_count_about) == (20, False)


def test_ranks_that_tell_of_no_steps_are_asked_too(tmp_path: Path) -> None:
    run = with_saves(failed(tmp_path), {10}, left=1)

    def how(line: dict[str, Any]) -> dict[str, Any]:
        for known in line["ranks"].values():
            known |= {"first_iteration": None, "first_step_ns": None, "iteration": None, "done": None}
        return line

    change(run, how)
    report = reported(run)
    assert seconds_of(report, "lost_work") == (pytest.approx(lost_since(run, 10), abs=1e-3), True)
    assert any(note.endswith("right only: rank(s) 1 have not noted a later save") for note in report.notes)


def test_where_a_restart_has_gone_on_from_the_older_save_the_counts_are_exact(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(25, 1)], steps=60, lines=200, finds={1: 10})
    before = reported(run)
    report = reported(with_saves(run, {10}, left=1))
    assert counts(report) == counts(before) == (60, False)
    assert report.ledger.repeated == before.ledger.repeated == 15
    assert seconds_of(report, "lost_work") == (pytest.approx(run.truth.seconds["lost_work"], abs=1e-3), False)


def test_of_a_training_that_has_stopped_itself_the_last_save_is_not_asked(tmp_path: Path) -> None:
    run = with_saves(failed(tmp_path), {10}, left=1)
    path = run.folders[0] / "events.jsonl"
    events = path.read_text().splitlines()
    stop = {**json.loads(events[-1]), "event": "stopped_on_purpose", "generation": 0, "why": "low enough"}
    path.write_text("\n".join([*events[:-1], json.dumps(stop), events[-1]]) + "\n")
    report = reported(run)
    assert (report.ledger.steps, report.ledger.is_count_about) == (25, True)
    assert any("(StopTraining)" in note for note in report.notes)
    assert not any(SAID in note for note in report.notes)


def test_the_notes_name_the_ranks_and_the_save_that_counts(tmp_path: Path) -> None:
    run = failed(tmp_path, ranks=4)
    for rank in ("1", "3"):
        with_saves(run, {10}, left=1, rank=rank)
    notes = reported(run).notes
    (note,) = (note for note in notes if SAID in note)
    assert "which rank(s) 1, 3 have not noted" in note
    assert note.endswith("The last one counts that all ranks that save have noted: number 10")
    (final,) = (note for note in notes if "has gone on from generation" in note)
    assert final == (
        "nothing has gone on from generation 0: what it did since the save of iteration 10 counts as lost, which is "
        "about right only: rank(s) 1, 3 have not noted a later save"
    )


@pytest.mark.parametrize("noted", [{10}, {10, 20}])
def test_text_page_and_json_mark_the_same_figures(tmp_path: Path, noted: set[int]) -> None:
    report = reported(with_saves(failed(tmp_path), noted))
    about, ledger = noted != {10, 20}, json.loads(as_json(report))["ledger"]
    marked = {entry["category"]["key"]: entry["is_about"] for entry in ledger["entries"]}
    assert (ledger["is_count_about"], marked["lost_work"], marked["productive"]) == (about, about, about)
    text = "\n".join(lines(report))
    assert ("~10 steps kept, ~0 done again" in text) == about
    assert ("20 steps kept, 0 done again" in text) != about
    (row,) = (line for line in text.splitlines() if line.strip().startswith("lost work"))
    assert ("~" in row) == about
    assert (SAID in page(report)) == about
