"""What is recommended, against values that were computed by hand or are published."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from launcher.reports.build import make_report
from launcher.reports.formats import duration
from launcher.reports.launches import SAFETY_FACTOR, THIN_EVIDENCE_FLOOR
from launcher.reports.model import Recommendation
from launcher.reports.page import page
from launcher.reports.recommend import daly, poisson_interval, young
from resilience_core.config.schema import FaultToleranceConfig
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run


def recommended(run: InventedRun, about: str) -> list[Recommendation]:
    report = make_report([str(folder) for folder in run.folders])
    return [each for each in report.recommendations if each.about == about]


@pytest.mark.parametrize(
    # Tables of Garwood's interval, as in Johnson, Kotz and Kemp: chi-squared quantiles halved.
    ("count", "low", "high"),
    [(1, 0.0253, 5.5716), (3, 0.6187, 8.7673), (10, 4.7954, 18.3904), (50, 37.1110, 65.9188)],
)
def test_the_interval_of_a_count_is_exact(count: int, low: float, high: float) -> None:
    assert poisson_interval(count) == pytest.approx((low, high), abs=1e-3)


def test_no_event_leaves_a_bound_alone() -> None:
    assert poisson_interval(0) == (0.0, pytest.approx(2.9957, abs=1e-4))


def test_the_formulas_are_those_that_were_published() -> None:
    assert young(300.0, 86_400.0) == pytest.approx(7200.0)  # sqrt(2 * 300 * 86400)
    part = 300.0 / (2 * 86_400.0)
    assert daly(300.0, 86_400.0) == pytest.approx(7200.0 * (1 + math.sqrt(part) / 3 + part / 9) - 300.0)
    assert daly(20.0, 10.0) == 10.0  # saving takes longer than twice the time between failures


def test_the_best_interval_has_the_least_waste() -> None:
    """Daly's model itself, computed numerically: the expected time of work of an hour with random failures."""

    def expected(interval: float) -> float:
        save, between = 5.0, 600.0
        return between * (math.exp((interval + save) / between) - 1) / interval

    best = daly(5.0, 600.0)
    numerically = min((tenth / 10 for tenth in range(100, 3000)), key=expected)
    assert best == pytest.approx(numerically, rel=0.01)


def test_an_interval_rests_on_what_was_measured(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=4)
    (interval,) = recommended(run, "checkpoint interval")
    ran = sum(life.last_sign - life.started for life in run.lives)
    assert interval.value == pytest.approx(daly(1.0, ran / 4), rel=1e-6)
    assert interval.samples == 4
    low, high = poisson_interval(4)
    assert (interval.low, interval.high) == pytest.approx((daly(1.0, ran / high), daly(1.0, ran / low)), rel=1e-6)
    assert f"{run.truth.saves} save(s) that took 1.00 s each" in interval.text
    assert "Now it is every 10 steps." in interval.text


def test_saves_that_training_has_gone_on_from_and_nobody_has_noted_make_their_number_uncertain(tmp_path: Path) -> None:
    """A save in a thread is complete after an exception has left the training, and is noted no more."""
    run = invent_run(tmp_path, failures=4)
    (interval,) = recommended(run, "checkpoint interval")
    assert f"on {run.truth.saves} save(s) that took 1.00 s each" in interval.text
    assert not interval.is_about
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for known in (rank for line in lines if line["generation"] == 1 for rank in line["ranks"].values()):
        if "saves" in known:
            known["saves"] = [save for save in known["saves"] if save["iteration"] != run.lives[2].resumed_from]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (interval,) = recommended(run, "checkpoint interval")
    assert re.search(rf"on ~{run.truth.saves - 1} save\(s\) that took ~\S+ s each", interval.text)
    assert interval.is_about
    said = "training has gone on from a save that no rank has noted"
    assert any(note.startswith(said) for note in make_report([str(run.folders[0])]).notes)


@pytest.mark.parametrize("every", [7, 10])
def test_how_often_it_saves_now_is_told_by_resumes_and_not_by_the_save_at_the_end(tmp_path: Path, every: int) -> None:
    """A generation saves twice: regularly, and some steps later, when the training is over."""
    run = invent_run(tmp_path, failures=[Failure(every + 3, 1)], steps=2 * every + 3, save_every=every)
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last = next(line for line in reversed(lines) if line["is_last"])
    for known in last["ranks"].values():
        save = known["saves"][-1]
        assert save["iteration"] == 2 * every
        late = {"iteration": 2 * every + 3, "done": 2 * every + 2, "t_ns": known["last_sign_ns"]}
        known["saves"].append(save | late)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (interval,) = recommended(run, "checkpoint interval")
    assert f"Now it is every {every} steps." in interval.text


def test_a_save_costs_what_it_holds_up_and_the_next_one_begins_after_it(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=4, beside_seconds=6.2)
    (interval,) = recommended(run, "checkpoint interval")
    saves = sum(len(life.saves) for life in run.lives)
    assert (interval.value, interval.high) == (None, None)
    assert interval.low == pytest.approx(6.2)
    assert f"in {saves} save(s) that held up the steps for 0 s of 6.20 s each, steps went on" in interval.text
    # Let each hold up the steps for a millisecond.
    figures = run.folders[0] / "figures.jsonl"
    text = re.sub(r'(?<="beside_ns": )\d+', lambda match: str(int(match[0]) * 6199 // 6200), figures.read_text())
    figures.write_text(text)
    (interval,) = recommended(run, "checkpoint interval")
    ran = sum(life.last_sign - life.started for life in run.lives)
    assert daly(0.001, ran / 4) < 6
    assert f"(Daly: {duration(daly(0.001, ran / 4))}, in which none is complete)" in interval.text
    assert (interval.value, interval.low) == (pytest.approx(6.199, abs=1e-3), pytest.approx(6.199, abs=1e-3))


def test_saves_of_all_nodes_count_whatever_ranks_took_longest(tmp_path: Path) -> None:
    """A node is lost, and the one save after that takes longest: that of a rank whose number was another's before."""
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(80, 3)], steps=95)
    for path in run.folders[0].glob("figures*"):
        lines = []
        for line in map(json.loads, path.read_text().splitlines()):
            for rank in list(line["ranks"]):
                if line["generation"] == 1 and int(rank) > 1:
                    del line["ranks"][rank]
                elif line["generation"] == 1 and "checkpointing" in line["ranks"][rank]["sections"]:
                    line["ranks"][rank]["sections"]["checkpointing"]["took_ns"] *= 2
                elif line["generation"] == 0 and int(rank) < 2:
                    line["ranks"][rank]["sections"].pop("checkpointing", None)
            lines.append(json.dumps(line) + "\n")
        path.write_text("".join(lines))
    (interval,) = recommended(run, "checkpoint interval")
    assert [len(life.saves) for life in run.lives] == [8, 1]
    assert "on ~9 save(s) that took ~1.11 s each" in interval.text


def test_what_saves_take_beside_writing_is_a_part_of_each(tmp_path: Path) -> None:
    """An asynchronous save is finalized in a section of its own, and an old one removed in another."""
    run = invent_run(tmp_path, failures=4)
    figures = run.folders[0] / "figures.jsonl"
    text = re.sub(r'(?<="checkpointing": {"closed": )\d+', lambda match: str(int(match[0]) * 3), figures.read_text())
    figures.write_text(text)
    (interval,) = recommended(run, "checkpoint interval")
    assert f"{run.truth.saves} save(s) that took 1.00 s each" in interval.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"failures": 4, "save_seconds": 1e-6, "step_seconds": 1e-5, "launcher_seconds": 0.1}, "failure(s) in"),
        ({"failures": [Failure(25, 0)], "steps": 28}, "2 save(s) and 1 failure(s) in"),
    ],
)
def test_from_too_little_no_interval_is_recommended(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    (interval,) = recommended(invent_run(tmp_path, **options), "checkpoint interval")
    assert (interval.value, interval.low, interval.high) == (None, None, None)
    assert said in interval.text
    assert "It takes 3 saves in 1 min 00 s at least." in interval.text


def test_from_two_failures_there_are_bounds_alone(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=2, steps=200)
    (interval,) = recommended(run, "checkpoint interval")
    ran = sum(life.last_sign - life.started for life in run.lives)
    low, high = poisson_interval(2)
    assert interval.value is None
    assert (interval.low, interval.high) == (pytest.approx(daly(1, ran / high)), pytest.approx(daly(1, ran / low)))
    assert "For one value it takes 3 failures." in interval.text


def stopping_itself(folder: Path, iteration: int) -> InventedRun:
    """Write a run that fails once, and then stops itself."""
    run = invent_run(folder, failures=[Failure(17, 0), Failure(iteration, 1)], ends_with="failed")
    events = run.folders[0] / "events.jsonl"
    lines = events.read_text().splitlines()
    stop = {**json.loads(lines[-1]), "event": "stopped_on_purpose", "generation": 1, "why": "low enough"}
    events.write_text("".join(f"{line}\n" for line in (*lines[:-1], json.dumps(stop), lines[-1])))
    return run


@pytest.mark.parametrize(("iteration", "is_about"), [(98, True), (100, False)])
def test_a_training_that_stops_itself_is_no_failure(tmp_path: Path, iteration: int, is_about: bool) -> None:
    run = stopping_itself(tmp_path, iteration)
    report = make_report([str(run.folders[0])])
    (interval,) = (each for each in report.recommendations if each.about == "checkpoint interval")
    assert interval.samples == 1
    # What it has not saved is not to be done again.
    assert report.ledger.repeated == run.truth.repeated == 7
    assert report.ledger.steps == iteration
    (life, _) = run.lives
    lost = {entry.category.key: entry.seconds for entry in report.ledger.entries}["lost_work"]
    assert lost == pytest.approx(life.last_sign - life.saves[0][1], abs=1e-3)
    # But it may have given up what it did since its last save.
    assert report.ledger.is_count_about == is_about
    assert any("the last save that was noted is that of iteration 90" in note for note in report.notes) == is_about
    about = {entry.category.key for entry in report.ledger.entries if entry.is_about}
    assert {"productive", "checkpointing"} <= about if is_about else not about


def test_without_a_failure_there_is_a_bound_alone(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=100)
    (interval,) = recommended(run, "checkpoint interval")
    assert interval.value is interval.high is None
    _, most = poisson_interval(0)
    assert interval.low == pytest.approx(daly(1.0, (run.lives[0].last_sign - run.lives[0].started) / most), rel=1e-6)
    assert "no more often than" in interval.text


def test_how_long_ranks_ran_is_about_right_where_an_incident_is_missing(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=3)

    def interval() -> Recommendation:
        report = make_report([str(folder) for folder in run.folders])
        return next(each for each in report.recommendations if each.about == "checkpoint interval")

    assert not interval().is_about
    shutil.rmtree(run.folders[0] / "incidents" / "0001")
    assert interval().is_about
    assert " in ~" in interval().text


def test_without_a_save_no_interval_is_recommended(tmp_path: Path) -> None:
    assert recommended(invent_run(tmp_path, failures=1, save_every=10_000), "checkpoint interval") == []


def test_a_limit_with_little_room_is_to_be_raised(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=1, slow_iteration=5)
    raised = next(each for each in recommended(run, "limit") if "section step" in each.text)
    assert raised.text.startswith("Raise the limit of section step from 30 s (configured) to 140 s: 10 % room is left")
    assert raised.option == "--ft-rank-section-timeouts step:140"
    assert raised.low == pytest.approx(27.0)


def test_a_limit_that_is_much_too_long_is_to_be_lowered_and_not_far_from_little(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=3)
    lowered = next(each for each in recommended(run, "limit") if "section setup" in each.text)
    assert lowered.text.startswith("Lower the limit of section setup from 600 s (configured) to 60 s")
    assert "no less than 60 s from so little" in lowered.text
    assert lowered.samples == 8


@pytest.mark.parametrize(
    ("floor", "least", "said"), [(30.0, 30, "30 s"), (0.0, 20, None), (None, 60, "60 s"), ("x", 60, "60 s")]
)
def test_limits_from_little_evidence_keep_to_the_floor_that_is_configured(
    tmp_path: Path, floor: Any, least: float, said: str | None
) -> None:
    run = invent_run(tmp_path, failures=3)
    path = run.folders[0] / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    events[0]["configuration"]["thin_evidence_floor"] = floor
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    lowered = next(each for each in recommended(run, "limit") if "section setup" in each.text)
    assert lowered.value == least
    assert ("no less than" in lowered.text) == (said is not None)
    assert said is None or f"no less than {said} from so little" in lowered.text


def test_the_defaults_are_those_of_the_configuration() -> None:
    defaults = {field.name: field.default for field in attrs.fields(FaultToleranceConfig)}
    assert (defaults["safety_factor"], defaults["thin_evidence_floor"]) == (SAFETY_FACTOR, THIN_EVIDENCE_FLOOR)


def test_a_hang_is_no_observation_of_a_section(tmp_path: Path) -> None:
    """A rank that waits for a hung one leaves its step when that is killed: that took long, and not by itself."""
    run = invent_run(tmp_path, failures=[Failure(40, 0, "hang", 31.0)])
    events, figures = run.folders[0] / "events.jsonl", run.folders[0] / "figures.jsonl"
    text = figures.read_text().splitlines(keepends=True)
    last = next(number for number, line in enumerate(text) if '"is_last": true' in line)
    text[last] = text[last].replace('"longest_ns": 2000000000', '"longest_ns": 31400000000')
    assert "31400000000" in text[last]
    line = json.loads(text[last])
    seen_ns = next(e["t_ns"] for e in map(json.loads, events.read_text().splitlines()) if e["event"] == "hang")
    for known in line["ranks"].values():
        known["open"], known["last_sign_ns"] = {}, seen_ns + 400_000_000
        known["sections"]["step"]["closed"] += 1
        known["sections"]["step"]["durations"]["35"] = 1
    text[last] = json.dumps(line) + "\n"
    figures.write_text("".join(text))
    limit = next(row for row in make_report([str(run.folders[0])]).limits if row.kind == "section step")
    assert limit.longest == pytest.approx(2.0)
    assert limit.room == pytest.approx(28 / 30)


def test_an_interval_rests_on_failures_and_a_limit_on_observations(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=4, slow_iteration=5)
    said = page(make_report([str(run.folders[0])]))
    assert "from 4 failures<" in said
    assert re.search(r"from [\d,]+ observations<", said)
