"""A rank that ends: seen, told, its peers stopped within a bound, and the group brought back or given up."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

CODES = {"sigkill": -signal.SIGKILL, "segfault": -signal.SIGSEGV, "exit": 17, "exception": 1}


@pytest.mark.parametrize("fault", CODES)
def test_a_crashed_rank_is_told_and_the_group_comes_back(launch: Callable[..., Any], fault: str) -> None:
    code = ",code=17" if fault == "exit" else ""
    job = launch("loop.py", "--until-stopped", options=["--max-restarts", 1], faults=f"{fault}:rank=1,step=3{code}")

    assert job.wait() == 0
    (incident,) = job.incidents()
    assert (incident.kind, incident.generation) == ("failure", 0)
    assert incident.culprit is not None
    assert (incident.culprit.rank, incident.culprit.exit_code) == (1, CODES[fault])
    assert (incident.culprit.iteration, incident.culprit.section) == (3, "step")
    assert job.stdout.count("is done in generation 1") == 2
    assert [event["generation"] for event in job.events("started")] == [0, 1]


def test_a_rank_that_fails_for_good_ends_the_job_with_1(launch: Callable[..., Any]) -> None:
    job = launch(
        *("loop.py", "--until-stopped"),
        options=["--max-restarts", 2],
        faults="exit:rank=0,step=3,generation=any,code=5",
        max_no_progress_cycles=0,
    )

    assert job.wait() == 1
    assert [event["generation"] for event in job.events("started")] == [0, 1, 2]
    *_, last = job.incidents()
    assert len(job.incidents()) == 3
    assert "Traceback" not in job.stderr
    assert [line for line in job.stderr.splitlines() if "restart" in line and "generation" not in line] == [
        "ft_launcher: restart 1 of 2 follows",
        "ft_launcher: restart 2 of 2 follows",
        "ft_launcher: the job has failed: no restart is left (--max-restarts 2)",
    ]
    box = job.stderr.partition("the job has failed: ")[2]
    assert f"rank 0 (pid {last.culprit.pid}) exited with code 5" in box
    assert f"{last.folder}/report.txt" in box
    (began,), (ended,) = job.events("began"), job.events("ended")
    assert began["configuration"]["max_no_progress_cycles"] == 0
    assert any(argument.endswith("loop.py") for argument in began["arguments"])
    assert (ended["outcome"], ended["exit_code"], ended["failures"]) == ("failed", 1, 3)


@pytest.mark.parametrize("restarts", [0, 3])
def test_an_error_in_the_configuration_is_not_tried_again(launch: Callable[..., Any], restarts: int) -> None:
    """Four generations that say the same would only hide what is to be done."""
    job = launch(
        "unconfigured.py", options=["--max-restarts", restarts], rank_section_timeouts="step:3,checkpointing:3", nproc=1
    )

    assert job.wait() == 93
    assert len(job.events("started")) == 1
    assert "No restart can mend that" in job.stderr.partition("the job has failed: ")[2]
    assert "did you mean 'checkpointing'?" in job.stderr
    assert "follows" not in job.stderr


def test_an_error_in_a_configuration_that_has_worked_before_is_tried_again(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    """A file system that is not there for a while is no mistake in how the job was configured."""
    flag = tmp_path / "flags" / "finished"
    flag.parent.mkdir()
    job = launch(
        "folder_is_gone.py",
        options=["--max-restarts", 3],
        env={"FAULT_TOL_FINISHED_FLAG_FILE": str(flag)},
        nproc=1,
    )

    assert job.wait() == 0, job.stderr
    assert len(job.events("started")) == 3
    assert "in a folder that does not exist" in job.stderr
    assert flag.exists()


def test_a_job_that_gets_nowhere_is_given_up_with_93(launch: Callable[..., Any]) -> None:
    """The same failure would only come again, forty-four times if it were allowed to."""
    job = launch(
        "loop.py",
        options=["--max-restarts", 44],
        faults="exit:rank=0,step=3,generation=any",
        max_no_progress_cycles=2,
        restart_backoff_after=0,
        nproc=1,
    )

    assert job.wait() == 93
    assert len(job.events("started")) == 3
    assert "the job has failed: 2 generations in a row" in job.stderr
    assert "Traceback" not in job.stderr


def test_the_exit_code_of_giving_up_can_be_chosen(launch: Callable[..., Any]) -> None:
    job = launch(
        "loop.py",
        options=["--max-restarts", 9],
        faults="exit:rank=0,step=3,generation=any",
        max_no_progress_cycles=1,
        no_restart_exit_code=55,
        nproc=1,
    )
    assert job.wait() == 55


def test_progress_of_the_checkpoint_keeps_a_job_going(launch: Callable[..., Any], tmp_path: Path) -> None:
    """Each generation saves a little more than the one before, so each failure is worth a restart."""
    job = launch(
        *("saves_and_dies.py", tmp_path / "iteration", 4),
        options=["--max-restarts", 9],
        max_no_progress_cycles=1,
        checkpoint_iteration_file=tmp_path / "iteration",
        restart_backoff_after=0,
        nproc=1,
    )
    assert job.wait() == 0
    assert len(job.events("started")) == 5


@pytest.mark.parametrize(
    "how",
    [
        "silent",
        *(
            pytest.param(how, marks=pytest.mark.long)
            for how in ("epochs", "saves", "loads", "numbers", "generations", "local", "ahead", "older")
        ),
    ],
)
def test_a_job_that_gets_on_is_not_given_up_however_it_counts(
    launch: Callable[..., Any], tmp_path: Path, how: str
) -> None:
    job = launch(
        *("counts.py", how, tmp_path / "epoch"),
        options=["--max-restarts", 9],
        max_no_progress_cycles=2 if how == "older" else 1,
        restart_backoff_after=0,
        nproc=1,
    )
    assert job.wait() == 0
    assert len(job.events("started")) == 5
    tells_nothing = how in ("epochs", "numbers", "loads", "local", "ahead")
    assert job.stderr.count("counted within each epoch") == tells_nothing
    assert job.events("ended")[0]["went_back"] is tells_nothing


@pytest.mark.parametrize("peer", ["ignores SIGTERM", "is stopped"])
def test_a_stubborn_peer_delays_the_restart_by_no_more_than_the_bound(
    launch: Callable[..., Any], tmp_path: Path, peer: str
) -> None:
    """It has nothing left to save; a stopped one cannot even be asked."""
    faults = "exit:rank=0,step=30" + (";sigstop:rank=1,step=3" if peer == "is stopped" else "")
    options = ["--ignore-sigterm"] if peer == "ignores SIGTERM" else []
    job = launch(
        *("loop.py", "--until-stopped", "--meet", tmp_path, *options),
        options=["--max-restarts", 1],
        faults=faults,
        failure_stop_timeout=1 if peer == "ignores SIGTERM" else 600,
    )

    assert job.wait() == 0
    assert job.stdout.count("is done in generation 1") == 2


def test_what_a_dead_rank_has_started_is_gone_before_its_successor_starts(launch: Callable[..., Any]) -> None:
    """Forked or not, in a process group or a session of its own, orphaned or not, one without environment; all deaf."""
    job = launch("family.py", options=["--max-restarts", 1], nproc=1)

    assert job.wait() == 0
    assert "generation 1 finds 0 of 6 alive" in job.stdout


def test_orphans_that_have_ended_are_collected_while_training_goes_on(launch: Callable[..., Any]) -> None:
    job = launch("orphans.py", nproc=1)
    job.wait_for_output("50 orphans have ended")

    job.until(lambda: not job.zombies(), "end of the zombies")
    (job.work / "stop").touch()

    assert job.wait() == 0


def test_what_a_finished_rank_has_left_running_is_left_alone(launch: Callable[..., Any]) -> None:
    """A rank that ends with 0 may leave something behind on purpose, as under torchrun."""
    job = launch("family.py", "--finish", nproc=1)

    assert job.wait() == 0
    left = job.processes()
    assert len(left) == 6
    job.kill_all()


def test_the_first_line_of_a_recorded_error_is_told(launch: Callable[..., Any]) -> None:
    job = launch("records_error.py", nproc=1)

    assert job.wait() == 1
    assert "  error   KeyError: 'the missing key'" in job.stderr


def test_a_rank_that_ends_early_with_0_is_no_failure(launch: Callable[..., Any]) -> None:
    """Its peers go on, and what it left open in its cell is held against nobody."""
    job = launch("ends_early.py", rank_section_timeouts="step:1", rank_out_of_section_timeout=1)

    assert job.wait() == 0
    assert job.incidents() == []
    assert "rank 1 went on" in job.stdout


def test_generations_that_die_young_are_given_time(launch: Callable[..., Any]) -> None:
    job = launch("dies_at_once.py", options=["--max-restarts", 2], restart_backoff_after=2, nproc=1)

    assert job.wait() == 1
    (backing_off,) = job.events("backing_off")
    assert backing_off["seconds"] == 1.0
    assert "2 generations in a row died within 10 s" in job.stderr


def test_restarts_of_a_real_group_form_the_new_group_every_time(launch: Callable[..., Any]) -> None:
    """Ranks of the next generation must never meet in the store of the last one."""
    job = launch(
        *("gloo_loop.py", "--steps", 4),
        options=["--max-restarts", 4],
        faults=";".join(f"sigkill:rank={generation % 2},step=2,generation={generation}" for generation in range(4)),
        max_no_progress_cycles=0,
    )

    assert job.wait(90) == 0
    assert job.stdout.count("sums 12 in generation 4") == 2
    assert len(job.incidents()) == 4
