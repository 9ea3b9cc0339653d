"""The injector's plan and its judgement; what it does to real jobs is `make test-all`'s business."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.effects import EFFECTS
from benchmarks.chaos.job import Job
from benchmarks.chaos.job_events import JobEvents, contradiction
from benchmarks.chaos.plan import KINDS, make_plan
from launcher.records.event_log import EventLog

pytestmark = pytest.mark.benchmark_guard


def test_a_seed_gives_one_plan_and_another_seed_another() -> None:
    assert make_plan(7, 40) == make_plan(7, 40)
    assert make_plan(7, 40).faults != make_plan(8, 40, ranks=make_plan(7, 1).ranks).faults


def test_sixteen_seeds_in_a_row_have_every_combination_and_every_kind() -> None:
    plans = [make_plan(seed, 40) for seed in range(100, 116)]

    assert len({(plan.ranks, plan.worker_start, plan.has_py_spy) for plan in plans}) == 16
    assert {fault.kind for plan in plans for fault in plan.faults} == set(KINDS)
    for plan in plans:
        steps = [fault.step for fault in plan.faults]
        assert all(later - earlier >= 3 for earlier, later in itertools.pairwise(steps))
        assert steps[-1] < plan.steps - 3
        assert all(0.1 <= fault.seconds <= 3 and 0 <= fault.rank < plan.ranks for fault in plan.faults)
        assert plan.ranks > 1 or not any(KINDS[fault.kind].needs_peers for fault in plan.faults)
        assert plan.worker_start == "warm" or not any(KINDS[fault.kind].needs_warm for fault in plan.faults)


def test_every_kind_has_an_effect() -> None:
    assert EFFECTS.keys() == KINDS.keys()


def test_kinds_that_are_impossible_together_are_refused() -> None:
    with pytest.raises(ValueError, match="none of parked-kill is possible with 2 rank"):
        make_plan(1, 5, ranks=2, worker_start="spawn", kinds=["parked-kill"])


def test_the_followed_events_know_when_nothing_can_be_read_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    log, events = EventLog(str(folder)), JobEvents(tmp_path)
    log.write("began")
    events.read()
    assert not events.is_removed

    shutil.rmtree(folder)
    events.read()
    assert events.is_removed

    log.write("tick")
    events.read()
    assert not events.is_removed
    assert [event["event"] for event in events.events] == ["began", "lost", "tick"]
    log.close()
    events.close()


def judged(events: list[dict[str, Any]], expected: dict[int, int], records: list[dict[str, Any]]) -> tuple[Any, Any]:
    """What a job that has had these events is found guilty of."""
    job = Job.__new__(Job)
    job.plan = make_plan(1, 1)
    job.job_events = JobEvents(Path("/nowhere"))
    job.job_events.events = [{"event": "started", "generation": g, "pids": {}} for g in range(3)] + events
    job.violations, job.records, job.exit_code = [], records, 0
    job._expected, job._tolerated = expected, {}
    job._judge_incidents()
    return job.violations, [record["culprit"] for record in records]


def fault(kind: str, generation: int) -> dict[str, Any]:
    return {"index": 0, "kind": kind, "step": 9, "generation": generation, "culprit": None}


@pytest.mark.parametrize(
    ("kind", "culprits", "score", "is_violation"),
    [
        ("rank-kill", [[1]], "right", False),
        ("rank-kill", [[0]], "wrong", True),
        ("rank-kill", [[0, 1]], "wrong", True),
        ("rank-kill", [[1], [0]], "wrong", True),
        ("rank-kill", [[]], "none", True),
        ("rank-kill", [], "no incident", True),
        ("rank-skip", [[]], "none", False),
        ("rank-skip", [[0]], "wrong", True),
    ],
)
def test_culprits_are_scored(kind: str, culprits: list[list[int]], score: str, is_violation: bool) -> None:
    events = [{"event": "hang", "generation": 1, "culprits": ranks, "folder": None} for ranks in culprits]

    violations, scores = judged(events, {1: 1}, [fault(kind, 1)])

    assert scores == [score]
    assert bool(violations) is is_violation


def test_an_incident_that_nothing_explains_is_a_violation() -> None:
    events = [{"event": "hang", "generation": 2, "culprits": [0], "folder": None}]

    violations, _ = judged(events, {}, [fault("freeze-signals", 2)])

    assert len(violations) == 1
    assert "no fault explains" in violations[0]


def test_a_report_that_blames_somebody_else_than_the_event_is_found(tmp_path: Path) -> None:
    ranks = [{"rank": 0, "is_culprit": True}, {"rank": 1, "is_culprit": False}]
    (tmp_path / "incident.json").write_text(json.dumps({"generation": 3, "ranks": ranks}))
    event = {"generation": 3, "folder": str(tmp_path)}

    assert contradiction({**event, "culprits": [0]}) is None
    assert "blames [0], events.jsonl [1]" in str(contradiction({**event, "culprits": [1]}))
    assert contradiction({**event, "culprits": [1], "generation": 2}) is None  # of a folder that was removed
