"""Who is blamed without py-spy, the default install: real gloo groups whose peers wait, or lose their connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


@pytest.fixture
def trouble(launch: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    # Torch makes the folder in the temporary one otherwise, and leaves it there.
    environment = {"FT_PY_SPY": "none", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    return lambda *arguments: launch(
        *("gloo_trouble.py", *arguments),
        nproc=3,
        options=["--max-restarts", 1],
        env=environment,
        rank_section_timeouts="setup:60,step:1.5,checkpointing:60",
        rank_out_of_section_timeout=60,
        stack_capture_timeout=10,  # on a busy machine half a second is too short for a stack
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "kind", "why"),
    [
        ("deadlock", "hang", "outside any collective"),
        ("busy", "hang", "outside any collective"),
        ("backward", "hang", "outside any collective"),
        ("sigstop", "hang", "stopped (SIGSTOP)"),
        ("ptrace", "hang", "stopped by a tracer"),
        ("hung_exception", "hang", "raised ValueError"),
        ("segfault", "failure", "SIGSEGV"),
        ("sigkill", "failure", "killed by SIGKILL"),
        ("exit", "failure", "ended by itself, without an exception"),
        ("exception", "failure", "raised ValueError"),
        ("early_exit", "failure", "ended with 0 while the others still needed it"),
    ],
)
def test_the_rank_in_trouble_is_blamed_and_none_of_its_victims(
    trouble: Callable[..., Any], fault: str, kind: str, why: str
) -> None:
    how = ["--collective", "backward"] if fault == "backward" else []
    job = trouble(fault, *how, *(["--teardown-seconds", "30"] if fault == "hung_exception" else []))

    assert job.wait(90) == 0
    (incident,) = job.incidents()
    assert (incident.kind, [rank.rank for rank in incident.culprits]) == (kind, [1]), "\n".join(incident.summary())
    assert why in incident.why
    assert job.stdout.count("is done in generation 1") == 3


@pytest.mark.long
@pytest.mark.parametrize("is_kept", [False, True], ids=["freed", "kept"])
@pytest.mark.parametrize(
    ("fault", "kind", "why"),
    [
        ("deadlock", "hang", "outside any collective"),
        ("sigkill", "failure", "killed by SIGKILL"),
        ("exit", "failure", "raised SystemExit"),
        ("exception", "failure", "raised RuntimeError"),
    ],
)
def test_a_rank_that_has_caught_its_exception_and_waits_is_no_culprit(
    launch: Callable[..., Any], tmp_path: Path, fault: str, kind: str, why: str, is_kept: bool
) -> None:
    job = launch(
        *("skips_a_batch.py", fault, *(["--kept"] if is_kept else [])),
        nproc=3,
        options=["--max-restarts", 1],
        env={"FT_PY_SPY": "none", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        rank_section_timeouts="setup:60,step:1.5,checkpointing:60",
        rank_out_of_section_timeout=10,
        stack_capture_timeout=10,
    )

    assert job.wait(90) == 0
    (incident,) = job.incidents()
    told = "\n".join(incident.summary())
    assert incident.kind == kind, told
    assert [rank.rank for rank in incident.culprits] == [0], told
    assert why in incident.why, told


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("finally", "raised ValueError"),
        ("between", "raised ValueError"),
        ("handler", "raised ValueError"),
        ("after", "raised StepFailedError, and another had destroyed its process group before"),
    ],
)
def test_a_rank_that_has_destroyed_its_group_and_goes_on_is_no_fact_of_another_one(
    launch: Callable[..., Any], tmp_path: Path, where: str, why: str
) -> None:
    job = launch(
        *("leaves_its_group.py", where),
        nproc=3,
        options=["--max-restarts", 1],
        env={"FT_PY_SPY": "none", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        rank_section_timeouts="setup:60,step:30,checkpointing:60",
        rank_out_of_section_timeout=30,
    )

    assert job.wait(90) == 0
    (incident,) = job.incidents()
    told = "\n".join(incident.summary())
    assert incident.kind == "failure", told
    assert 0 in [rank.rank for rank in incident.culprits], told
    assert why in incident.why, told
    assert incident.why.startswith("likely: "), told


@pytest.mark.long
def test_it_is_told_how_far_each_rank_is_in_its_collectives(trouble: Callable[..., Any]) -> None:
    job = trouble("deadlock")

    assert job.wait(90) == 0
    (incident,) = job.incidents()
    numbers = [rank.evidence.groups[0].number for rank in incident.ranks]
    assert numbers == [numbers[1] + 1, numbers[1], numbers[1] + 1]
    assert "of group 0\nft_launcher:   why " in job.stderr
    assert f"has called {numbers[0]} collectives of group 0" in "\n".join(incident.report())


@pytest.mark.long
@pytest.mark.parametrize(("fault", "kind"), [("exit", "failure"), ("deadlock", "hang")])
def test_peers_that_have_lost_no_more_than_a_thread_are_not_blamed(
    trouble: Callable[..., Any], fault: str, kind: str
) -> None:
    job = trouble(fault, "--thread-error")

    assert job.wait(90) == 0
    (incident,) = job.incidents()
    assert (incident.kind, [rank.rank for rank in incident.culprits]) == (kind, [1]), "\n".join(incident.summary())


@pytest.mark.long
def test_one_that_skips_a_collective_is_blamed_or_nobody_is(trouble: Callable[..., Any]) -> None:
    job = trouble("skip")

    assert job.wait(90) == 0
    (incident,) = job.incidents()
    assert {rank.rank for rank in incident.culprits} <= {1}


@pytest.mark.long
def test_of_two_the_one_that_is_a_section_ahead_of_the_collective_it_skipped_is_blamed(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    job = launch(
        *("gloo_trouble.py", "skip_on"),
        options=["--max-restarts", 1],
        env={"FT_PY_SPY": "none", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        rank_section_timeouts="setup:60,step:1.5,checkpointing:60",
        rank_out_of_section_timeout=60,
    )

    assert job.wait(90) == 0
    (incident,) = job.incidents()
    assert [rank.rank for rank in incident.culprits] == [1], "\n".join(incident.summary())
    assert "likely: it has closed section 'step'" in incident.why


def test_an_exception_is_in_the_incident_with_type_traceback_section_and_step(trouble: Callable[..., Any]) -> None:
    """Its peers lose their connections while it takes a second to tear down, and end first."""
    job = trouble("exception")

    assert job.wait(90) == 0
    (incident,) = job.incidents()
    assert incident.culprit is not None, "\n".join(incident.summary())
    error = incident.culprit.error
    assert (incident.culprit.rank, error.type, error.message) == (1, "ValueError", "no such sample: 4711")
    assert (incident.culprit.section, incident.culprit.iteration) == ("step", 3)
    assert "in get_into" in error.traceback
    assert "ValueError: no such sample: 4711" in job.stderr.partition("  error   ")[2].splitlines()[0]


@pytest.mark.long
def test_a_rank_that_our_question_wakes_goes_on_and_so_does_everybody(trouble: Callable[..., Any]) -> None:
    job = trouble("interrupted_call")

    assert job.wait(90) == 0
    assert job.incidents() == []
    assert "when a signal asked for stacks" in job.stderr
    assert job.stdout.count("is done in generation 0") == 3
