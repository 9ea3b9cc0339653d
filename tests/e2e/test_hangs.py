"""A rank that goes silent is seen, explained and killed, whatever it hangs in, and its neighbour is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.py_spy import find_py_spy

pytestmark = pytest.mark.e2e

LIMITS = {
    "sections": {"rank_section_timeouts": "setup:90,step:0.5,checkpointing:90"},
    "heartbeats": {"initial_rank_heartbeat_timeout": 20, "rank_heartbeat_timeout": 0.5},
}
PATIENT = {"stack_capture_timeout": 60}
"""On a busy machine half a second is too short for a stack."""
HANGING = ("sigstop", "deadlock", "gil", "busy_loop")


@pytest.mark.parametrize(
    ("api", "fault"),
    [
        *(("sections", fault) for fault in HANGING),
        ("heartbeats", "deadlock"),
        *(pytest.param("heartbeats", fault, marks=pytest.mark.long) for fault in HANGING if fault != "deadlock"),
    ],
)
def test_a_hung_rank_is_condemned_and_its_neighbour_is_not(launch: Callable[..., Any], api: str, fault: str) -> None:
    job = launch(
        *("loop.py", "--api", api, "--until-stopped"),
        options=["--max-restarts", 1],
        faults=f"{fault}:rank=1,step=3",
        **LIMITS[api],
        **PATIENT,
    )

    assert job.wait() == 0
    (incident,) = job.incidents()
    assert incident.kind == "hang"
    assert [rank.rank for rank in incident.condemned] == [1]
    assert incident.culprit is not None
    assert incident.culprit.rank == 1
    assert incident.culprit.iteration == 3
    assert incident.culprit.section == ("step" if api == "sections" else None)
    assert incident.culprit.cause == ("section" if api == "sections" else "heartbeat")
    assert incident.culprit.limit_seconds == 0.5
    assert incident.culprit.stack
    assert {rank.pid for rank in incident.ranks} == set(job.workers(0).values())
    assert job.stdout.count("is done in generation 1") == 2


@pytest.mark.parametrize("api", ["sections", pytest.param("heartbeats", marks=pytest.mark.long)])
def test_a_missing_collective_names_the_rank_that_skipped_it(launch: Callable[..., Any], api: str) -> None:
    """The victims wait in the collective and so does everybody after them; the one outside is the culprit."""
    limits = {
        "sections": {"rank_section_timeouts": "setup:60,step:1.5,checkpointing:60"},
        "heartbeats": {"initial_rank_heartbeat_timeout": 60, "rank_heartbeat_timeout": 1.5},
    }
    job = launch(
        *("gloo_loop.py", "--api", api),
        options=["--max-restarts", 1],
        faults="missing_collective:rank=1,step=3",
        **limits[api],
        **PATIENT,
    )

    assert job.wait(60) == 0
    (incident,) = job.incidents()
    assert incident.kind == "hang"
    assert {rank.rank for rank in incident.ranks} == {0, 1}
    assert all(rank.stack for rank in incident.ranks)
    assert incident.why
    assert job.stdout.count("sums 24 in generation 1") == 2


@pytest.mark.long
def test_a_rank_with_busy_threads_does_not_die_of_the_question_for_its_stack(launch: Callable[..., Any]) -> None:
    """Without py-spy, a signal had it read the stacks of running threads, and it died of SIGSEGV."""
    job = launch(
        "busy_threads.py",
        options=["--max-restarts", 5, "--ft-max-no-progress-cycles", 0, "--ft-restart-backoff-after", 0],
        env={"FT_PY_SPY": "none"},
        rank_section_timeouts="step:1",
        **PATIENT,
    )
    assert job.wait(120) == 0, job.stderr
    incidents = job.incidents()
    assert len(incidents) == 5
    for incident in incidents:
        assert incident.kind == "hang"
        assert {rank.rank for rank in incident.culprits} <= {1}
    waiting = [rank for incident in incidents for rank in incident.ranks if rank.rank == 0]
    # On a busy machine its thread may be late, and the main thread alone is known then.
    assert any(frame.function == "copies" for rank in waiting for thread in rank.stack for frame in thread.frames)
    assert "SIGSEGV" not in job.stderr
    assert job.stdout.count("is done in generation 5") == 2


def test_who_waits_for_a_rank_that_comes_back_is_spared_until_it_has_gone_on(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    """It is overdue, and still waits in the collective when the next look is due, which killed it."""
    py_spy = tmp_path / "py-spy-that-waits"
    py_spy.write_text(
        f"""#!/bin/sh
touch {tmp_path}/asked
for _ in $(seq 6000); do [ -e {tmp_path}/back ] && break; sleep 0.01; done
exec {find_py_spy()} "$@"
"""
    )
    py_spy.chmod(0o755)
    job = launch(
        *("comes_back.py", tmp_path, "asked", 1),
        options=["--max-restarts", 0],
        env={"FT_PY_SPY": str(py_spy)},
        rank_section_timeouts="step:3",
        stack_capture_timeout=120,
    )
    assert job.wait(120) == 0, job.stderr
    assert job.incidents() == []
    assert job.stdout.count("is done") == 2
    assert "rank 0 (pid " in job.stderr
    assert " waits for rank 1, which came back" in job.stderr


@pytest.mark.long
def test_who_waits_for_a_rank_that_was_late_for_a_moment_is_spared(launch: Callable[..., Any]) -> None:
    """No look may have found it to be late; it counted as in time then, and the one that waited was killed."""
    job = launch("late_unseen.py", 1, 6, options=["--max-restarts", 0], rank_section_timeouts="step:1")
    assert job.wait(120) == 0, job.stderr
    assert job.incidents() == []
    assert job.stdout.count("is done") == 2
    assert " waits for rank 1, which came back" in job.stderr


def test_a_slow_step_within_its_limit_is_nobodys_business(launch: Callable[..., Any]) -> None:
    job = launch(
        "loop.py", faults="slow_step:rank=1,step=3,seconds=0.7", rank_section_timeouts="setup:9,step:20,checkpointing:9"
    )

    assert job.wait() == 0
    assert job.incidents() == []


@pytest.mark.parametrize("how", ["ignored", "obeyed"])
def test_a_termination_signal_that_is_ignored_is_followed_by_sigkill(launch: Callable[..., Any], how: str) -> None:
    job = launch(
        *("loop.py", "--until-stopped", *(["--ignore-sigterm"] if how == "ignored" else [])),
        options=["--max-restarts", 1],
        faults="deadlock:rank=0,step=3",
        rank_termination_signal="SIGTERM",
        failure_stop_timeout=0.5,
        rank_section_timeouts="setup:90,step:0.5,checkpointing:90",
    )

    assert job.wait() == 0
    assert "SIGTERM to rank 0" in job.stderr
    assert job.stdout.count("is done in generation 1") == 2


def test_a_rank_that_hangs_before_it_is_monitored_is_caught_by_the_startup_limit(launch: Callable[..., Any]) -> None:
    job = launch("hangs_at_start.py", options=["--max-restarts", 1], rank_startup_timeout=4)

    assert job.wait() == 0
    (incident,) = job.incidents()
    assert [rank.rank for rank in incident.condemned] == [1]
    assert (incident.culprits[0].cause, incident.culprits[0].limit_seconds) == ("startup", 4)
    assert incident.culprits[0].pid == job.workers(0)[1]
    assert "init_workload_monitoring() not called for" in job.stderr


def test_without_a_startup_limit_nobody_is_held_to_one(launch: Callable[..., Any]) -> None:
    job = launch("hangs_at_start.py", "--seconds", "1")
    assert job.wait() == 0
    assert job.incidents() == []


def test_a_training_behind_a_shell_is_itself_the_one_that_is_signalled(launch: Callable[..., Any]) -> None:
    """The worker that was started is a wrapper; the verdict must reach the process that hangs."""
    job = launch(
        *("/bin/sh", "-c", 'python3=$1; shift; "$python3" "$@"; exit $?', "sh", "{python}", "{scripts}/loop.py"),
        options=["--no-python", "--max-restarts", 1],
        faults="deadlock:rank=0,step=3",
        rank_section_timeouts="setup:90,step:0.5,checkpointing:90",
        nproc=1,
    )

    assert job.wait() == 0
    (incident,) = job.incidents()
    assert incident.culprits[0].pid not in job.workers(0).values()
    assert "is done in generation 1" in job.stdout


def test_a_hang_without_stacks_is_handled_all_the_same(launch: Callable[..., Any]) -> None:
    job = launch(
        "loop.py",
        options=["--max-restarts", 1],
        faults="deadlock:rank=1,step=3",
        capture_stacks="false",
        rank_section_timeouts="setup:90,step:0.5,checkpointing:90",
    )

    assert job.wait() == 0
    assert [rank.rank for rank in job.incidents()[0].condemned] == [1]
    assert all(rank.stack == () for rank in job.incidents()[0].ranks)


def test_ranks_that_are_overdue_together_are_condemned_together(launch: Callable[..., Any]) -> None:
    for _ in range(5):
        job = launch(
            "loop.py",
            options=["--max-restarts", 1],
            faults="deadlock:rank=0,step=3;deadlock:rank=1,step=3",
            rank_section_timeouts="setup:90,step:1,checkpointing:90",
        )
        assert job.wait() == 0
        ((first, second), *_) = [incident.ranks for incident in job.incidents()]
        if abs(first.open_seconds - second.open_seconds) < 0.09:  # together is 0.1 s; these ranks start as they can
            break
    else:
        pytest.fail("five times, the two ranks did not start within 0.1 s of each other")

    condemned = [rank.rank for incident in job.incidents() for rank in incident.condemned]
    assert sorted(condemned) == [0, 1]
    assert job.stdout.count("is done in generation 1") == 2
    assert len(job.events("started")) == 2
