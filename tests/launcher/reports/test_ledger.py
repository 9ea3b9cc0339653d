"""The ledger against schedules whose sums are known, whatever is missing or damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.reports.build import make_report
from launcher.reports.model import CATEGORIES, UNSEEN, Ledger, Report
from tests.launcher.reports.invented_runs import (
    EPOCH,
    Failure,
    InventedRun,
    Truth,
    invent_run,
    invent_runs,
)

CLOSE = 1e-6
"""Seconds: stamps are in nanoseconds, sums of the schedule in floats."""


def reported(*runs: InventedRun) -> Report:
    return make_report([str(folder) for run in runs for folder in run.folders])


def seconds(ledger: Ledger) -> dict[str, float]:
    return {entry.category.key: entry.seconds for entry in ledger.entries}


def assert_adds_up(ledger: Ledger) -> None:
    assert sum(entry.seconds for entry in ledger.entries) == pytest.approx(ledger.wall_seconds, abs=CLOSE)
    assert sum(entry.share for entry in ledger.entries) == pytest.approx(1.0, abs=1e-9)
    for row in ledger.by_rank:
        assert sum(row.seconds) == pytest.approx(row.wall_seconds, abs=CLOSE)


def assert_is(ledger: Ledger, truth: Truth) -> None:
    assert_adds_up(ledger)
    expected = {key: value for key, value in truth.seconds.items() if value > CLOSE}
    assert seconds(ledger) == pytest.approx(expected, abs=1e-4)
    assert ledger.wall_seconds == pytest.approx(truth.wall, abs=CLOSE)
    assert ledger.repeated == truth.repeated


@pytest.mark.parametrize("failures", [0, 1, 3, 8])
def test_on_one_node_it_is_what_the_schedule_holds(tmp_path: Path, failures: int) -> None:
    run = invent_run(tmp_path, failures=failures)
    ledger = reported(run).ledger
    assert_is(ledger, run.truth)
    assert not any(entry.is_about for entry in ledger.entries)
    assert len(ledger.by_rank) == 2


@pytest.mark.parametrize("own_folders", [False, True])
@pytest.mark.parametrize("skew", [0.0, 7.5])
def test_on_several_nodes_each_is_cut_by_its_own_clock(tmp_path: Path, own_folders: bool, skew: float) -> None:
    run = invent_run(tmp_path, ranks=8, nodes=4, failures=4, own_folders=own_folders, skew=skew)
    report = reported(run)
    assert_is(report.ledger, run.truth)
    assert len(report.runs) == 1
    assert [node.clock_shift for node in report.nodes] == pytest.approx([0.0, skew, 2 * skew, 3 * skew], abs=1e-3)
    # Only the node that fails notes when that was seen.
    assert {entry.category.key for entry in report.ledger.entries if entry.is_about} == {"detection", "stop"}


def test_a_back_off_is_no_rendezvous(tmp_path: Path) -> None:
    run = invent_run(tmp_path, back_off_seconds=8.0)
    assert run.truth.seconds["waiting"] == pytest.approx(24.0)
    assert_is(reported(run).ledger, run.truth)


def test_a_save_just_before_a_failure_loses_no_iteration(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(20, 0)], save_every=10)
    assert run.truth.repeated == 0
    assert_is(reported(run).ledger, run.truth)


@pytest.mark.parametrize("kind", ["failure", "hang"])
def test_saves_beside_steps_cost_nothing_and_hold_what_was_done_before_they_began(tmp_path: Path, kind: str) -> None:
    # The second one comes before the save of iteration 20 is complete, the third one while that is being completed.
    failures = [Failure(17, 0, kind, 5.0), Failure(21, 1, kind, 1.0), Failure(22, 1, kind, 5.0), Failure(38, 0, kind)]
    run = invent_run(tmp_path, failures=failures, steps=60, beside_seconds=6.2, lines=200)
    assert run.truth.seconds["checkpointing"] == 0
    assert [life.resumed_from for life in run.lives] == [None, 10, 10, 20, 30]
    assert_is(reported(run).ledger, run.truth)


def test_of_a_last_save_beside_steps_what_was_done_since_its_begin_is_lost(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(38, 0)], ends_with="failed", beside_seconds=6.2)
    assert_is(reported(run).ledger, run.truth)
    (life,) = run.lives
    assert run.truth.seconds["lost_work"] == pytest.approx(life.last_sign - life.saves[-1][1])


def test_without_any_save_everything_is_done_again(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(7, 0), Failure(9, 1)], steps=12, save_every=1000)
    assert run.truth.repeated == 7 + 9
    assert_is(reported(run).ledger, run.truth)


def test_of_a_run_that_has_failed_the_work_since_its_last_save_is_lost(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ends_with="failed")
    report = reported(run)
    assert_is(report.ledger, run.truth)
    assert any("counts as lost" in note and "save of iteration 110" in note for note in report.notes)
    assert report.ledger.steps == 110


def test_several_runs_of_one_training_are_one_story(tmp_path: Path) -> None:
    runs = invent_runs(tmp_path, 3, pause=20.0)
    report = reported(*reversed(runs))
    found = seconds(report.ledger)
    assert_adds_up(report.ledger)
    assert [run.name for run in report.runs] == ["run-0", "run-1", "run-2"]
    assert found.pop("between_runs") == pytest.approx(40.0, abs=1e-3)
    for key, value in found.items():
        assert value == pytest.approx(sum(run.truth.seconds[key] for run in runs), abs=1e-3), key
    assert report.ledger.repeated == sum(run.truth.repeated for run in runs)
    assert report.seconds == pytest.approx(sum(run.seconds for run in runs) + 40.0, abs=1e-3)


def test_runs_of_one_name_in_one_folder_are_told_apart_whatever_the_clocks_say(tmp_path: Path) -> None:
    ends: dict[str, Any] = {"ends_with": "failed", "goes_on": True}
    first = invent_run(tmp_path, failures=[Failure(17, 3)], ranks=4, nodes=2, skew=9.0, **ends)
    second = invent_run(
        tmp_path,
        failures=[],
        steps=40,
        ranks=4,
        nodes=2,
        resumed_from=10,
        skew=9.0,
        began_epoch=EPOCH + first.seconds + 1.0,
        boot_seconds=5_000.0 + first.seconds + 1.0,
    )
    report = make_report([str(first.folders[0])])
    assert [(run.nodes, run.outcome) for run in report.runs] == [(2, "failed"), (2, "succeeded")]
    assert report.ledger.repeated == first.truth.repeated == 7
    assert seconds(report.ledger)["between_runs"] == pytest.approx(1.0, abs=1e-3)
    assert report.ledger.wall_seconds == pytest.approx(first.seconds + second.seconds + 1.0, abs=1e-3)


# ---- what is missing --------------------------------------------------------------------------------------


def test_where_no_save_was_noted_the_loss_is_interpolated_and_said_to_be(tmp_path: Path) -> None:
    run = invent_run(tmp_path, has_saves=False, lines=400)
    report = reported(run)
    assert_adds_up(report.ledger)
    assert report.ledger.repeated == run.truth.repeated
    lost = next(entry for entry in report.ledger.entries if entry.category.key == "lost_work")
    assert lost.is_about
    # A save takes a second in this schedule, and lines are a second apart.
    assert lost.seconds == pytest.approx(run.truth.seconds["lost_work"], abs=3 * 2.5)
    assert any("interpolated" in note for note in report.notes)


def test_a_folder_without_figures_has_fewer_categories(tmp_path: Path) -> None:
    run = invent_run(tmp_path, has_figures=False)
    report = reported(run)
    assert_adds_up(report.ledger)
    assert report.ledger.wall_seconds == pytest.approx(run.truth.wall, abs=CLOSE)
    found = seconds(report.ledger)
    assert {"productive", "lost_work", "checkpointing"}.isdisjoint(found)
    assert found["detection"] == pytest.approx(run.truth.seconds["detection"], abs=1e-3)
    assert found["unknown"] > 200
    assert report.ledger.repeated is report.ledger.steps is None
    assert any("no figures" in note for note in report.notes)
    assert len(report.incidents) == 3


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_loss_that_is_interpolated_to_nothing_marks_the_row_of_the_others(tmp_path: Path) -> None:
    """A rank was killed as its save was complete, which no line tells: what was lost is of the generation before."""
    run = invent_run(tmp_path, failures=[Failure(17, 1), Failure(20, 1)], steps=30, lines=200)
    exact = next(entry for entry in reported(run).ledger.entries if entry.category.key == "lost_work")
    figures, kept = run.folders[0] / "figures.jsonl", []
    for line in lines_of(figures):
        for rank in line["ranks"].values() if line["generation"] == 1 else ():
            rank["saves"] = [save for save in rank.get("saves", ()) if save["iteration"] != 20]
        if line["generation"] != 1 or line["is_last"] or line["ranks"]["0"]["done"] != 19:
            kept.append(line)
    write_lines(figures, kept)
    report = reported(run)
    lost = next(entry for entry in report.ledger.entries if entry.category.key == "lost_work")
    assert lost.seconds == pytest.approx(exact.seconds, abs=0.1)
    assert (exact.is_about, lost.is_about) == (False, True)
    assert ["their lost work is about right only" in note for note in report.notes].count(True) == 1


def test_a_launcher_that_was_killed_ends_with_its_last_line(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    events = run.folders[0] / "events.jsonl"
    kept = lines_of(events)[:-5]
    write_lines(events, kept)
    figures = run.folders[0] / "figures.jsonl"
    write_lines(figures, lines_of(figures)[:-1])
    report = reported(run)
    assert_adds_up(report.ledger)
    assert report.runs[0].ended is None
    assert not report.is_running
    last_ns = max(line["t_ns"] for line in (*kept, *lines_of(figures)))
    assert report.ledger.wall_seconds == pytest.approx((last_ns - kept[0]["t_ns"]) / 1e9, abs=CLOSE)
    assert any("has not said that it ended" in note for note in report.notes)


def test_a_run_that_goes_on_is_told_up_to_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = invent_run(tmp_path, failures=1, is_going_on=True)
    figures = run.folders[0] / "figures.jsonl"
    write_lines(figures, lines_of(figures)[:-1])
    monkeypatch.setattr("launcher.reports.launches.time.time", lambda: EPOCH + run.seconds)
    report = reported(run)
    assert report.is_running
    assert_adds_up(report.ledger)
    assert "idle" not in seconds(report.ledger)
    assert report.ledger.repeated == run.truth.repeated
    assert any("still running" in note for note in report.notes)


def test_of_a_run_that_goes_on_what_comes_after_the_last_sign_of_progress_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks may hang: their limits have not passed yet."""
    run = invent_run(tmp_path, failures=1, is_going_on=True)
    monkeypatch.setattr("launcher.reports.launches.time.time", lambda: EPOCH + run.seconds)
    before = seconds(reported(run).ledger)
    figures = run.folders[0] / "figures.jsonl"
    lines = lines_of(figures)
    write_lines(figures, [*lines, {**lines[-1], "t_ns": lines[-1]["t_ns"] + int(8e9)}])
    monkeypatch.setattr("launcher.reports.launches.time.time", lambda: EPOCH + run.seconds + 8)
    report = reported(run)
    assert report.is_running
    assert_adds_up(report.ledger)
    after = seconds(report.ledger)
    assert after["unknown"] - before.get("unknown", 0.0) == pytest.approx(8.0, abs=CLOSE)
    assert {**after, "unknown": 0} == pytest.approx({**before, "unknown": 0}, abs=CLOSE)
    assert {span.kind for rank in report.ranks for span in rank.spans if span.end > run.seconds + 1} == {UNSEEN}


def test_a_generation_that_never_takes_a_step_is_all_start(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 0), Failure(17, 1)])
    figures = run.folders[0] / "figures.jsonl"
    lines = lines_of(figures)
    nothing = {"iteration": None, "done": None, "first_iteration": None, "first_step_ns": None}
    for line in lines:
        if line["generation"] == 1:
            line["ranks"] = {
                rank: {**facts, **{key: value for key, value in nothing.items() if key in facts}}
                for rank, facts in line["ranks"].items()
            }
    write_lines(figures, lines)
    report = reported(run)
    assert_adds_up(report.ledger)
    assert report.ledger.repeated == run.lives[0].done - 10 + 1  # type: ignore[operator]
    middle = run.lives[1]
    missing = middle.last_sign - (middle.first_step or 0.0)
    assert seconds(report.ledger)["start"] == pytest.approx(run.truth.seconds["start"] + missing, abs=1e-3)


def test_iterations_that_begin_anew_are_not_counted(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    events = run.folders[0] / "events.jsonl"
    lines = lines_of(events)
    lines[-1]["went_back"] = True
    write_lines(events, lines)
    report = reported(run)
    assert_adds_up(report.ledger)
    assert report.ledger.repeated is None
    assert "lost_work" not in seconds(report.ledger)
    assert any("not counted on" in note for note in report.notes)


def test_a_step_that_an_exception_ends_is_not_done(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)])
    figures = run.folders[0] / "figures.jsonl"
    lines = lines_of(figures)
    for line in lines:
        if line["generation"] == 0 and line["is_last"]:
            for facts in line["ranks"].values():
                assert facts["done"] == 16
            line["ranks"]["1"]["done"] = 17  # left by the exception
            line["ranks"]["0"]["done"] = 16
    write_lines(figures, lines)
    assert reported(run).ledger.repeated == run.truth.repeated
    incident = json.loads((run.folders[0] / "incidents" / "0001" / "incident.json").read_text())
    for rank in incident["ranks"]:
        rank["error"] = incident["ranks"][1]["error"]
    (run.folders[0] / "incidents" / "0001" / "incident.json").write_text(json.dumps(incident))
    for line in lines:
        if line["generation"] == 0 and line["is_last"]:
            line["ranks"]["0"]["done"] = 17
    write_lines(figures, lines)
    assert reported(run).ledger.repeated == run.truth.repeated


@pytest.mark.parametrize(
    ("has_sections", "is_done", "repeated"),
    [(True, None, 8), (False, None, 7), (False, True, 8), (False, False, 7), (True, True, 8), (True, False, 7)],
)
def test_an_exception_after_a_step_has_not_ended_it(
    tmp_path: Path, has_sections: bool, is_done: bool | None, repeated: int
) -> None:
    """Where the step was no section, as with heartbeats, it may have, unless the rank has told of the step's end."""
    run = invent_run(tmp_path, failures=[Failure(17, 1)])
    figures = run.folders[0] / "figures.jsonl"
    lines = lines_of(figures)
    for line in lines:
        for facts in line["ranks"].values():
            if line["generation"] == 0 and line["is_last"]:
                facts["done"] = 17
            if not has_sections:
                facts["sections"].pop("step", None)
    write_lines(figures, lines)
    path = run.folders[0] / "incidents" / "0001" / "incident.json"
    incident = json.loads(path.read_text())
    for rank in incident["ranks"]:
        rank["error"] = {**incident["ranks"][1]["error"], "section": None, "is_step_done": is_done}
    path.write_text(json.dumps(incident))
    assert reported(run).ledger.repeated == repeated


def test_a_step_that_one_rank_has_done_is_not_done(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)])
    figures = run.folders[0] / "figures.jsonl"
    lines = lines_of(figures)
    for line in lines:
        if line["generation"] == 0 and line["is_last"]:
            line["ranks"]["0"]["done"] = 17  # it skipped the collective
    write_lines(figures, lines)
    assert reported(run).ledger.repeated == run.truth.repeated


def with_an_early_rank(run: InventedRun, done: int) -> None:
    """Let rank 1 of the first generation be gone since an iteration, and never begin a step in the next."""
    figures = run.folders[0] / "figures.jsonl"
    lines = lines_of(figures)
    left_at = next(step.end for step in run.lives[0].sections if (step.name, step.iteration) == ("step", done))
    began_ns = lines_of(run.folders[0] / "events.jsonl")[0]["t_ns"]
    left_ns = began_ns + round(left_at * 1e9)
    for line in lines:
        facts = line["ranks"]["1"]
        if line["generation"] == 1:
            facts.update(
                {key: None for key in ("iteration", "done", "first_iteration", "first_step_ns") if key in facts}
            )
        elif facts["done"] is not None and facts["done"] >= done:
            facts |= {"iteration": done, "done": done, "open": {}}
            facts |= {"last_sign_ns": left_ns} if line["is_full"] else {}
    write_lines(figures, lines)


def test_a_step_that_the_next_generation_has_gone_on_from_was_kept(tmp_path: Path) -> None:
    """A rank was killed at its very end; the others have done it, and saved."""
    run = invent_run(tmp_path, failures=[Failure(40, 1)], steps=60, lines=400)
    truth = reported(run).ledger
    path = run.folders[0] / "figures.jsonl"
    lines = lines_of(path)
    saved = run.lives[1].resumed_from
    assert saved is not None
    for line in lines:
        facts = line["ranks"].get("1")
        if line["generation"] == 0 and facts is not None and (facts["done"] or 0) >= saved - 1:
            facts |= {"done": saved - 2, "iteration": saved - 1}
    write_lines(path, lines)
    assert (truth.steps, reported(run).ledger.steps) == (60, 60)


@pytest.mark.parametrize("ended_ns", [None, 1, 1 << 62])
def test_what_a_rank_has_not_done_that_had_ended_well_was_done(tmp_path: Path, ended_ns: int | None) -> None:
    run = invent_run(tmp_path, failures=[Failure(45, 0)], steps=60)
    with_an_early_rank(run, 29)
    path = run.folders[0] / "incidents/0001/incident.json"
    incident = json.loads(path.read_text())
    known = {"local_rank": 1, "state": "Z", "exit_code": 0, "has_left": True, "ended_ns": ended_ns}
    incident["ranks"][1] |= {"exit_code": 0, "evidence": known if ended_ns is not None else None}
    path.write_text(json.dumps(incident))
    ledger = reported(run).ledger
    had_ended = ended_ns != 1 << 62  # else it was asked to end, and its peers had not gone on without it
    # The others have gone on from 40: it is not told that the rank has done all before that.
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == ((60, 5, False) if had_ended else (60, 0, True))
    assert_adds_up(ledger)
    early = dict(zip((category.key for category in CATEGORIES), ledger.by_rank[1].seconds, strict=True))
    first = run.lives[0]
    left_at = next(step.end for step in first.sections if step.name == "step" and step.iteration == 29)
    assert (early["lost_work"] > 0) == (early["detection"] > 0) == (not had_ended)
    if had_ended:
        idle = first.stopped - left_at + run.seconds - run.lives[1].last_sign
        assert early["idle"] == pytest.approx(idle, abs=1e-3)


def test_of_a_rank_behind_the_others_of_which_no_incident_tells_the_counts_are_marked(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(45, 0)], steps=60)
    with_an_early_rank(run, 43)
    shutil.rmtree(run.folders[0] / "incidents")
    events = run.folders[0] / "events.jsonl"
    write_lines(events, [line | {"folder": None, "culprits": []} for line in lines_of(events)])  # nor names it
    assert not reported(run).ledger.is_count_about, "ranks that wait for each other may be that far apart"
    with_an_early_rank(run, 29)
    assert reported(run).ledger.is_count_about


def test_a_rank_that_leaves_its_step_when_it_is_killed_gets_on_no_more(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1, "hang", 31.0)])
    figures = run.folders[0] / "figures.jsonl"
    lines = lines_of(figures)
    for line in lines:
        if line["generation"] == 0 and line["is_last"]:
            line["ranks"]["0"]["last_sign_ns"] = line["t_ns"] - 1_000_000
    write_lines(figures, lines)
    assert_is(reported(run).ledger, run.truth)


def test_a_node_that_has_noted_nothing_knew_of_a_failure_when_the_other_did(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 3, "hang", 31.0)], skew=90.0)
    for name in ("elsewhere", "job_incidents"):
        shutil.rmtree(run.folders[0] / name)
    assert_is(reported(run).ledger, run.truth)


def test_a_save_that_nobody_has_resumed_from_is_lost_as_well(tmp_path: Path) -> None:
    first = invent_run(tmp_path, "first", failures=[Failure(25, 0)], ends_with="failed")
    begins = {"began_epoch": EPOCH + first.seconds + 1, "boot_seconds": 5_001.0 + first.seconds}
    second = invent_run(tmp_path, "second", failures=[], steps=40, resumed_from=10, **begins)
    report = reported(first, second)
    found = seconds(report.ledger)
    assert report.ledger.repeated == 25 - 10
    assert found["checkpointing"] == pytest.approx(1.0 + second.truth.seconds["checkpointing"], abs=1e-3)
    (life,) = first.lives
    assert found["lost_work"] == pytest.approx(life.last_sign - life.saves[0][1], abs=1e-3)


def test_damaged_lines_cost_no_more_than_themselves(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    for name in ("events.jsonl", "figures.jsonl"):
        path = run.folders[0] / name
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([lines[0], '{"torn": ', "\n", "[]\n", *lines[1:], '{"event": "under way']))
    report = reported(run)
    assert_is(report.ledger, run.truth)
    assert sum("left out" in note for note in report.notes) >= 2


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    pipes = [path / "job_incident.json" for path in (run.folders[0] / "incidents").iterdir()]
    pipes += [run.folders[0] / "job_incidents" / "0001" / "incident.json"]
    assert len(pipes) > 1
    for pipe in pipes:
        pipe.parent.mkdir(parents=True, exist_ok=True)
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
    assert_is(reported(run).ledger, run.truth)


def test_a_node_whose_folder_was_not_named_is_missed(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, own_folders=True)
    report = make_report([str(run.folders[1])])
    assert_adds_up(report.ledger)
    assert any("ran on 2 nodes, and the events of 1 are here" in note for note in report.notes)


def test_a_log_folder_that_was_moved_tells_the_same(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(run.folders[0], moved)
    shutil.rmtree(run.folders[0])
    report = make_report([str(moved)])
    assert_is(report.ledger, run.truth)
    assert all(incident.report is not None for incident in report.incidents)


@pytest.mark.parametrize(("done", "may_have_left"), [(29, True), (None, False)])
def test_of_a_rank_that_may_have_ended_well_before_idle_and_stop_are_marked_without_the_incident(
    tmp_path: Path, done: int | None, may_have_left: bool
) -> None:
    run = invent_run(tmp_path, failures=[Failure(45, 0)], steps=60)
    if done is not None:
        with_an_early_rank(run, done)
    shutil.rmtree(run.folders[0] / "incidents/0001")
    report = reported(run)
    about = {entry.category.key for entry in report.ledger.entries if entry.is_about}
    assert ({"idle", "stop"} <= about) == may_have_left
    assert ("idle" in about) == ("stop" in about) == may_have_left
    assert any("so are stop and idle where a rank may have ended well before" in note for note in report.notes)


def without_steps(run: InventedRun, generations: Sequence[int]) -> None:
    """Let rank 1 have begun no step in these generations: it was in its setup to the end."""
    path = run.folders[0] / "figures.jsonl"
    lines = lines_of(path)
    for line in lines:
        if line["generation"] in generations:
            known = line["ranks"]["1"]
            known.update(dict.fromkeys(("iteration", "done")))
            known.update({key: None for key in ("first_iteration", "first_step_ns") if key in known})
            known["sections"].pop("step", None)
    write_lines(path, lines)


@pytest.mark.parametrize(
    ("generations", "steps", "repeated"),
    [
        ((0,), 1, 0),  # it has failed while the other one was in its first step, which that leaves by an exception
        ((0,), 3, 0),  # ranks that do not wait for each other
        ((0, 1), 3, 3),  # a rank that takes no steps
    ],
)
def test_what_a_rank_has_not_done_that_had_come_to_no_step_was_not_done(
    tmp_path: Path, generations: Sequence[int], steps: int, repeated: int
) -> None:
    run = invent_run(tmp_path, failures=[Failure(steps, 1)], steps=20, save_every=1000)
    assert reported(run).ledger.repeated == steps
    without_steps(run, generations)

    ledger = reported(run).ledger
    assert (ledger.repeated, ledger.steps, ledger.is_count_about) == (repeated, 20, False)
    assert_adds_up(ledger)
