"""Limits protect and do not kill: what was learned, what a start may take, and what is said about both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

ONE_RESTART = ["--max-restarts", 1]


@pytest.mark.long
def test_epochs_whose_workers_start_slowly_are_not_killed_by_what_one_epoch_taught(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    state = tmp_path / "ft_state.json"
    assert launch("epochs.py", "--state", state, nproc=1).wait() == 0
    learned = json.loads(state.read_text())["current_timeouts"]["section"]
    assert learned["out_of_section"] < 60

    job = launch("epochs.py", "--state", state, "--epochs", 3, "--pause-seconds", 1.2, nproc=1)

    assert job.wait() == 0
    assert job.incidents() == []


@pytest.mark.long
def test_a_learned_limit_that_was_wrong_says_where_it_comes_from_and_costs_one_restart(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    """Under the documents' rule the state file of a small run still kills a larger one: once, not for ever."""
    state = tmp_path / "ft_state.json"
    options = {"learned_limits": "replace", "rank_out_of_section_timeout": 180}
    heartbeat = {"initial": None, "subsequent": None, "were_calculated": False}
    section = {"section": {}, "calculated_sections": [], "out_of_section": 1.0, "is_out_of_section_calculated": True}
    state.write_text(json.dumps({"current_timeouts": {"heartbeat": heartbeat, "section": section}}))

    job = launch(
        *("epochs.py", "--state", state, "--epochs", 2, "--pause-seconds", 2),
        nproc=1,
        options=["--max-restarts", 2],
        **options,
    )

    assert job.wait() == 0
    (incident,) = job.incidents()
    (rank,) = incident.condemned
    assert (rank.cause, rank.limit_learned, rank.limit_seconds) == ("out of section", "out of section", 1.0)
    assert "configured 180 s; ft_state.json; --ft-learned-limits off switches it off" in job.stderr
    assert "the learned limit 'out of section' has led to 1 verdict(s)" in job.stderr
    report = (Path(incident.folder) / "report.txt").read_text()
    assert "--ft-learned-limits off (or relax)" in report
    assert "--ft-rank-out-of-section-timeout" not in report  # configured values are replaced: it would have no effect


@pytest.mark.long
@pytest.mark.parametrize("hangs", [False, True])
def test_where_no_restart_is_left_a_limit_from_an_earlier_run_finds_a_hang_and_ends_no_job(
    launch: Callable[..., Any], tmp_path: Path, hangs: bool
) -> None:
    """A pause of twice that limit ended the job; a hang ends it sixty times as late as the floor of thin evidence."""
    state = tmp_path / "ft_state.json"
    assert launch("epochs.py", "--state", state, nproc=1).wait() == 0

    pause = 1000 if hangs else 2
    job = launch(
        *("epochs.py", "--state", state, "--epochs", 2, "--pause-seconds", pause),
        nproc=1,
        thin_evidence_floor=0.1,
    )

    assert job.wait() == (1 if hangs else 0)
    assert "out of section 6 s (else 1 s)" in job.stdout + job.stderr
    if not hangs:
        assert job.incidents() == []
        return
    (incident,) = job.incidents()
    (rank,) = incident.condemned
    assert (rank.cause, rank.limit_learned, rank.limit_seconds) == ("out of section", "out of section", 6.0)
    assert "at least 6 s where no restart is left, else 1 s; ft_state.json" in job.stderr
    assert "times as long" not in job.stderr  # there is no next generation


@pytest.mark.long
def test_a_rank_that_hangs_before_it_is_monitored_in_a_later_generation_is_seen(launch: Callable[..., Any]) -> None:
    job = launch("starts.py", "--fails-then-hangs", options=["--max-restarts", 2], thin_evidence_floor=3)

    assert job.wait() == 0
    failure, hang = job.incidents()
    assert failure.kind == "failure"
    assert [(rank.rank, rank.cause, rank.limit_learned) for rank in hang.condemned] == [(1, "startup", "startup")]
    assert "the longest start in this job" in job.stderr
    assert job.stdout.count("is done in generation 2") == 2


def test_a_startup_limit_spares_a_job_that_never_uses_the_client_and_says_so(launch: Callable[..., Any]) -> None:
    job = launch("starts.py", "--without", 0, 1, "--until-file", "go", rank_startup_timeout=1.5)

    job.wait_for_error_output("is spared")
    (job.work / "go").touch()
    assert job.wait() == 0
    assert job.incidents() == []
    assert job.stderr.count("is spared") == 1


def test_a_startup_limit_counts_once_a_rank_has_initialised_monitoring(launch: Callable[..., Any]) -> None:
    job = launch(
        *("starts.py", "--without", 1, "--until-file", "go"), options=ONE_RESTART, rank_startup_timeout=4, nproc=2
    )

    incident = job.wait_for_incident()
    (job.work / "go").touch()
    assert job.wait() in (0, 1)
    assert [(rank.rank, rank.cause) for rank in incident.condemned] == [(1, "startup")]


def test_a_job_in_which_nobody_reports_says_so_once(launch: Callable[..., Any]) -> None:
    job = launch("starts.py", "--without", 0, 1, "--until-file", "go", unmonitored_notice_after=0.5)

    job.wait_for_error_output("client.send_heartbeat()")
    (job.work / "go").touch()
    assert job.wait() == 0
    assert job.stderr.count("no rank has reported anything") == 1


@pytest.mark.long
def test_one_rank_that_nobody_watches_is_named(launch: Callable[..., Any]) -> None:
    job = launch("starts.py", "--without", 1, "--until-file", "go", unmonitored_notice_after=4)

    job.wait_for_error_output("rank 1 has not called init_workload_monitoring()")
    (job.work / "go").touch()
    assert job.wait() == 0
    assert "no rank has reported" not in job.stderr


@pytest.mark.parametrize("hangs", [pytest.param(False, marks=pytest.mark.long), True])
def test_what_is_done_inside_a_step_does_not_count_for_the_limit_of_the_step(
    launch: Callable[..., Any], hangs: bool
) -> None:
    """A save of twice that limit was condemned as a hang. What hangs in the step after the save still is."""
    job = launch(
        *("saves_inside_steps.py", "--seconds", 2.4, *(["--hang-after-save"] if hangs else [])),
        nproc=1,
        rank_section_timeouts="setup:60,step:1.2,checkpointing:60",
        rank_out_of_section_timeout=60,
        num_warmup_iterations=0,
    )
    assert job.wait() == (1 if hangs else 0)
    causes = [rank.cause for incident in job.incidents() for rank in incident.condemned]
    assert causes == (["section"] if hangs else [])
