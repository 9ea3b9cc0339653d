"""`python -m benchmarks.bystanders` measures from the failure to the last rank, and waits for nothing for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bystanders
from benchmarks.bystanders import Job, table

pytestmark = pytest.mark.benchmark_guard


def test_a_restart_lasts_from_the_failure_to_the_last_rank(tmp_path: Path) -> None:
    job = Job(tmp_path, "kill", 2)
    for generation, failed, done in ((0, 1.0, (1.5, 1.7)), (1, 3.0, (3.4, 3.1))):
        (job.stamps / f"died-{generation}").write_text(str(int(failed * 1e9)))
        for rank, at in enumerate(done):
            (job.stamps / f"{generation + 1}-{rank}").write_text(f"0 {int(at * 1e9)}")
    assert job.seconds() == pytest.approx([0.7, 0.4])


def test_a_ratio_is_to_the_plain_job_of_the_same_round() -> None:
    medians = {("plain", "kill"): [0.1, 0.4, 0.2], ("plain", "hang"): [0.2, 0.2, 0.2]}
    medians |= {("unread", "kill"): [0.2, 0.4, 0.2], ("unread", "hang"): [0.3, 0.3, 0.3]}
    worst = dict.fromkeys(medians, 0.5)
    _, plain, unread = table(["plain", "unread"], medians, worst)
    assert plain.split() == ["plain", "200.0", "ms", "500.0", "ms", "1.00", "200.0", "ms", "500.0", "ms", "1.00"]
    assert unread.split() == ["unread", "200.0", "ms", "500.0", "ms", "1.00", "300.0", "ms", "500.0", "ms", "1.50"]


def test_a_job_that_never_ends_is_killed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "never"
    launcher.write_text("#!/bin/sh\nexec sleep 1000\n")
    launcher.chmod(0o755)
    (tmp_path / "job").mkdir()
    monkeypatch.setattr(bystanders.sys, "executable", str(launcher))
    monkeypatch.setattr(bystanders, "_LONGEST_JOB_SECONDS", 0.1)
    with pytest.raises(SystemExit, match=r"has not ended within 0\.1 s; see .*/said"):
        Job(tmp_path / "job", "kill", 1).run([])


def test_an_ft_top_that_draws_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = tmp_path / "never"
    never.write_text("#!/bin/sh\nexec sleep 1000\n")
    never.chmod(0o755)
    (tmp_path / "job").mkdir()
    job = Job(tmp_path / "job", "kill", 1)
    (job.stamps / "0-0").touch()
    monkeypatch.setattr(bystanders.sys, "executable", str(never))
    monkeypatch.setattr(bystanders, "_LONGEST_START_SECONDS", 0.1)
    with pytest.raises(SystemExit, match="ft_top has drawn nothing within 0"):
        bystanders.CONDITIONS["stopped"](job)
