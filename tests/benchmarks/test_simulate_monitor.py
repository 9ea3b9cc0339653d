"""The monitor's rules in simulated time: a small version of ``python -m benchmarks.simulate_monitor``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.simulate_monitor import node
from benchmarks.simulate_monitor.node import simulate
from launcher.monitor import lost_time, verdict, withheld_verdicts


@pytest.mark.long
def test_no_healthy_rank_is_killed_and_no_hang_is_missed() -> None:
    totals = simulate(rank_hours=400, hangs=48, seed=1)
    assert totals.false_kills == []
    assert totals.missed == []
    assert totals.counts["disturbances looked at"] > 30
    assert totals.counts["hangs"] >= 48
    assert totals.counts["monitors replaced"] > 20


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (simulate(rank_hours=50, hangs=5, seed=2) for _ in range(2))
    assert (first.counts, first.node_ns, first.slowest_ns) == (second.counts, second.node_ns, second.slowest_ns)


def _nothing_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "moved_by_ns", lambda *_: 0)


def _beats_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_time, "BEATS_PER_LIMIT", 1)
    monkeypatch.setattr(lost_time, "SHORTEST_BEAT_NS", 500_000_000)


def _nothing_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(withheld_verdicts.WithheldVerdicts, "weigh", lambda self, sightings, *_: sightings)


def _a_learned_limit_runs_anew_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(withheld_verdicts, "PATIENCE_NS", 0)


@pytest.mark.parametrize(
    "break_a_rule",
    [_nothing_is_given_back, _beats_are_rare, _nothing_is_withheld, _a_learned_limit_runs_anew_once],
)
def test_it_sees_a_broken_rule_that_kills(
    monkeypatch: pytest.MonkeyPatch, break_a_rule: Callable[[pytest.MonkeyPatch], None]
) -> None:
    break_a_rule(monkeypatch)
    assert simulate(rank_hours=300, hangs=0, seed=1).false_kills != []


def test_it_sees_a_broken_rule_that_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "FRESH_MONITOR_DOUBT_NS", 3600 * 1_000_000_000)
    assert simulate(rank_hours=0, hangs=48, seed=1).missed != []


@pytest.mark.long
def test_it_sees_a_verdict_that_is_withheld_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_WAITS", 1.0)
    assert simulate(rank_hours=0, hangs=48, seed=1).missed == []

    def hold(
        self: withheld_verdicts.WithheldVerdicts[object], rank: object, sighting: verdict.Sighting, *_: object
    ) -> verdict.Sighting:
        learned = tuple(each for each in sighting.late if each.cause == verdict.OUT_OF_SECTION)
        return sighting._replace(late=tuple(set(sighting.late) - set(learned)), held=learned)

    monkeypatch.setattr(withheld_verdicts.WithheldVerdicts, "apply", hold)
    assert simulate(rank_hours=0, hangs=48, seed=1).missed != []
