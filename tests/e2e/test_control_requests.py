"""A rank's word to its launcher: obeyed, told, and never restarted into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("action", ["ShutdownWorkload", "ExcludeThisNode"])
def test_on_one_node_the_job_ends_with_1_and_says_who_asked(launch: Callable[..., Any], action: str) -> None:
    job = launch("requests.py", action, "the disk is on fire", options=["--max-restarts", 5])

    assert job.wait() == 1
    assert f"rank 1 requests {action}: the disk is on fire" in job.stderr
    assert len(job.events("started")) == 1
    (request,) = job.events("request")
    assert (request["rank"], request["action"], request["why"]) == (1, action, "the disk is on fire")
    assert job.stderr.count("the disk is on fire") == 2, "once when it is asked, once at the end"
    assert "Traceback" not in job.stderr


def test_continue_is_only_told(launch: Callable[..., Any]) -> None:
    job = launch("requests.py", "Continue", "all is well")

    assert job.wait() == 0
    assert "rank 1 requests Continue: all is well" in job.stderr
    assert len(job.events("request")) == 1


@pytest.mark.parametrize("ranks", ["0,1", "1"])
def test_training_that_is_stopped_on_purpose_is_not_restarted_and_says_why(
    launch: Callable[..., Any], ranks: str
) -> None:
    job = launch("stops_on_purpose.py", ranks, options=["--max-restarts", 5])

    assert job.wait() == 1
    assert "the job has failed: rank " in job.stderr
    assert "has stopped the training: the loss is low enough" in job.stderr
    assert len(job.events("started")) == 1
    assert "Traceback" not in job.stderr


def test_a_rank_that_catches_the_stop_ends_as_it_likes(launch: Callable[..., Any]) -> None:
    job = launch("stops_on_purpose.py", "0,1", "caught", options=["--max-restarts", 5])

    assert job.wait() == 0
    assert len(job.events("started")) == 1
    assert job.stdout.count("saved after the stop") == 2
