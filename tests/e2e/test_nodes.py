"""Two agents on one machine: they restart together, count together, and end together."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

LIMITS = "setup:60,step:20,checkpointing:60"


def answers(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


@pytest.fixture
def launch_nodes(launch: Callable[..., Any], unused_port: Callable[[], int]) -> Callable[..., list[Any]]:
    """Start one launcher per node, all with the same arguments."""

    def start(
        script: str,
        *arguments: object,
        nodes: int = 2,
        nnodes: str = "2",
        options: tuple[object, ...] = (),
        first_is_host: bool = False,
        **ft: Any,
    ) -> list[Any]:
        port = unused_port()
        rendezvous = ("--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-id", "job", "--local-addr", "127.0.0.1")
        rendezvous += ("--rdzv-endpoint", f"localhost:{port}")
        started: list[Any] = []
        for _ in range(nodes):
            ours = {"rank_section_timeouts": LIMITS, **ft}
            started.append(launch(script, *arguments, options=(*rendezvous, *options), **ours))
            if first_is_host:  # the store of the rendezvous is the first one's, not whose comes first
                started[0].until(lambda: answers(port), "store of the first node")
        return started

    return start


def test_a_failure_on_one_node_restarts_both_under_one_number(launch_nodes: Callable[..., list[Any]]) -> None:
    nodes = launch_nodes(
        "loop.py", "--until-stopped", nproc=1, options=("--max-restarts", 1), faults="sigkill:rank=1,step=3"
    )

    assert [node.wait(60) for node in nodes] == [0, 0]
    for node in nodes:
        assert [event["generation"] for event in node.events("started")] == [0, 1]
        assert "is done in generation 1" in node.stdout
    assert sum(len(node.incidents()) for node in nodes) == 1


def test_the_budget_is_one_for_all_nodes(launch_nodes: Callable[..., list[Any]]) -> None:
    """Each node fails once, in turn: two failures of the job, whoever had them, use up a budget of two."""
    nodes = launch_nodes(
        *("loop.py", "--until-file", "never"),
        nproc=1,
        options=("--max-restarts", 2),
        faults="exit:rank=0,step=3,generation=0;exit:rank=1,step=3,generation=1;exit:rank=0,step=3,generation=2",
        max_no_progress_cycles=0,
    )

    assert [node.wait(90) for node in nodes] == [1, 1]
    for node in nodes:
        assert [event["generation"] for event in node.events("started")] == [0, 1, 2]
        assert "Traceback" not in node.stderr


def test_the_death_of_a_launcher_frees_the_others(launch_nodes: Callable[..., list[Any]]) -> None:
    """SIGKILL of one node's launcher: its ranks go with it; the other, asked to end, has its rank save its work."""
    nodes = launch_nodes("loop.py", "--until-stopped", "--on-sigterm", 0, nproc=1, first_is_host=True)
    for node in nodes:
        node.wait_for_output("runs in generation 0")

    nodes[1].signal(signal.SIGKILL)
    assert nodes[1].wait() == -signal.SIGKILL
    nodes[1].assert_nothing_is_left()
    nodes[0].signal(signal.SIGTERM)

    assert nodes[0].wait() == 0
    assert "has saved its work" in nodes[0].stdout
    assert "ended by SIGTERM; every worker ended with 0" in nodes[0].stderr
    assert len(nodes[0].events("started")) == 1


def test_real_groups_over_two_nodes_meet_in_a_fresh_store(launch_nodes: Callable[..., list[Any]]) -> None:
    nodes = launch_nodes(
        *("gloo_loop.py", "--steps", 4),
        nproc=1,
        options=("--max-restarts", 2),
        faults="sigkill:rank=1,step=2,generation=0;sigkill:rank=0,step=2,generation=1",
        max_no_progress_cycles=0,
    )

    assert [node.wait(90) for node in nodes] == [0, 0]
    for node in nodes:
        assert "sums 12 in generation 2" in node.stdout


def test_a_request_to_shut_down_ends_both_nodes(launch_nodes: Callable[..., list[Any]]) -> None:
    nodes = launch_nodes("requests.py", "ShutdownWorkload", "enough", nproc=1, options=("--max-restarts", 5))

    assert [node.wait(60) for node in nodes] == [1, 1]
    assert sum("rank 1 requests ShutdownWorkload: enough" in node.stderr for node in nodes) == 2
    assert all(len(node.events("started")) == 1 for node in nodes)


def test_a_hang_on_one_node_is_one_incident_and_a_restart_of_both(launch_nodes: Callable[..., list[Any]]) -> None:
    nodes = launch_nodes(
        *("loop.py", "--until-stopped"),
        nproc=1,
        options=("--max-restarts", 1),
        rank_section_timeouts="setup:60,step:0.7,checkpointing:60",
        faults="deadlock:rank=0,step=3",
    )

    assert [node.wait(60) for node in nodes] == [0, 0]
    (incident,) = [incident for node in nodes for incident in node.incidents()]
    assert [rank.rank for rank in incident.condemned] == [0]


def test_a_node_that_joins_later_makes_a_new_generation(
    launch: Callable[..., Any], unused_port: Callable[[], int]
) -> None:
    """With torch's rendezvous the newcomer's ranks meet the others in a store that nobody has used.

    Those that were healthy have something to save, and more time for it than after a failure.
    """
    port = unused_port()
    options = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "job", "--local-addr", "127.0.0.1")
    options += ("--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", "last_call_timeout=1", "--max-restarts", 0)
    options += ("--ft-membership", "torch")
    saves = ("--on-sigterm", 0, "--step-seconds", 1)
    ft: dict[str, Any] = {"rank_section_timeouts": LIMITS, "failure_stop_timeout": 0.05}
    first = launch("loop.py", "--until-file", "stop", *saves, nproc=1, options=options, **ft)
    first.wait_for_output("runs in generation 0")
    second = launch("loop.py", "--until-file", "stop", nproc=1, options=options, rank_section_timeouts=LIMITS)

    for node in (first, second):
        node.wait_for_output("runs in generation 1")
    assert "rank 0 has saved its work" in first.stdout
    assert "the nodes have changed: generation 0 has up to 30 s to save and end" in first.stderr
    for node in (first, second):
        (node.work / "stop").touch()

    assert [first.wait(60), second.wait(60)] == [0, 0]
    assert os.path.exists(first.work / "stop")


def test_a_newcomer_takes_part_after_the_next_checkpoint_if_asked(
    launch: Callable[..., Any], unused_port: Callable[[], int]
) -> None:
    options = ("--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{unused_port()}", "--local-addr", "127.0.0.1")
    options += ("--rdzv-conf", "last_call_timeout=1", "--max-restarts", 0)
    saves = ("--until-file", "stop", "--on-sigterm", 0, "--step-seconds", 0.05, "--save-every", 5)
    ft: dict[str, Any] = {"rank_section_timeouts": LIMITS, "node_lease": 2, "newcomers": "checkpoint"}
    first = launch("loop.py", *saves, nproc=1, options=options, **ft)
    first.wait_for_output("runs in generation 0")
    second = launch("loop.py", *saves, nproc=1, options=options, **ft)

    for node in (first, second):
        node.wait_for_output("runs in generation 1")
    assert "a node that has joined takes part from here on" in first.stderr
    assert "the nodes have changed: generation 0 has up to 30 s to save and end" in first.stderr
    for node in (first, second):
        (node.work / "stop").touch()
    assert [first.wait(60), second.wait(60)] == [0, 0]
