"""What is told of the median of durations of which each is known to a factor of two."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.formats import duration
from launcher.reports.page import page
from launcher.reports.spread import Spread
from resilience_core.protocol.figures_read import SectionFigures
from tests.launcher.reports.invented_runs import invent_run


def figures_of(durations: Sequence[int]) -> SectionFigures:
    bits = [each.bit_length() for each in durations]
    counts = {bit: bits.count(bit) for bit in set(bits)}
    return SectionFigures(len(durations), sum(durations), max(durations), 0, counts)


def typical_ns(*ranks: Sequence[int]) -> float:
    spread = Spread()
    for durations in ranks:
        spread.add(figures_of(durations))
    found = spread.typical_ns(max(map(max, ranks)))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(20))
def test_of_steps_that_are_alike_it_is_one_that_a_step_may_have_taken(seed: int) -> None:
    """Some lie below 2**26 ns (67.1 ms) and some above; half of that and 2**25 ns is 50 ms, which none took."""
    chance = random.Random(seed)
    ranks = [[chance.randrange(60_600_000, 68_000_000) for _ in range(40)] for _ in range(3)]
    together = [each for durations in ranks for each in durations]
    assert min(together) <= typical_ns(*ranks) <= max(together)
    assert typical_ns(*ranks) == pytest.approx(statistics.median(together), rel=0.05)


def test_one_that_took_far_longer_changes_little() -> None:
    steps = [61_000_000] * 100
    assert typical_ns([*steps, 2_600_000_000]) == pytest.approx(61e6, rel=0.1)
    assert 1 << 25 <= typical_ns([*steps[:10], 2_600_000_000, 3_900_000_000]) <= 1 << 26


def test_without_a_duration_there_is_none() -> None:
    assert Spread().typical_ns(0) is None
    assert typical_ns([0, 0, 1]) == 0


def test_what_lines_since_the_last_full_one_tell_does_not_count_as_part_of_what_that_tells() -> None:
    full = figures_of([61_000_000] * 10)
    spread = Spread()
    spread.add(full._replace(closed=20, took_ns=20 * 61_000_000))
    assert spread.typical_ns(61_000_000) == pytest.approx(61e6)


def test_that_it_is_an_estimate_is_shown(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=20)
    report = make_report([str(run.folders[0])])
    step, between = (
        next(row for row in report.limits if row.kind == kind) for kind in ("section step", "out of section")
    )
    assert (step.typical, step.is_typical_about, step.is_about) == (pytest.approx(2.0), True, False)
    assert (between.typical, between.is_typical_about) == (None, False)
    assert f"typical ~{duration(step.typical)}" in page(report)
    assert "typical unknown" in page(report)
    assert [row["is_typical_about"] for row in json.loads(as_json(report))["limits"]].count(True) == 3
