"""The benchmark of rank 0's steps: what it prints, of turns of a second."""

from __future__ import annotations

import re

import pytest

from benchmarks.straggler_many_ranks import main

pytestmark = [pytest.mark.benchmark_guard, pytest.mark.long]

MS = r"-?\d+\.\d\d"
ROW = (
    rf"8 ranks, steps of {MS} ms: in portions {MS} ms \(most {MS}\), in one go {MS} ms \(most {MS}\) of \d+ reports; "
    r"made within \d+ steps"
)
SHORT = ["--ranks", "8", "--products", "20", "--interval", "0.2", "--seconds", "1.5", "--turns", "1"]


@pytest.mark.parametrize(("goal", "code"), [("1e6", 0), ("-1e6", 1)])
def test_it_prints_a_row_for_each_job_and_ends_by_its_goal(
    goal: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHORT, f"--goal={goal}"]) == code
    _, row, *missed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(ROW, row), row
    assert len(missed) == code


def test_a_turn_has_an_interval_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*SHORT, "--seconds", "0.5"])
    assert "--seconds 0.5: must be at least 5 times --interval (0.2)" in capsys.readouterr().err
