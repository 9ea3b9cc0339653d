"""A rank's word to its launcher: obeyed, told, and never restarted into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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


@pytest.mark.parametrize(("ranks", "restarts"), [("0,1", 5), ("1", 5), ("1", 0)])
def test_training_that_is_stopped_on_purpose_is_not_restarted_and_says_why(
    launch: Callable[..., Any], ranks: str, restarts: int
) -> None:
    job = launch("stops_on_purpose.py", ranks, options=["--max-restarts", restarts])

    assert job.wait() == 1
    assert "the job has failed: rank " in job.stderr
    assert "has stopped the training: the loss is low enough" in job.stderr
    assert len(job.events("started")) == 1
    assert "Traceback" not in job.stderr
    (given_up,) = job.events("given_up")
    (ended,) = job.events("ended")
    assert "has stopped the training: the loss is low enough" in given_up["why"] == ended["why"]


def test_a_rank_that_catches_the_stop_ends_as_it_likes(launch: Callable[..., Any]) -> None:
    job = launch("stops_on_purpose.py", "0,1", "caught", options=["--max-restarts", 5])

    assert job.wait() == 0
    assert len(job.events("started")) == 1
    assert job.stdout.count("saved after the stop") == 2


@pytest.mark.parametrize("peer", ["fails", "hangs"])
@pytest.mark.parametrize("where", ["finally", "atexit"])
def test_a_rank_that_stops_the_training_and_takes_long_to_end_has_stopped_it(
    launch: Callable[..., Any], tmp_path: Path, where: str, peer: str
) -> None:
    """Its peers fail before it has ended."""
    sections = "setup:600,step:1,checkpointing:600"
    limits = {"rank_section_timeouts": sections, "num_warmup_iterations": 0} if peer == "hangs" else {}
    job = launch("stops_slowly.py", where, peer, tmp_path / "told", options=["--max-restarts", 5], **limits)

    assert job.wait() == 1
    assert "the job has failed: rank 0 has stopped the training: the loss is low enough" in job.stderr
    assert len(job.events("started")) == 1
    (stop,) = job.events("stopped_on_purpose")
    assert stop["why"] == "rank 0 has stopped the training: the loss is low enough"


@pytest.mark.parametrize("start", ["warm", "spawn"])
@pytest.mark.parametrize("how", ["raise", "exit", "kill"])
def test_what_fails_after_a_stop_was_caught_is_another_failure(
    launch: Callable[..., Any], how: str, start: str
) -> None:
    job = launch("exports_after_stop.py", how, nproc=1, options=["--max-restarts", 1], worker_start=start)

    assert job.wait() == 0
    assert job.stdout.count("exported") == 1
    assert len(job.events("started")) == 2
    assert "StopTraining" not in "".join(rank.message or "" for i in job.incidents() for rank in i.ranks)
    assert job.events("stopped_on_purpose") == []
