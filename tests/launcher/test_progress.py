"""Whether a job that is restarted again and again gets anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.progress import ProgressRule
from resilience_core import FaultToleranceConfig


def rule(**settings: object) -> ProgressRule:
    return ProgressRule(FaultToleranceConfig(**settings))  # type: ignore[arg-type]


def test_a_job_that_reports_nothing_is_never_judged() -> None:
    never = rule(max_no_progress_cycles=1)
    assert [never.generation_ended(None) for _ in range(50)] == [None] * 50


def test_the_same_failure_over_and_over_ends_the_job() -> None:
    stuck = rule(max_no_progress_cycles=3)
    assert stuck.generation_ended(20) is None
    assert [stuck.generation_ended(20) for _ in range(2)] == [None, None]
    why = stuck.generation_ended(20)
    assert why is not None
    assert "3 generations in a row" in why
    assert "best so far is 20" in why


def test_one_generation_that_gains_enough_clears_the_count() -> None:
    moving = rule(max_no_progress_cycles=2, min_progress_iterations=5)
    for reached in (10, 11, 16, 17, 22, 23, 28):
        assert moving.generation_ended(reached) is None
    assert moving.generation_ended(29) is None
    assert moving.generation_ended(30) is not None


def test_small_gains_do_not_creep_past_the_rule() -> None:
    """Four new iterations every time are below the five that are asked for, however often."""
    creeping = rule(max_no_progress_cycles=3, min_progress_iterations=5)
    said = [creeping.generation_ended(reached) for reached in (10, 14, 18, 22)]
    assert said[:3] == [None] * 3
    assert said[3] is not None


def test_a_generation_that_dies_before_its_first_step_made_no_progress() -> None:
    dying = rule(max_no_progress_cycles=2)
    assert dying.generation_ended(7) is None
    assert dying.generation_ended(None) is None
    assert dying.generation_ended(None) is not None


def test_zero_never_ends_it() -> None:
    patient = rule(max_no_progress_cycles=0)
    assert [patient.generation_ended(3) for _ in range(50)] == [None] * 50


def test_the_checkpoints_iteration_counts_where_there_is_a_file(tmp_path: Path) -> None:
    """What was reached but not saved is lost at the restart, so it is no progress."""
    file = tmp_path / "latest"
    file.write_text("100\n")
    saved = rule(max_no_progress_cycles=2, checkpoint_iteration_file=str(file))
    assert saved.best == 100
    assert saved.generation_ended(500) is None
    file.write_text("200")
    assert saved.generation_ended(510) is None
    assert saved.without_progress == 0
    assert saved.generation_ended(600) is None
    assert saved.generation_ended(700) is not None


def test_a_file_that_holds_no_integer_is_said_once_and_judges_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "latest"
    file.write_text("step 100")
    saved = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(file))

    assert [saved.generation_ended(5) for _ in range(3)] == [None] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"checkpoint_iteration_file {file}: invalid literal for int() with base 10: 'step 100'; expected one integer"
    ]


def test_a_file_that_is_larger_than_any_number_is_not_read_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint itself, perhaps: gigabytes, in the launcher's memory, at each restart."""
    file = tmp_path / "checkpoint"
    file.write_text("1" * 101)
    os.truncate(file, 1 << 40)
    saved = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(file))

    assert (saved.best, saved.generation_ended(None)) == (None, None)
    assert [record.getMessage() for record in caplog.records] == [
        f"checkpoint_iteration_file {file}: it has more than 100 bytes; expected one integer"
    ]
    file.write_text("1" * 30 + " " * 70)
    assert rule(checkpoint_iteration_file=str(file)).best == int("1" * 30)


def test_a_file_that_does_not_exist_yet_judges_nobody(tmp_path: Path) -> None:
    saved = rule(max_no_progress_cycles=1, checkpoint_iteration_file=str(tmp_path / "latest"))
    assert [saved.generation_ended(5) for _ in range(3)] == [None] * 3
