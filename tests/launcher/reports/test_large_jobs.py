"""Large jobs: what a report finds in many files is what the schedule holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launcher.reports.invented_runs import invent_failures, invent_run
from tests.launcher.reports.test_ledger import assert_is, reported


@pytest.mark.long
def test_of_1024_ranks_and_50_incidents_it_is_what_the_schedule_holds(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=1024, nodes=128, failures=invent_failures(50, 1024), lines=30)
    report = reported(run)
    assert_is(report.ledger, run.truth)
    assert len(report.incidents) == 50
    assert [c.rank for i in report.incidents for c in i.culprits] == [f.rank for f in invent_failures(50, 1024)]
    assert sum(len(rank.spans) for rank in report.ranks) < 20_000 + 1024 * 51 * 5
