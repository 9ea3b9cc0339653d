"""The benchmark of straggler jobs: its list, what it calls right, and one real run of a quick job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.straggler_jobs.catalogue import jobs
from benchmarks.straggler_jobs.words import (
    BROKEN,
    RIGHT,
    SILENT,
    WRONG,
    Run,
    explanation,
    judge,
    read,
    slower_before,
    slowness,
    write,
)

pytestmark = pytest.mark.benchmark_guard
ROOT = Path(__file__).parents[2]


def report(*slow: int, unknown: tuple[int, ...] = ()) -> dict[str, Any]:
    verdicts = [{"rank": rank, "state": "SLOW", "slowdown": 0.5, "section": "step", "because": ""} for rank in slow]
    verdicts += [{"rank": rank, "state": "UNKNOWN", "because": "no timings"} for rank in unknown]
    return {"sequence": 0, "time": 3.0, "verdicts": verdicts, "sections": {}, "notes": []}


def word(*own_seconds: float, slow_from: int = 0) -> dict[str, Any]:
    owns = [(float(at), own) for at, own in enumerate(own_seconds)]
    return {"owns": owns, "slow_from": slow_from, "tables": [], "returned": 0}


WORDS = [word(0.01, 0.01), word(0.01, 0.02)]


@pytest.mark.parametrize(
    ("slow_rank", "reports", "outcome"),
    [
        (1, [report(), report(1)], RIGHT),
        (1, [report(1), report()], SILENT),
        (1, [], SILENT),
        (1, [report(), report(unknown=(0, 1))], SILENT),
        (1, [report(0), report(1)], WRONG),
        (1, [report(0, 1)], WRONG),
        (None, [report(), report(unknown=(1,))], RIGHT),
        (None, [report(1), report()], WRONG),
        (None, [], SILENT),
    ],
)
def test_a_run_is_right_if_the_slow_rank_is_named_at_the_end_and_no_other_ever(
    slow_rank: int | None, reports: list[dict[str, Any]], outcome: str
) -> None:
    run = Run(slow_rank, WORDS, reports)
    assert judge(run) == outcome
    assert explanation(run)


def test_a_run_in_which_a_rank_wrote_no_word_is_broken(tmp_path: Path) -> None:
    write(tmp_path, 0, word(0.01))
    (tmp_path / "stderr-1").write_text("Traceback\nValueError: no\n")
    run = read(tmp_path, 2, 1)
    assert judge(run) == BROKEN
    assert slowness(run) is None
    assert explanation(run) == "a rank broke: ValueError: no"


def test_the_slow_rank_is_measured_against_the_slowest_of_its_peers_while_it_is_slow() -> None:
    words = [word(0.01), word(0.02), word(0.03), word(0.09)]
    assert slowness(Run(1, words, [])) == pytest.approx(0.02 / 0.09 - 1)
    assert slowness(Run(1, words, []), ((0, 1), (2, 3))) == pytest.approx(1.0)
    assert slowness(Run(None, words, [])) == pytest.approx(8.0)
    late = [word(0.01, 0.01, slow_from=1), word(0.01, 0.015, slow_from=1)]
    assert slowness(Run(1, late, [])) == pytest.approx(0.5)


def test_whether_a_rank_that_was_named_had_been_slower_is_taken_from_just_before() -> None:
    words = [word(0.01, 0.01, 0.01, 0.01), word(0.05, 0.05, 0.01, 0.012), word(0.01, 0.01, 0.01, 0.01)]
    assert slower_before(Run(None, words, []), report(1), 1, 1.0) == pytest.approx(0.1)
    assert "names rank 1 (50 % slower in 'step'; in truth 10 %)" in explanation(
        Run(None, words, [report(1)]), seconds=1.0
    )


def test_every_scenario_is_in_the_list_under_a_name_of_its_own() -> None:
    names = [job.name for job in jobs()]
    assert len(set(names)) == len(names)
    for scenario in (
        *("one line, 2", "one line, 4", "nothing marked, 2", "nothing marked, 4", "parts", "DDP, forward and backward"),
        *("DDP, nothing marked", "new_group and WORLD", "WORLD unused", "device mesh", "pipeline", "data loading"),
        *("then slow", "never slow", "Lightning", "raw adapter", "FSDP2", "equal"),
    ):
        assert any(scenario in name for name in names), scenario


@pytest.mark.long
def test_a_real_job_is_run_and_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.straggler_jobs", "--runs", "1", "--json", str(tmp_path / "kept")]
    done = subprocess.run(
        [*command, "--only", "parts, slow in forward, 2 ranks"],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    (kept,) = json.loads((tmp_path / "kept").read_text())["jobs"]
    (run,) = kept["runs"]
    assert run["outcome"] != BROKEN, done.stdout
    assert (run["outcome"] == RIGHT) == (done.returncode == 0)
    assert [one["sequence"] for one in run["reports"]] == list(range(len(run["reports"])))
    assert run["slowness"] > 0.3
