"""Ranks that take no training steps, where others do: what they do is not known, and is no start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.reports.build import make_report
from launcher.reports.model import CATEGORIES, Report
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run

KEYS = [category.key for category in CATEGORIES]
STEPS = ("first_iteration", "first_step_ns", "iteration", "done", "passed")


def spent(report: Report, rank: int) -> dict[str, float]:
    (row,) = [row for row in report.ledger.by_rank if row.rank == rank]
    return dict(zip(KEYS, row.seconds, strict=True))


def without_steps(run: InventedRun, what: str, generations: tuple[int, ...] = (0, 1)) -> InventedRun:
    """Let rank 1 tell of nothing, of a section of its own, of heartbeats, or of its setup alone, from 5 s on."""
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["generation"] not in generations:
            continue
        known = line["ranks"]["1"]
        if what == "nothing":
            del line["ranks"]["1"]
            continue
        known |= dict.fromkeys(set(STEPS) & known.keys())
        own = known["sections"].pop("step", None)
        known["open"].pop("step", None)
        if what == "serves" and own is not None:
            known["sections"]["serve"] = own
        if what == "is in its setup":
            known["sections"], known["open"], known["saves"] = {}, {"setup": line["t_ns"] - 10**9}, []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if what == "nothing":
        events = run.folders[0] / "events.jsonl"
        written = [json.loads(line) for line in events.read_text().splitlines()]
        for event in written:
            for stamps in (event.get("ranks"), event.get("phases")):
                if isinstance(stamps, dict) and event["generation"] in generations:
                    stamps.pop("1", None)
        events.write_text("".join(json.dumps(line) + "\n" for line in written))
    return run


def make(tmp_path: Path, **options: Any) -> InventedRun:
    return invent_run(tmp_path, failures=[Failure(27, 0)], steps=60, lines=200, **options)


@pytest.mark.parametrize("what", ["nothing", "serves"])
def test_what_a_rank_does_that_takes_no_steps_is_unknown(tmp_path: Path, what: str) -> None:
    report = make_report([str(without_steps(make(tmp_path), what).folders[0])])
    own, other = spent(report, 1), spent(report, 0)
    worked = other["productive"] + other["checkpointing"] + other["lost_work"]
    assert own["productive"] == own["lost_work"] == own["checkpointing"] == 0
    assert own["unknown"] >= worked
    assert own["start"] <= other["start"]
    for key in ("detection", "stop", "rendezvous", "idle"):
        assert own[key] == other[key]
    assert "local rank(s) 1 of node0 tell of no training steps" in str(report.notes)
    assert not any("local rank(s) 0" in note for note in report.notes)


def test_a_rank_that_is_in_its_setup_while_others_take_steps_starts(tmp_path: Path) -> None:
    report = make_report([str(without_steps(make(tmp_path), "is in its setup").folders[0])])
    assert spent(report, 1)["unknown"] == 0
    assert spent(report, 1)["start"] > spent(report, 0)["start"]


def test_a_rank_that_took_steps_before_starts_until_it_does_again(tmp_path: Path) -> None:
    report = make_report([str(without_steps(make(tmp_path), "nothing", generations=(1,)).folders[0])])
    assert spent(report, 1)["start"] > spent(report, 0)["start"]
    assert not any("local rank(s)" in note for note in report.notes)
