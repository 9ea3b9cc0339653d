"""What counts as a duration that was observed under a limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.reports.build import make_report
from launcher.reports.model import Limit
from launcher.reports.phrases import observed
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run

LONG_NS = 2_800_000_000
FAILURES = ("hang", "failure", "job_incident")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def with_a_long_step(folder: Path, rank: int, after_ns: int) -> None:
    """Let a rank have closed a long step since the line before the last of generation 0, and then nothing more.

    Args:
        folder: Of its node, in a run that has failed once.
        rank: The rank.
        after_ns: When its last sign was, after the failure was seen.
    """
    lines = lines_of(folder / "figures.jsonl")
    last = next(line for line in lines if line.get("generation") == 0 and line.get("is_last"))
    known = last["ranks"][str(rank)]
    known["sections"]["step"]["longest_ns"] = LONG_NS
    failed = next(event for event in lines_of(folder / "events.jsonl") if event["event"] in FAILURES)
    known["last_sign_ns"] = failed.get("seen_ns", failed["t_ns"]) + after_ns
    (folder / "figures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def limit(run: InventedRun, kind: str) -> Limit:
    return next(row for row in make_report([str(folder) for folder in run.folders]).limits if row.kind == kind)


@pytest.mark.parametrize("kind", ["failure", "hang"])
@pytest.mark.parametrize(
    ("rank", "after_ns", "counts"),
    [
        (0, -100_000_000, True),  # it went on until the other one failed
        (0, 20_000_000, False),  # it was let go by the end of the other one
        (1, -100_000_000, True),  # the one that failed
    ],
)
def test_a_long_section_shortly_before_the_end_counts_unless_the_end_has_closed_it(
    tmp_path: Path, kind: str, rank: int, after_ns: int, counts: bool
) -> None:
    run = invent_run(tmp_path, failures=[Failure(12, 1, kind)], steps=20, nodes=1)
    before = limit(run, "section step")
    assert before.longest is not None
    assert before.longest < LONG_NS / 1e9
    with_a_long_step(run.folders[0], rank, after_ns)

    found = limit(run, "section step")
    assert (found.longest, found.longest_rank) == ((2.8, rank) if counts else (before.longest, before.longest_rank))


def test_of_several_nodes_no_clock_tells_whether_a_rank_was_let_go(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(12, 1)], steps=20, nodes=2, own_folders=True)
    before = limit(run, "section step")
    with_a_long_step(run.folders[0], 0, -100_000_000)
    assert limit(run, "section step").longest == before.longest
    with_a_long_step(run.folders[1], 1, -100_000_000)
    assert limit(run, "section step").longest == 2.8


def test_where_only_the_longest_of_each_rank_is_known_that_is_said(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=20)
    of_steps, between = limit(run, "section step"), limit(run, "out of section")
    assert observed(of_steps) == f"{of_steps.samples:,}"
    assert observed(between) == f"{between.samples} maxima"
