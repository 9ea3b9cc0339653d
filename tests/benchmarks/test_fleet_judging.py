"""The judge and the tables of `python -m benchmarks.fleet`, on tables made by hand, and its command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fleet.__main__ import main, parse_options
from benchmarks.fleet.faults import Healthy, Struck
from benchmarks.fleet.judging import GRACE, RECOVERY, Tally, bins, judge
from benchmarks.fleet.scenarios import clean, faulty, surroundings
from benchmarks.fleet.tables import (
    behind,
    behind_table,
    calibration,
    f1_table,
    false_table,
    held_table,
    how_often_first,
)

pytestmark = pytest.mark.benchmark_guard


def struck(slow: str, onset: int = 2, end: int | None = None) -> Struck:
    """A fault of the ranks that are ``x``."""
    return Struck(np.array([letter == "x" for letter in slow]), onset, end, Healthy(), np.random.default_rng(0))


def table(*windows: str) -> list[np.ndarray]:
    """Who was named: one line per window, ``x`` for a name."""
    return [np.array([letter == "x" for letter in line]) for line in windows]


def test_the_judge_counts_a_table_made_by_hand() -> None:
    named = table(
        "x....",  # rank 0 before its onset: false, and found later
        "...x.",  # rank 3 is healthy
        "x....",
        "x..x.",  # again: another episode of the same rank
        "x..x.",
        "x...x",  # at the end: 0 found, 1 missed, 4 false
    )
    tally = judge(named, struck("xx...", onset=2))
    assert (tally.found, tally.missed, tally.false, tally.false_at_end) == (1, 1, 3, 1)
    assert tally.episodes == 4
    assert tally.delays == [0]
    assert (tally.jobs, tally.reports) == (1, 6)
    assert tally.precision == 1 / 4
    assert tally.recall == 1 / 2
    assert tally.f1 == 2 / (2 + 1 + 3)
    assert tally.f1_at_end == 2 / (2 + 1 + 1)


def test_a_name_that_does_not_last_is_no_find() -> None:
    tally = judge(table(".", ".", "x", "x", "."), struck("x"))
    assert (tally.found, tally.missed, tally.false, tally.delays) == (0, 1, 0, [])
    assert (tally.noticed, tally.noticed_share) == (1, 1.0)
    assert judge(table("x", "x", ".", ".", "."), struck("x")).noticed == 0


def test_the_delay_is_counted_from_the_onset() -> None:
    assert judge(table("..", "..", "..", "..", "x.", "x."), struck("x.", onset=1)).delays == [3]


def test_a_fault_that_ends_is_found_during_it_and_false_long_after() -> None:
    end = 4
    for at, expected in [
        (end - 1, (1, 0, 0)),
        (end + GRACE - 1, (1, 0, 0)),
        (end + GRACE, (0, 1, 0)),
        (end + RECOVERY - 1, (0, 1, 0)),
        (end + RECOVERY, (0, 1, 1)),
    ]:
        lines = ["x" if window == at else "." for window in range(20)]
        tally = judge(table(*lines), struck("x", onset=2, end=end))
        assert (tally.found, tally.missed, tally.false) == expected, at


def test_tallies_add_up_and_state_rates() -> None:
    whole = Tally()
    for _ in range(2):
        whole.add(judge(table("...", "x..", "x.."), struck("...", onset=3), [{}, {0: 0.9}, {0: 0.99}]))
    assert (whole.jobs, whole.reports, whole.false, whole.episodes) == (2, 6, 2, 2)
    assert whole.false_per_job == 1.0
    assert whole.per_1000_job_days == 1000 * 1440 * 2 / 6
    assert whole.stated == [(0.9, False), (0.9, False)]
    assert math.isnan(whole.recall)
    assert whole.f1 == 0.0
    assert math.isnan(Tally().f1)
    assert Tally().as_json()["f1"] is None


def test_a_stated_confidence_is_right_after_the_onset_and_counted_once() -> None:
    stated = [{}, {1: 0.5}, {0: 0.7, 1: 0.9}, {0: 0.8}]
    tally = judge(table("..", ".x", "xx", "xx"), struck("x.", onset=2), stated)
    assert tally.stated == [(0.5, False), (0.7, True)]


def test_bins_compare_what_is_stated_with_what_is_right() -> None:
    found = bins([(0.5, True), (0.89, False), (0.9, True), (1.0, True)], (0.0, 0.5, 0.9, 1.1))
    assert found == [(0.5, 0.9, 2, pytest.approx(0.695), 0.5), (0.9, 1.1, 2, 0.95, 1.0)]


def tallies(**found: int) -> dict[str, Tally]:
    """Of ten slowed ranks, how many each rule found."""
    names = {"ours": "ours", "stopping": "ours, stop", "other": "other", "worse": "worse"}
    return {names[name]: Tally(found=count, missed=10 - count, jobs=1, reports=10) for name, count in found.items()}


@pytest.mark.parametrize(("ours", "mark"), [(10, ""), (7, ""), (6, "*")])
def test_the_table_marks_where_another_rule_is_better(ours: int, mark: str) -> None:
    row = tallies(ours=ours, stopping=10, other=7, worse=1)
    text = f1_table({"a scenario": row})
    assert text.splitlines()[1].split()[2] == f"{row['ours'].f1:.3f}{mark}"
    assert behind(row) == pytest.approx(row["other"].f1 - row["ours"].f1)


def test_the_table_of_stricter_rules_says_how_strict_they_are() -> None:
    head, row = held_table({"a scenario": tallies(ours=6, other=7)}, {"other": 2}).splitlines()
    assert head.split() == ["scenario", "ours", "other", "x1.21"]
    assert row.split() == ["a", "scenario", "0.750*", f"{14 / 17:.3f}"]


def test_only_the_scenarios_in_which_ours_is_behind_are_listed() -> None:
    rows = {"behind": tallies(ours=6, other=7), "level": tallies(ours=7, other=7)}
    assert [line.split()[0] for line in behind_table(rows).splitlines()] == ["scenario", "behind"]
    assert behind_table({"level": rows["level"]}) == ""
    assert how_often_first(rows) == "ours is the best or within 0.03 of it in 1 of 2 scenarios"


def test_each_fault_of_64_ranks_has_healthy_jobs_of_its_kind() -> None:
    healthy = {surroundings(spec): spec.name for spec in clean()}
    found = {spec.name: healthy.get(surroundings(spec)) for spec in faulty() if spec.ranks == 64}
    assert None not in found.values()
    assert found["noise: nodes 2 %, 10 % later, 64 ranks"] == "clean: nodes 2 %, 64 ranks"
    assert found["rows: three rows, 10 % later in one, 64 ranks"] == "clean rows: three rows, 64 ranks"
    assert found["stages: 2 stages, declared, 10 % later, 64 ranks"] == "clean stages: 2 stages, declared, 64 ranks"


def test_the_other_tables_say_what_was_counted() -> None:
    rows = {"healthy": {"ours": Tally(false=3, episodes=5, jobs=2, reports=1440, stated=[(0.95, True), (0.95, False)])}}
    assert false_table(rows).splitlines()[1].split() == ["healthy", "5,000", "(1.5)"]
    assert calibration(rows).splitlines()[1].split() == ["0.9", "to", "0.99", "2", "0.95000", "0.500"]


def test_the_command_prints_the_tables_and_keeps_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "fleet.json"
    arguments = ["--quick", "--ranks", "16", "--only", "2 stages, declared", "--seeds", "1", "--first-seed", "7"]
    assert main([*arguments, "--json", str(kept)]) == 0
    printed = capsys.readouterr().out
    assert "seeds 7 to 7" in printed
    assert "stages: 2 stages, declared, 10 % later, 16 ranks" in printed
    assert "clean stages: 2 stages, declared, 16 ranks" in printed
    assert "in 1 of 1 scenarios" in printed
    written = json.loads(kept.read_text(encoding="utf-8"))
    assert (written["first_seed"], written["seeds"], written["cores"] > 0) == (7, 1, True)
    (row,) = written["faulty"].values()
    assert row["ours"]["found"] == 1
    assert row["ours"]["f1"] == 1.0
    assert list(written["clean"]) == ["clean stages: 2 stages, declared, 16 ranks"]
    assert "F1 where each other rule is so many times as strict" in printed
    assert "where each other rule knows which healthy jobs" in printed
    assert list(written["held"]) == list(written["told"]) == list(written["faulty"])
    assert written["factors"]["MAD 3.5"] > 1.0
    assert written["held"][next(iter(written["held"]))]["MAD 3.5"]["false"] == 0


def test_words_that_no_scenario_has_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--only", "no such thing"]) == 2
    assert "no scenario has 'no such thing' in its name" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--ranks", "two"], ["--ranks", "2"], ["--ranks", ""], ["--seeds", "-1"]])
def test_options_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_sizes_and_seeds_are_read() -> None:
    assert parse_options(["--ranks", "8,512"]).ranks == (8, 512)
    assert (parse_options([]).seeds, parse_options(["--quick"]).seeds) == (10, 2)
