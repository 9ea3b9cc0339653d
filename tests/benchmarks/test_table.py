"""The benchmark's own machinery: what it prints of known samples, and when it calls a goal missed. No timings."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

# The benchmarks are no installed package: `python -m benchmarks` finds them in the checkout.
_SPEC = importlib.util.spec_from_file_location(
    "benchmark_table", Path(__file__).resolve().parents[2] / "benchmarks" / "table.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
table = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(table)
GOALS, P99_GOALS, Results, p99 = table.GOALS, table.P99_GOALS, table.Results, table.p99

pytestmark = pytest.mark.benchmark_guard

PAIR = "start_section + end_section"
VERDICT = "hang: deadline -> verdict"


def test_a_row_shows_median_p99_and_how_many_times_ours() -> None:
    results = Results()
    results.add(PAIR, "ours", [0.5, 0.4, 0.6], unit="us")
    results.add_p99(PAIR, "ours", [0.9])
    results.add(PAIR, "theirs", [50.0], unit="us")
    results.say(PAIR, "others", "never")

    line = next(line for line in results.lines(["ours", "theirs", "others"]) if line.startswith(PAIR))
    assert "0.50 / 0.90 (3)" in line
    assert "50.0  x100" in line
    assert line.endswith("never")


def test_a_goal_is_missed_at_the_median_and_a_verdict_at_the_p99() -> None:
    results = Results()
    results.add(PAIR, "ours", [GOALS[PAIR] - 0.1, GOALS[PAIR], 99.0], unit="us")
    results.add(VERDICT, "ours", [1.0] * 9 + [GOALS[VERDICT] + 1], unit="ms")

    assert VERDICT in P99_GOALS
    (missed,) = results.missed_goals("ours")
    assert missed.startswith(f"goal missed: {VERDICT}: 11.0 ms")


def test_a_launch_that_failed_is_said_under_the_table() -> None:
    results = Results()
    results.fail("kill", "torchrun", "not done after 75 s")

    assert any("torchrun, kill" in line and "not done after 75 s" in line for line in results.lines(["ours"]))


def test_p99_of_few_is_their_maximum() -> None:
    assert p99([3.0, 1.0, 2.0]) == 3.0
    assert p99([float(number) for number in range(1000)]) == 990.0


def test_raw_samples_are_json() -> None:
    results = Results()
    results.add(PAIR, "ours", [0.5], unit="us")
    assert json.loads(json.dumps(results.to_json()))["samples"] == {PAIR: {"ours": [0.5]}}
