"""What a report says where lines are missing, or ranks did not tell everything: never a figure that is not known."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.reports.build import make_report
from launcher.reports.folders import run_folders
from launcher.reports.formats import duration
from launcher.reports.model import Ledger, Report
from launcher.reports.page import page
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import EPOCH, Failure, InventedRun, begin_later, invent_run

CLOSE = 1e-6


def reported(run: InventedRun) -> Report:
    report = make_report([str(folder) for folder in run.folders])
    assert_adds_up(report.ledger)
    return report


def assert_adds_up(ledger: Ledger) -> None:
    assert sum(entry.seconds for entry in ledger.entries) == pytest.approx(ledger.wall_seconds, abs=CLOSE)
    for row in ledger.by_rank:
        assert sum(row.seconds) == pytest.approx(row.wall_seconds, abs=CLOSE)


def seconds(report: Report) -> dict[str, float]:
    return {entry.category.key: entry.seconds for entry in report.ledger.entries}


def rows_about(report: Report) -> set[str]:
    return {entry.category.key for entry in report.ledger.entries if entry.is_about}


def rewritten(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change each line of a file; None leaves it out."""
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None))


# ---- ranks that tell of no steps -------------------------------------------------------------------------


def without_steps(run: InventedRun, *, resumes: bool = True, saves: bool = True, iterations: bool = True) -> None:
    """Turn the figures into those of ranks that use bare sections and note their iterations."""
    removed: dict[str, Any] = {"done": None, "first_iteration": None, "first_step_ns": None}
    removed |= {} if resumes else {"resumed_from": None}
    removed |= {} if saves else {"saves": [], "saved": None}
    removed |= {} if iterations else {"iteration": None}

    def change(line: dict[str, Any]) -> dict[str, Any]:
        for facts in line["ranks"].values():
            facts.update({key: value for key, value in removed.items() if key in facts})
        return line

    rewritten(run.folders[0] / "figures.jsonl", change)


def test_without_a_step_and_any_other_section_the_setup_is_no_productive_time(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=1)
    setup_ns = round(run.lives[0].sections[0].end * 1e9)
    (began,) = (
        e
        for line in (run.folders[0] / "events.jsonl").read_text().splitlines()
        if (e := json.loads(line))["event"] == "began"
    )

    def change(line: dict[str, Any]) -> dict[str, Any]:
        for facts in line["ranks"].values():
            facts |= {"iteration": None, "done": None, "open": {}}
            facts["sections"] = {name: each for name, each in facts["sections"].items() if name == "setup"}
            if line["is_full"] and facts["last_sign_ns"] is not None:
                signs = min(facts["last_sign_ns"], began["t_ns"] + setup_ns)
                facts |= {"first_iteration": None, "first_step_ns": None, "last_sign_ns": signs}
        return line

    rewritten(run.folders[0] / "figures.jsonl", change)
    report = reported(run)
    assert set(seconds(report)) == {"start", "idle"}
    assert (report.ledger.steps, report.ledger.repeated) == (None, 0)
    (note,) = report.notes
    assert note.endswith("so it is not known how many iterations were kept")
    assert seconds(report)["start"] == pytest.approx(setup_ns / 1e9, abs=1e-3)


def test_without_steps_the_time_that_was_lost_is_known_by_the_save_and_the_iterations_are_not(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    without_steps(run)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated, report.incidents[0].repeated) == (None, None, None)
    assert seconds(report)["lost_work"] == pytest.approx(run.truth.seconds["lost_work"], abs=1e-3)
    assert "; steps kept and done again: not known" in "\n".join(text_of(report))
    assert "iterations kept: not known, done again: not known" in page(report)
    assert any("generation(s) 0-1: no line of figures tells with which step" in note for note in report.notes)


@pytest.mark.parametrize("resumes", [True, False])
def test_without_steps_and_saves_what_was_done_again_is_not_called_productive(tmp_path: Path, resumes: bool) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    without_steps(run, saves=False, resumes=resumes)
    report = reported(run)
    first = run.lives[0]
    assert seconds(report)["unknown"] == pytest.approx(first.last_sign - first.started - 1.0, abs=1e-3)
    assert "lost_work" not in seconds(report)
    assert (report.ledger.repeated, report.incidents[0].cost_seconds) == (None, None)
    assert any("generation(s) 0: something was done again" in note for note in report.notes)


def test_without_iterations_whether_something_was_lost_is_not_known(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    without_steps(run, saves=False, resumes=False, iterations=False)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated) == (None, None)
    assert {"unknown", "lost_work"}.isdisjoint(seconds(report))
    assert any("generation(s) 0: whether something was lost is not known" in note for note in report.notes)


@pytest.mark.parametrize("resumes", [True, False])
def test_without_notes_of_saves_all_that_were_over_by_the_last_sign_are_checkpointing(
    tmp_path: Path, resumes: bool
) -> None:
    run = invent_run(tmp_path, failures=[Failure(22, 1)], steps=42, lines=4)
    without_steps(run, saves=False, resumes=resumes, iterations=False)
    report = reported(run)
    saves = [section for life in run.lives for section in life.sections if section.name == "checkpointing"]
    assert len(saves) == 2 + 2
    assert seconds(report)["checkpointing"] == pytest.approx(sum(save.end - save.start for save in saves), abs=1e-3)
    assert rows_about(report) == {"productive", "checkpointing"}, "whether any of it was lost is not known"


def test_a_save_that_may_have_been_over_by_the_last_sign_is_half_counted_and_marked(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(22, 1)], steps=40, lines=4)
    without_steps(run, saves=False, resumes=False, iterations=False)

    def change(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["generation"] == 0 and line["is_last"]:  # both were killed, and left their sections then
            for facts in line["ranks"].values():
                facts["last_sign_ns"] = line["t_ns"] - 1_000_000
        return line

    rewritten(run.folders[0] / "figures.jsonl", change)
    report = reported(run)
    first, last = (life.sections for life in run.lives)
    certain = sum(section.name == "checkpointing" for section in last)
    possible = sum(section.name == "checkpointing" for section in first)
    assert certain < seconds(report)["checkpointing"] < certain + possible
    assert {entry.category.key for entry in report.ledger.entries if entry.is_about} == {"productive", "checkpointing"}


def test_with_heartbeats_how_long_saves_held_up_the_steps_is_not_known(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(27, 1)], steps=49)
    assert not any("are no sections 'checkpointing'" in note for note in reported(run).notes)

    def change(line: dict[str, Any]) -> dict[str, Any]:
        for facts in line["ranks"].values():
            facts["sections"] = {}
            facts["saves"] = [{**save, "checkpointing_ns": 0} for save in facts.get("saves", ())]
        return line

    rewritten(run.folders[0] / "figures.jsonl", change)
    report = reported(run)
    assert "checkpointing" not in seconds(report)
    assert [entry.category.key for entry in report.ledger.entries if entry.is_about] == ["productive"]
    assert any("are no sections 'checkpointing'" in note for note in report.notes)


def test_a_job_without_steps_that_never_failed_has_nothing_done_again(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=30)
    without_steps(run)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated) == (None, 0)
    assert "; steps kept: not known, 0 done again" in "\n".join(text_of(report))


def test_where_no_rank_tells_of_anything_nothing_is_known_but_when_processes_began_and_ended(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(7, 1)], steps=30)

    def silent(line: dict[str, Any]) -> dict[str, Any] | None:
        return None if line["event"] == "phases" else line

    (run.folders[0] / "figures.jsonl").unlink()
    rewritten(run.folders[0] / "events.jsonl", silent)
    report = reported(run)
    first, last = run.lives
    assert first.seen is not None
    whole = first.seen - first.started + last.stopped - last.started
    assert seconds(report)["unknown"] == pytest.approx(whole, abs=0.3)
    assert "productive" not in seconds(report)
    assert seconds(report)["start"] == pytest.approx(first.started, abs=1e-3)
    assert any("no rank has told of a step, a section or a heartbeat" in note for note in report.notes)
    assert not any("part of what is called productive" in note for note in report.notes)


def test_a_last_failure_without_steps_has_no_count_of_what_is_done_again(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(7, 1), Failure(17, 0)], steps=30, ends_with="failed", has_saves=False)
    without_steps(run)
    report = reported(run)
    assert [incident.repeated for incident in report.incidents] == [None, None]
    assert [generation.repeated for generation in report.generations] == [None, None]


def test_a_line_that_tells_of_a_step_but_not_when_the_first_one_began_makes_no_start(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)

    def change(line: dict[str, Any]) -> dict[str, Any]:
        if line["generation"] == 0:
            for facts in line["ranks"].values():
                facts.update({key: None for key in ("first_iteration", "first_step_ns") if key in facts})
        return line

    rewritten(run.folders[0] / "figures.jsonl", change)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated) == (None, None)
    assert seconds(report)["unknown"] == pytest.approx(run.lives[0].last_sign - run.lives[0].started, abs=1e-3)


@pytest.mark.parametrize("has_ended", [True, False])
def test_of_iterations_that_begin_anew_neither_costs_nor_intervals_are_told(tmp_path: Path, has_ended: bool) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=60)

    def change(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["event"] == "ended":
            return {**line, "went_back": True} if has_ended else None
        for facts in line.get("ranks", {}).values() if not has_ended and line["event"] == "figures" else ():
            facts |= {"went_back": True} if line["is_full"] and line["generation"] == 1 else {}
        return line

    for name in ("events.jsonl", "figures.jsonl"):
        rewritten(run.folders[0] / name, change)
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated, report.ledger.step_seconds) == (None, None, None)
    assert (report.incidents[0].cost_seconds, report.incidents[0].repeated) == (None, None)
    assert any("iterations were not counted on" in note for note in report.notes)
    assert {"productive", "checkpointing"} <= rows_about(report), "lost work is part of them"
    assert has_ended == ("start" not in rows_about(report)), "the last lines may be on no disk"
    (interval,) = (each for each in report.recommendations if each.about == "checkpoint interval")
    assert "steps" not in interval.text


def test_of_iterations_that_begin_anew_nothing_was_lost_without_a_failure(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=60)
    rewritten(run.folders[0] / "events.jsonl", lambda line: line | {"went_back": True})
    report = reported(run)
    assert report.ledger.repeated is None
    assert not rows_about(report)


@pytest.mark.parametrize(("loaded", "is_about"), [(30, True), (0, False)])
def test_what_a_rank_has_given_up_that_went_back_by_itself_makes_productive_an_estimate(
    tmp_path: Path, loaded: int, is_about: bool
) -> None:
    run = invent_run(tmp_path, failures=0, steps=60)

    def change(line: dict[str, Any]) -> dict[str, Any]:
        for facts in line.get("ranks", {}).values():
            facts |= {"resumed_from": loaded, "went_back": True} if line.get("is_last") else {}
        return line

    for name in ("events.jsonl", "figures.jsonl"):
        rewritten(run.folders[0] / name, change)
    report = reported(run)
    assert report.ledger.steps is None
    assert ({"productive", "checkpointing"} <= rows_about(report)) == is_about


def test_lines_that_name_lower_iterations_than_before_tell_so_too(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=60)

    def change(line: dict[str, Any]) -> dict[str, Any]:
        for facts in line["ranks"].values():
            facts |= {key: facts[key] % 20 for key in ("iteration", "done") if facts.get(key) is not None}
        return line

    rewritten(run.folders[0] / "figures.jsonl", change)
    assert reported(run).ledger.repeated is None


def test_without_the_folders_of_all_nodes_what_was_counted_is_about_right(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 3)], steps=40, own_folders=True)
    report = make_report([str(run.folders[0])])
    assert report.ledger.is_count_about
    assert "; ~40 steps kept, ~7 done again" in "\n".join(text_of(report))
    assert "~40 iterations kept, ~7 done again" in page(report)
    assert "~7 iterations" in page(report)
    assert not reported(run).ledger.is_count_about
    assert not any(entry.is_about for entry in reported(run).ledger.entries if entry.category.key == "lost_work")
    assert "~7 iterations" not in page(reported(run))


# ---- lines that were lost --------------------------------------------------------------------------------


def without_end(run: InventedRun, *, after: float, lost: bool = True) -> float:
    """Leave out the figures of the first generation after a time, as a full disk does; return when its last line is."""
    path = run.folders[0] / "figures.jsonl"
    last_ns: int = 0
    began_ns: int = json.loads((run.folders[0] / "events.jsonl").read_text().splitlines()[0])["t_ns"]
    removed = 0

    def change(line: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal last_ns, removed
        if line["generation"] == 0 and line["t_ns"] - began_ns > after * 1e9:
            removed += 1
            return None
        if line["generation"] == 0:
            last_ns = max(last_ns, line["t_ns"])
        return line

    rewritten(path, change)
    if lost:
        line = {"event": "lost", "t_ns": began_ns + 10**12, "time": "", "lines": removed}
        path.write_text(path.read_text() + json.dumps(line) + "\n")
    return (last_ns - began_ns) / 1e9


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("kind", ["failure", "hang"])
def test_what_came_after_the_last_line_of_a_generation_is_unknown(tmp_path: Path, kind: str, lost: bool) -> None:
    run = invent_run(tmp_path, failures=[Failure(27, 1, kind, 5.0)], steps=40, lines=200)
    first = run.lives[0]
    told = without_end(run, after=40.0, lost=lost)
    report = reported(run)
    found = seconds(report)
    # The incident tells since when the section was open in which it failed.
    assert found["unknown"] == pytest.approx(first.last_sign - told, abs=1e-3)
    assert found["detection"] == pytest.approx(run.truth.seconds["detection"], abs=1e-3)
    assert (report.ledger.steps, report.ledger.repeated, report.generations[0].done) == (None, None, None)
    assert (report.incidents[0].cost_seconds, report.incidents[0].repeated) == (None, None)
    assert any("generation(s) 0: the last lines of figures are missing" in note for note in report.notes)
    assert any("line(s) of figures are missing" in note for note in report.notes) == lost


def test_without_the_incident_too_detection_is_no_better_known_than_the_rest(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(27, 1)], steps=40, lines=200)
    told = without_end(run, after=25.0)
    shutil.rmtree(run.folders[0] / "incidents")
    report = reported(run)
    found, first = seconds(report), run.lives[0]
    assert first.seen is not None
    assert found["unknown"] == pytest.approx(first.seen - told, abs=1e-3)
    assert {"detection", "lost_work"}.isdisjoint(found)
    assert not any("interpolated" in note for note in report.notes)
    (incident,) = report.incidents
    assert [(culprit.rank, culprit.node) for culprit in incident.culprits] == [(1, "node0")]
    assert "rank 1 on node0" in "\n".join(text_of(report))
    page(report)


def test_of_a_generation_of_which_nothing_is_left_no_step_is_counted(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(20, 0), Failure(35, 1)], steps=60, lines=200)
    folder = run.folders[0]
    for name in ("events.jsonl", "figures.jsonl"):
        rewritten(folder / name, lambda line: None if line.get("generation") == 1 else line)
    shutil.rmtree(folder / "incidents" / "0002")
    report = reported(run)
    assert [generation.number for generation in report.generations] == [0, 2]
    assert (report.ledger.steps, report.ledger.repeated) == (None, None)
    assert any("generation(s) 1: nothing is left of them" in note for note in report.notes)


def test_what_is_done_again_after_a_generation_of_which_nothing_is_left_is_known(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(20, 0), Failure(35, 1), Failure(47, 0)], steps=60, lines=200)
    folder = run.folders[0]
    whole = [generation.repeated for generation in reported(run).generations]
    for name in ("events.jsonl", "figures.jsonl"):
        rewritten(folder / name, lambda line: None if line.get("generation") == 1 else line)
    shutil.rmtree(folder / "incidents" / "0002")
    report = reported(run)
    assert [generation.number for generation in report.generations] == [0, 2, 3]
    assert [generation.repeated for generation in report.generations] == [None, *whole[2:]]
    assert whole[2] not in (None, 0)


def test_a_last_generation_whose_figures_are_missing_is_not_idle(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=30, has_figures=False)
    (life,) = run.lives
    found = seconds(reported(run))
    assert found["idle"] == pytest.approx(run.seconds - life.stopped, abs=1e-3)
    assert found["unknown"] == pytest.approx(life.stopped - life.started - 1.0, abs=1e-3)


def test_of_a_launcher_that_was_killed_everything_up_to_the_last_line_is_known(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=60, lines=200)
    events, figures = (run.folders[0] / name for name in ("events.jsonl", "figures.jsonl"))
    began_ns = json.loads(events.read_text().splitlines()[0])["t_ns"]
    life = run.lives[1]
    iteration, saved_at, _ = life.saves[1]
    kept = [step for step in life.sections if step.name == "step" and step.end <= saved_at + 4.0]

    def change(line: dict[str, Any]) -> dict[str, Any] | None:
        return line if line["t_ns"] - began_ns <= (saved_at + 5.0) * 1e9 else None

    for path in (events, figures):
        rewritten(path, change)
    lines = figures.read_text().splitlines()
    assert not json.loads(lines[-1])["is_full"]
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated) == (iteration, 7)
    assert report.generations[1].done in (kept[-1].iteration, kept[-1].iteration - 1)
    (final,) = (note for note in report.notes if "has gone on from generation 1" in note)
    assert f"generation 1: what it did since the save of iteration {iteration}" in final
    assert final.endswith("which is about right only: its last lines are missing, and a later save may be in them")
    about = {entry.category.key: entry.is_about for entry in report.ledger.entries}
    assert all(about.values()), "its last lines may be on no disk"
    assert seconds(report)["start"] == pytest.approx(run.truth.seconds["start"], abs=1e-3)


@pytest.mark.parametrize("is_in_first_step", [False, True])
def test_what_a_later_run_goes_on_from_was_done_whenever_the_launcher_was_killed(
    tmp_path: Path, is_in_first_step: bool
) -> None:
    first = invent_run(tmp_path, "first", failures=[Failure(25, 0)], lines=200, ends_with="failed")
    begins = {"began_epoch": EPOCH + first.seconds + 1, "boot_seconds": 5_001.0 + first.seconds}
    second = invent_run(tmp_path, "second", failures=[], steps=40, resumed_from=20, **begins)
    (life,) = first.lives
    began_ns = json.loads((first.folders[0] / "events.jsonl").read_text().splitlines()[0])["t_ns"]
    last_ns = began_ns + (life.saves[1][1] - 5.0) * 1e9
    if is_in_first_step:
        assert life.first_step is not None
        last_ns = began_ns + (life.first_step + 1.5) * 1e9
    for name in ("events.jsonl", "figures.jsonl"):
        rewritten(first.folders[0] / name, lambda line: line if line["t_ns"] <= last_ns else None)
    shutil.rmtree(first.folders[0] / "incidents")
    report = make_report([str(first.folders[0]), str(second.folders[0])])
    assert report.generations[0].done in ((None,) if is_in_first_step else (16, 17))
    assert (report.ledger.steps, report.ledger.repeated, report.ledger.is_count_about) == (40, 0, True)
    if not is_in_first_step:
        (interval,) = (each for each in report.recommendations if each.about == "checkpoint interval")
        assert interval.samples == 1, "it was no end that anybody has ordered"


def test_of_a_node_alone_it_is_not_known_that_nothing_has_gone_on_from_it(tmp_path: Path) -> None:
    failure = Failure(17, 1)
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[failure], steps=40, own_folders=True, ends_with="failed")
    for folders, is_about in (run.folders[1:], True), (run.folders, False):
        report = make_report([str(folder) for folder in folders])
        (final,) = (note for note in report.notes if "has gone on from generation 0" in note)
        assert ("other nodes, whose folders are not here, may have gone on" in final) == is_about
        (lost,) = (entry for entry in report.ledger.entries if entry.category.key == "lost_work")
        assert lost.is_about == is_about


def test_absurd_numbers_are_damage(tmp_path: Path) -> None:
    run = invent_run(tmp_path, near_misses=1, back_off_seconds=2.0)
    huge = 10**400

    def figures(line: dict[str, Any]) -> dict[str, Any]:
        if line["is_last"] and line["generation"] == 1:
            line["ranks"]["0"]["sections"]["step"]["took_ns"] = huge
        return line

    def events(line: dict[str, Any]) -> dict[str, Any]:
        if line["event"] in ("started", "hang", "failure") and line["generation"] == 2:
            line |= {"pids": 7, "condemned": True, "culprits": {"1": {}}}
        if line["event"] == "began":
            line["configuration"]["safety_factor"] = float("inf")
        absurd = {"near_miss": "late_seconds", "backing_off": "seconds", "began": "process_began_ns"}
        return {**line, absurd[line["event"]]: huge} if line["event"] in absurd else line

    rewritten(run.folders[0] / "figures.jsonl", figures)
    rewritten(run.folders[0] / "events.jsonl", events)
    report = reported(run)
    page(report)
    assert any("a damaged line of figures is left out" in note for note in report.notes)
    assert [(miss.late_seconds, miss.is_late_at_most) for miss in report.near_misses] == [(0.004, True)]


# ---- files that were removed in mid-run ------------------------------------------------------------------


def emptied(run: InventedRun, at: float, folder: int = 0) -> float:
    """Make the files anew, as launchers do when their log folder was emptied; return when the first line left is."""
    first_ns: list[int] = []
    began: dict[str, Any] = json.loads((run.folders[folder] / "events.jsonl").read_text().splitlines()[0])
    about = {key: began[key] for key in ("version", "node", "boot", "launcher")}
    for name in ("events.jsonl", "figures.jsonl"):
        path = run.folders[folder] / name
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [line for line in lines if line["t_ns"] > began["t_ns"] + at * 1e9]
        first_ns.append(kept[0]["t_ns"])
        lost = {
            "event": "lost",
            "t_ns": kept[0]["t_ns"] + 1,
            "time": kept[0]["time"],
            "lines": len(lines) - len(kept),
            **about,
        }
        path.write_text("".join(json.dumps(line) + "\n" for line in (lost, *kept)))
    began_ns: int = began["t_ns"]
    return (min(first_ns) - began_ns) / 1e9


def test_of_a_launcher_whose_files_were_removed_the_rest_is_told(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(27, 1), Failure(38, 0)], steps=60, lines=200)
    first = run.lives[0]
    began = emptied(run, first.saves[0][1] + 4.0)
    report = reported(run)
    found, truth = seconds(report), run.truth.seconds
    assert report.ledger.wall_seconds == pytest.approx(run.seconds - began, abs=1e-3)
    for key in ("lost_work", "detection", "stop", "rendezvous", "idle"):
        assert found[key] == pytest.approx(truth[key], abs=1e-3), key
    assert found["start"] == pytest.approx(
        sum((life.first_step or 0.0) - life.started for life in run.lives[1:]), abs=1e-3
    )
    assert first.first_step is not None
    assert found["productive"] == pytest.approx(truth["productive"] - (began - first.first_step - 1.0), abs=1e-3)
    assert found["checkpointing"] == pytest.approx(truth["checkpointing"] - 1.0, abs=1e-3)
    assert "unknown" not in found
    assert (report.ledger.repeated, report.ledger.steps, report.ledger.step_seconds) == (7 + 8, 60, None)
    assert "; ~60 steps kept, ~15 done again" in "\n".join(text_of(report))
    assert [[culprit.rank for culprit in incident.culprits] for incident in report.incidents] == [[1], [0]]
    assert (report.runs[0].restarts, report.runs[0].is_about) == (2, True)
    assert any("its first events are missing" in note for note in report.notes)
    assert not any("figures.jsonl is left out" in note for note in report.notes)


def test_the_head_of_a_run_whose_files_were_removed_marks_what_it_counts(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(7, 1), Failure(17, 0), Failure(27, 1)], steps=40, lines=200)
    emptied(run, run.lives[2].started + 2.0)
    report = reported(run)
    assert [generation.number for generation in report.generations] == [0, 1, 2, 3], "of two, incidents are left"
    assert "  ~2 ranks on ~1 node, succeeded (exit code 0), ~3 restarts" in text_of(report)
    assert (report.ledger.steps, report.ledger.repeated) == (None, None), "of two generations no figures are left"
    assert [incident.repeated for incident in report.incidents] == [None, None, 7]
    shown = page(report)
    assert "~2 ranks on ~1 node" in shown
    assert "<dd>~3</dd>" in shown


@pytest.mark.parametrize("damage", [{"pids": 7}, {"pids": {}}])
def test_a_number_of_ranks_that_is_not_known_is_not_called_none(tmp_path: Path, damage: dict[str, Any]) -> None:
    run = invent_run(tmp_path, failures=0, steps=20, has_figures=False)
    rewritten(run.folders[0] / "events.jsonl", lambda e: e | damage if e["event"] == "started" else e)
    report = reported(run)
    assert report.runs[0].world_size is None
    assert any(line.startswith("  an unknown number of ranks on ") for line in text_of(report))
    assert "an unknown number of ranks on " in page(report)


def test_without_the_folder_of_a_node_the_head_says_how_many_nodes_there_were(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 1)], steps=30, own_folders=True)
    report = make_report([str(run.folders[0])])
    assert any(
        line.startswith("  ~2 ranks on ~2 nodes, succeeded (exit code 0), ~1 restart") for line in text_of(report)
    )


def test_of_a_run_whose_files_were_removed_it_is_not_known_whether_it_runs_where_none_tells_of_its_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a launcher of an earlier release; others repeat it."""
    run = invent_run(tmp_path, failures=1, is_going_on=True)
    emptied(run, run.lives[1].started - 5.0)
    monkeypatch.setattr("launcher.reports.launches.time.time", lambda: EPOCH + run.seconds)
    monkeypatch.setattr("launcher.reports.launches.boot_id", lambda: "boot-0")
    report = reported(run)
    assert (report.is_running, report.runs[0].may_run) == (False, True)


@pytest.mark.parametrize("is_there", [False, True])
def test_where_the_figures_alone_are_left_they_are_reported(tmp_path: Path, is_there: bool) -> None:
    run = invent_run(tmp_path / "logs", failures=0, steps=60, lines=200)
    (folder,) = run.folders
    (folder / "events.jsonl").unlink()
    if is_there:
        (folder / "events.jsonl").touch()
    (found,) = run_folders([str(folder.parent)])
    assert found == str(folder.resolve())
    report = make_report([found])
    (told,) = report.runs
    assert (told.restarts, told.is_about, told.outcome, told.is_running) == (0, True, None, False)
    assert any("the file of its events is missing" in note for note in report.notes)
    assert not any("as when it is killed" in note for note in report.notes)
    found_seconds = seconds(report)
    assert found_seconds["checkpointing"] == pytest.approx(run.truth.seconds["checkpointing"], abs=1e-3)


def test_a_run_whose_figures_alone_are_left_may_go_on_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = invent_run(tmp_path, failures=0, is_going_on=True)
    (run.folders[0] / "events.jsonl").unlink()
    monkeypatch.setattr("launcher.reports.launches.time.time", lambda: EPOCH + run.seconds)
    report = reported(run)
    assert (report.is_running, report.runs[0].may_run, report.runs[0].ended) == (False, True, None)
    assert "still running" not in page(report) + "".join([*text_of(report), *report.notes])
    assert "not known whether it has ended or still runs" in " ".join(report.notes)
    assert all("not known whether it still runs" in shown for shown in (page(report), "\n".join(text_of(report))))


def test_a_node_whose_events_are_missing_is_not_called_lost(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 1)], steps=40, own_folders=True)
    (run.folders[1] / "events.jsonl").unlink()
    (told,) = reported(run).runs
    assert (told.outcome, told.nodes_lost, told.nodes) == ("succeeded", 0, 2)


# ---- nodes that were lost --------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [0.0, 7.5])
def test_a_job_that_ended_well_after_a_node_was_lost_says_both(tmp_path: Path, skew: float) -> None:
    run = invent_run(tmp_path, ranks=6, nodes=3, failures=[Failure(17, 3)], steps=40, own_folders=True, skew=skew)
    lost = run.folders[1]
    seen = run.lives[0].seen
    assert seen is not None
    began_ns = json.loads((lost / "events.jsonl").read_text().splitlines()[0])["t_ns"]
    for name in ("events.jsonl", "figures.jsonl"):
        rewritten(lost / name, lambda line: line if line["t_ns"] < began_ns + (seen - 0.5) * 1e9 else None)
    shutil.rmtree(lost / "incidents")
    for folder in (run.folders[0], run.folders[2]):  # the others have met without it
        rewritten(
            folder / "events.jsonl",
            lambda e: e | {"nodes": 2} if e["event"] == "rendezvous" and e["generation"] == 1 else e,
        )
    last_ns = max(
        json.loads((lost / name).read_text().splitlines()[-1])["t_ns"] for name in ("events.jsonl", "figures.jsonl")
    )
    report = reported(run)
    assert report.ledger.wall_seconds == pytest.approx(run.seconds, abs=1e-3)
    assert all(row.wall_seconds == pytest.approx(run.seconds, abs=1e-3) for row in report.ledger.by_rank)
    assert seconds(report)["absent"] == pytest.approx((run.seconds - (last_ns - began_ns) / 1e9) / 3, abs=1e-3)
    assert run.lives[0].done == 16
    assert (report.ledger.steps, report.ledger.repeated, report.ledger.is_count_about) == (40, 7, True)
    (told,) = report.runs
    assert (told.outcome, told.exit_code, told.nodes_lost, told.is_running) == ("succeeded", 0, 1, False)
    assert told.ended is not None
    text = "\n".join(text_of(report))
    assert "6 ranks on 3 nodes, succeeded (exit code 0), 1 node was lost, 1 restart" in text
    assert f"{duration(run.seconds)};" in text
    assert "succeeded (exit code 0), 1 node was lost" in page(report)


def test_a_node_that_began_later_was_not_in_the_job_before(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 3)], steps=40, own_folders=True)
    begin_later(run.folders[1], 2.0)
    report = reported(run)
    assert seconds(report)["absent"] == pytest.approx(1.0, abs=1e-3)
    assert report.ledger.wall_seconds == pytest.approx(run.seconds, abs=1e-3)
    assert report.runs[0].nodes_lost == 0


def test_whether_a_node_was_in_the_job_before_its_first_line_is_not_known_where_lines_are_missing(
    tmp_path: Path,
) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 1)], steps=40, own_folders=True)
    began = emptied(run, run.lives[1].started - 1.0, folder=1)
    found = seconds(reported(run))
    assert "absent" not in found
    assert found["unknown"] == pytest.approx(began / 2, abs=1e-3)
    assert sum(found.values()) == pytest.approx(run.seconds, abs=1e-3)


def test_whether_a_node_was_in_the_job_after_its_last_line_is_not_known_where_no_one_has_missed_it(
    tmp_path: Path,
) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 1)], steps=40, own_folders=True)
    began_ns = json.loads((run.folders[1] / "events.jsonl").read_text().splitlines()[0])["t_ns"]
    last_ns = began_ns + round((run.lives[1].last_sign - 5.0) * 1e9)
    for name in ("events.jsonl", "figures.jsonl"):
        rewritten(run.folders[1] / name, lambda line: line if line["t_ns"] <= last_ns else None)
    assert {"absent", "unknown"} & seconds(reported(run)).keys() == {"unknown"}


def test_where_a_node_has_left_its_figures_alone_and_another_its_events_alone_steps_are_counted(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 1)], steps=40, own_folders=True)
    (run.folders[0] / "events.jsonl").unlink()
    (run.folders[1] / "figures.jsonl").unlink()
    ledger = reported(run).ledger
    assert (ledger.steps, ledger.repeated, ledger.is_count_about) == (40, 7, True)


@pytest.mark.parametrize("how", ["gone", "cut", "another generation"])
def test_what_rests_on_an_incident_that_cannot_be_read_is_marked(tmp_path: Path, how: str) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)])
    whole = reported(run)
    folder = run.folders[0] / "incidents" / "0001"
    if how == "gone":
        shutil.rmtree(folder.parent)
    else:
        text = (folder / "incident.json").read_text()
        (folder / "incident.json").write_text(
            text[:100] if how == "cut" else text.replace('"generation": 0', '"generation": 7')
        )
    report = reported(run)
    text = "\n".join(text_of(report, 200))
    assert (whole.ledger.is_count_about, report.ledger.is_count_about) == (False, True)
    assert re.search(r"; ~\d+ steps kept, ~\d+ done again", text)
    about = {entry.category.key for entry in report.ledger.entries if entry.is_about}
    assert about >= {"productive", "checkpointing", "lost_work", "detection"}
    assert (how == "cut") == ("start" in about), "something was left out"
    note = next(note for note in report.notes if "about right only" in note)
    assert f"tells of incidents in generation(s) 0 that are not in {folder.parent}" in note
    assert "<dd>~" in page(report)
    assert not any("tells of incidents" in note for note in whole.notes)


def test_a_rank_without_a_save_of_the_state_that_was_resumed_from_makes_an_estimate_and_a_note(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=40)
    assert not reported(run).notes
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "saves" in line["ranks"]["1"] and line["generation"] == 0:
            line["ranks"]["1"]["saves"] = []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    report = reported(run)

    assert {entry.category.key for entry in report.ledger.entries if entry.is_about} == {"checkpointing", "productive"}
    (note,) = report.notes
    assert note.startswith("generation(s) 0: a rank has noted no save of the state that was resumed from")


def test_where_a_node_has_not_noted_when_a_failure_was_seen_a_note_says_so(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=2, nodes=2, failures=[Failure(17, 1)], steps=40, own_folders=True)
    shutil.rmtree(run.folders[0] / "elsewhere")

    report = reported(run)

    assert "detection" in {entry.category.key for entry in report.ledger.entries if entry.is_about}
    assert any(note.startswith("generation(s) 0: when the failure was seen is not noted") for note in report.notes)
