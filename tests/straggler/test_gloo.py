"""Real ranks, real gloo, one of them slowed by 20 %: it is named, the waiting ones are not. Bounded and short;
``benchmarks/straggler_gloo.py`` repeats it."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

_spec = importlib.util.spec_from_file_location(
    "straggler_gloo", Path(__file__).parents[2] / "benchmarks" / "straggler_gloo.py"
)
gloo = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gloo)


@pytest.mark.parametrize(
    ("ranks", "job"),
    [
        (4, {}),
        pytest.param(2, {"sections": "sync"}, marks=pytest.mark.long),
    ],
)
def test_the_slow_rank_is_named_and_the_waiting_ones_are_not(ranks, job):
    """With the default arguments: nobody said which section holds the collective."""
    (word,) = gloo.run(ranks, **job)
    assert word["slow"] == word["ever_slow"] == [ranks - 1], word["table"]
    named = {rank for section in word["sections"].values() for rank in section}
    assert named == {ranks - 1}
    assert word["coverage"] == 1.0


def test_in_a_healthy_job_nobody_is_named():
    (word,) = gloo.run(2, factor=1.0)
    assert word["slow"] == word["ever_slow"] == []
    assert word["table"] == ""


def test_every_rank_gets_a_report_of_its_own_without_gathering():
    words = {word["rank"]: word for word in gloo.run(2, gather=False)}
    assert set(words) == {0, 1}
    assert words[1]["slow"] == [1]
    assert words[0]["slow"] == []
    assert set(words[1]["scores"]["compute"]) == {"1"}
    assert words[1]["scores"]["compute"]["1"] == pytest.approx(1 / 1.2, abs=0.06)


def test_minimum_scoring_scores_the_same_job():
    (word,) = gloo.run(2, scoring="minimum", reports=1, sections="compute")
    assert word["scores"]["compute"]["0"] == 1.0
    assert word["scores"]["compute"]["1"] == pytest.approx(1 / 1.2, abs=0.06)


@pytest.mark.parametrize(("how", "rank"), [pytest.param("exit", 2, marks=pytest.mark.long), ("stop", 1)])
def test_a_rank_that_dies_or_hangs_does_not_block_the_report_of_the_others(how, rank):
    bound = 1.0
    words = gloo.run(3, slow_rank=rank, die_at=1, how=how, bound=bound, reports=2)
    (word,) = [word for word in words if word["rank"] == 0]
    assert word["missing"] == [rank]
    assert f"UNKNOWN 1 ranks ({rank})" in word["table"]
    assert word["took"] < 10 * bound


@pytest.mark.long
def test_a_cpu_quota_makes_a_straggler():
    group, reason = gloo.cpu_quota(0.5)
    if group is None:
        pytest.skip(reason)
    try:
        (word,) = gloo.run(2, burn=True, cgroup=str(group), seconds=0.02, steps=8, reports=4)
        assert word["slow"] == word["ever_slow"] == [1], word["table"]
        assert "its CPU quota throttled it" in word["table"]
    finally:
        gloo.remove(group)
