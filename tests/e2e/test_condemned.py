"""A rank that was condemned has failed, however it ends and whatever lives on around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_one_that_ends_with_0_when_it_is_terminated_has_not_succeeded(launch: Callable[..., Any]) -> None:
    job = launch(
        "condemned.py",
        options=["--max-restarts", 1],
        rank_section_timeouts="step:0.5",
        rank_termination_signal="SIGTERM",
        failure_stop_timeout=20,
    )

    assert job.wait() == 0
    assert job.stdout.count("is done in generation 1") == 2
    assert [rank.rank for incident in job.incidents() for rank in incident.condemned] == [1]


def test_without_a_restart_left_the_job_has_failed(launch: Callable[..., Any]) -> None:
    job = launch("condemned.py", rank_section_timeouts="step:0.5", rank_termination_signal="SIGTERM")

    assert job.wait() == 1
    assert "is done" not in job.stdout


def test_a_wrapper_that_lives_on_around_it_does_not_hold_the_restart_up(launch: Callable[..., Any]) -> None:
    job = launch(
        *("/bin/bash", "-c", "{python} {scripts}/condemned.py || sleep 1000"),
        options=["--max-restarts", 1, "--no-python"],
        rank_section_timeouts="step:0.5",
        failure_stop_timeout=0.5,
    )

    assert job.wait() == 0
    assert job.stdout.count("is done in generation 1") == 2
    assert "the worker around rank" in job.stderr
    assert [rank.rank for incident in job.incidents() for rank in incident.condemned] == [1]
