"""The benchmark of the longest call: what it prints, of jobs of a fraction of a second."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.benchmark_guard, pytest.mark.long]
ROOT = Path(__file__).parents[2]

TIMED = r"\d+\.\d\d"
STEPS = rf"steps of 2 ms, a report every 0\.1 s: longest call {TIMED} ms; \d+ reports, coverage [01]\.\d{{3}}; "
EVENTS = ("initialize", "init_process_group", "destroy_process_group", "a second init_process_group", "all others")
LATE = r"group made late, a report every 0\.1 s, 1 jobs: longest first call after, in ms \(most processor time\): "


def test_it_prints_a_row_for_each_job_and_ends_by_its_goal() -> None:
    command = [sys.executable, "benchmarks/straggler_steps.py", "--seconds", "0.3", "--steps", "0.002"]
    for goal, code in (("1e6", 0), ("0", 1)):
        done = subprocess.run(
            [*command, "--intervals", "0.1", "--late-groups", "1", "--goal", goal],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        head, steps, late, *missed = done.stdout.splitlines()
        assert re.match(r"\d+ cores, load \d+\.\d, torch ", head)
        assert re.match(STEPS, steps)
        assert re.fullmatch(LATE + ", ".join(rf"{event} {TIMED} \({TIMED}\)" for event in EVENTS), late)
        assert [line[:13] for line in missed] == ["the goal of 0"] * code
