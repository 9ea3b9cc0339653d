"""A port that the user named: the job restarts on it as often as it must, alone and with a second node."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

THREE_FAILURES = (
    "sigkill:rank=1,step=2,generation=0;deadlock:rank=0,step=2,generation=1;exit:rank=1,step=2,generation=2"
)
LIMITS = {"rank_section_timeouts": "setup:60,step:2,checkpointing:60", "max_no_progress_cycles": 0}


@pytest.fixture
def port(unused_port: Callable[[], int]) -> int:
    return unused_port()


def ports_of_rank_0(job: Any) -> list[str]:
    # Ranks write as with python -u: a line and its end are two writes, and another rank's line may come between.
    return re.findall(r"rank 0 meets on port \d+ in generation \d", job.stdout)


@pytest.mark.parametrize(
    "way",
    [
        ("--master-port", "{port}"),
        pytest.param(("--rdzv-backend", "static", "--rdzv-endpoint", "localhost:{port}"), marks=pytest.mark.long),
        pytest.param(("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:{port}"), marks=pytest.mark.long),
    ],
    ids=["master-port", "static", "c10d"],
)
def test_a_fixed_port_survives_three_restarts_in_a_row(launch: Callable[..., Any], port: int, way: tuple[str]) -> None:
    options = [option.format(port=port) for option in way]
    job = launch(
        *("gloo_loop.py", "--steps", 4), options=(*options, "--max-restarts", 3), faults=THREE_FAILURES, **LIMITS
    )

    assert job.wait(90) == 0, job.stderr
    assert job.stdout.count("sums 12 in generation 3") == 2
    if "c10d" not in way:  # its endpoint is where nodes meet, and one node has nobody to meet
        assert ports_of_rank_0(job) == [f"rank 0 meets on port {port} in generation {n}" for n in range(4)]


def test_two_nodes_restart_around_a_fixed_port(launch: Callable[..., Any], port: int) -> None:
    nodes = [
        launch(
            *("gloo_loop.py", "--steps", 4),
            nproc=1,
            options=(
                *("--nnodes", 2, "--node-rank", node, "--master-addr", "localhost", "--master-port", port),
                *("--max-restarts", 3),
            ),
            faults=THREE_FAILURES,
            **LIMITS,
        )
        for node in range(2)
    ]

    assert [node.wait(90) for node in nodes] == [0, 0], nodes[0].stderr + nodes[1].stderr
    for node in nodes:
        assert "sums 12 in generation 3" in node.stdout


def test_two_jobs_on_one_host_need_no_port_of_their_own(launch: Callable[..., Any]) -> None:
    """Older versions of torch say 29500 where the user says nothing."""
    jobs = [launch("gloo_loop.py", "--steps", 2) for _ in range(2)]

    assert [job.wait(90) for job in jobs] == [0, 0], jobs[0].stderr + jobs[1].stderr
