"""`python -m benchmarks.ledger` finds each way in which a report can be wrong. No timings, no job."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger import __main__ as benchmark
from benchmarks.ledger.__main__ import Fault, compare, counted_again, judged, plan

pytestmark = pytest.mark.benchmark_guard

FAULTS = [Fault("hang", 1, 20), Fault("kill", 0, 40)]


def report(
    repeated: int | None = 7, seconds: float = 100.0, culprits: tuple[tuple[int, ...], ...] = ((1,), (0,))
) -> Any:
    return {
        "ledger": {"repeated": repeated, "entries": [{"seconds": seconds - 40.0}, {"seconds": 40.0}]},
        "incidents": [{"culprits": [{"rank": rank} for rank in ranks]} for ranks in culprits],
    }


@pytest.mark.parametrize("wall", [100.0, 99.1, 100.9])
def test_what_agrees_is_right(wall: float) -> None:
    found = judged(report(), FAULTS, 7, wall, 0)
    assert (found.wrong, found.repeated, found.counted, found.ledger_seconds) == ((), 7, 7, 100.0)


@pytest.mark.parametrize(
    ("told", "counted", "wall", "code", "wrong"),
    [
        (report(), 7, 100.0, 3, "the job ended with 3"),
        (report(repeated=8), 7, 100.0, 0, "8 iterations were done again by the report, 7 by the script"),
        (report(repeated=None), 7, 100.0, 0, "None iterations were done again by the report, 7 by the script"),
        (report(), 7, 101.1, 0, "the ledger comes to 100.000 s, the clock around the launcher to 101.100 s"),
        (report(), 7, 98.9, 0, "the ledger comes to 100.000 s, the clock around the launcher to 98.900 s"),
        (report(culprits=((1,),)), 7, 100.0, 0, "blamed [[1]], and at fault were [[1], [0]]"),
        (report(culprits=((0,), (1,))), 7, 100.0, 0, "blamed [[0], [1]], and at fault were [[1], [0]]"),
        (report(culprits=((1, 0), (0,))), 7, 100.0, 0, "blamed [[1, 0], [0]], and at fault were [[1], [0]]"),
    ],
)
def test_what_differs_is_named(told: Any, counted: int, wall: float, code: int, wrong: str) -> None:
    assert judged(told, FAULTS, counted, wall, code).wrong == (wrong,)


def test_steps_count_once_all_ranks_have_done_them(tmp_path: Path) -> None:
    (tmp_path / "steps-0").write_text("0 0\n0 1\n0 2\n1 1\n1 2\n")
    (tmp_path / "steps-1").write_text("0 0\n0 1\n1 1\n1 2\n")
    assert counted_again(tmp_path) == 1


def test_faults_come_one_after_the_other_and_of_all_kinds() -> None:
    faults = plan(10, seed=3)
    assert faults == plan(10, seed=3)
    assert [fault.step for fault in faults] == sorted({fault.step for fault in faults})
    assert len({fault.kind for fault in faults}) == 5


def test_a_job_that_never_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, timeout: float, **_: object) -> object:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    with pytest.raises(SystemExit, match="the job has not ended within 180 s"):
        compare(tmp_path, FAULTS)
