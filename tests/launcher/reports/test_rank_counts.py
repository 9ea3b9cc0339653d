"""Rows of the ledger where a node, or a job, has another number of ranks in each run or generation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.reports.build import make_report
from launcher.reports.model import CATEGORIES, Report, wall_seconds
from tests.launcher.reports.invented_runs import EPOCH, Failure, InventedRun, invent_run

ABSENT = [category.key for category in CATEGORIES].index("absent")
PAUSE = 30.0


def two_runs(parent: Path, first: int, second: int, **options: int) -> tuple[InventedRun, InventedRun]:
    """Write a run that fails, and one of the same training on another number of ranks that goes on from it."""
    one = invent_run(
        parent, "one", ranks=first, failures=[Failure(27, 0)], steps=60, ends_with="failed", goes_on=True, **options
    )
    later = one.seconds + PAUSE
    other = invent_run(
        *(parent, "other"),
        ranks=second,
        failures=[Failure(37, 0)],
        steps=60,
        resumed_from=20,
        began_epoch=EPOCH + later,
        boot_seconds=5_000.0 + later,
        **options,
    )
    return one, other


def reported(*folders: Path) -> Report:
    report = make_report([str(folder) for folder in folders])
    assert sum(entry.seconds for entry in report.ledger.entries) == pytest.approx(wall_seconds(report), rel=1e-6)
    for row in report.ledger.by_rank:
        assert sum(row.seconds) == pytest.approx(wall_seconds(report), rel=1e-6)
    return report


@pytest.mark.parametrize(("first", "second"), [(2, 4), (4, 2), (1, 8), (3, 3)])
def test_runs_with_other_numbers_of_ranks_sum_up_to_the_wall_time(tmp_path: Path, first: int, second: int) -> None:
    one, other = two_runs(tmp_path, first, second)
    report = reported(*one.folders, *other.folders)
    out = [row.seconds[ABSENT] for row in report.ledger.by_rank]
    assert len(out) == max(first, second)
    missed = (one if first < second else other).seconds + PAUSE
    few = min(first, second)
    assert out == pytest.approx([0.0] * few + [missed] * (len(out) - few), abs=1e-3)


def test_a_place_that_is_missing_in_the_run_between_waits_for_the_next_one(tmp_path: Path) -> None:
    runs = [
        invent_run(
            *(tmp_path, f"run-{number}"),
            ranks=ranks,
            failures=0,
            steps=20,
            began_epoch=EPOCH + number * 1000.0,
            boot_seconds=5_000.0 + number * 1000.0,
        )
        for number, ranks in enumerate((2, 1, 2))
    ]
    report = reported(*(folder for run in runs for folder in run.folders))
    assert [row.seconds[ABSENT] for row in report.ledger.by_rank] == pytest.approx([0.0, runs[1].seconds], abs=1e-3)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_generation_on_fewer_ranks_sums_up_to_the_wall_time(tmp_path: Path, number: int) -> None:
    run = invent_run(tmp_path, ranks=2, failures=[Failure(17, 0), Failure(27, 0)], steps=40)
    (folder,) = run.folders
    for name in ("events.jsonl", "figures.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for line in lines:
            of_it = line.get("generation") == number
            if of_it and line["event"] in ("started", "figures"):
                line["pids" if line["event"] == "started" else "ranks"].pop("1")
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = reported(folder)
    first, second = report.ledger.by_rank
    life = run.lives[number]
    assert first.seconds[ABSENT] == 0.0
    assert second.seconds[ABSENT] >= life.stopped - life.started - 1e-3


def test_a_node_that_took_part_in_one_of_two_runs_has_a_row_for_the_other(tmp_path: Path) -> None:
    one = invent_run(tmp_path, "one", ranks=4, nodes=2, failures=[Failure(27, 0)], steps=60, ends_with="failed")
    later = one.seconds + PAUSE
    clocks = {"began_epoch": EPOCH + later, "boot_seconds": 5_000.0 + later}
    other = invent_run(tmp_path, "other", ranks=2, failures=0, steps=60, resumed_from=20, **clocks)
    report = reported(*one.folders, *other.folders)
    assert [row.seconds[ABSENT] for row in report.ledger.by_rank] == pytest.approx(
        [0.0, 0.0, other.seconds + PAUSE, other.seconds + PAUSE], abs=1e-3
    )
