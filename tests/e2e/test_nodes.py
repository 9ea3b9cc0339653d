"""Two agents on one machine: they restart together, count together, and end together."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.py_spy import find_py_spy

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
    assert [event["generation"] for node in nodes for event in node.events("asked")] == [0, 0]


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
        assert node.stderr.endswith(f"ft_launcher[{os.uname().nodename}]: exit code 1\n")


def test_the_death_of_a_launcher_frees_the_others(launch_nodes: Callable[..., list[Any]]) -> None:
    """SIGKILL of one node's launcher: its ranks go with it; the other, asked to end, has its rank save its work.

    With torch's rendezvous, by which the other does not learn of it: else its generation may be over already.
    """
    options = ("--ft-membership", "torch")
    nodes = launch_nodes("loop.py", "--until-stopped", "--on-sigterm", 0, nproc=1, options=options, first_is_host=True)
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


def test_sigterm_to_a_node_whose_ranks_have_ended_with_0_spares_the_others(
    launch_nodes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """As when a scheduler takes back a node that has nothing left to do."""
    end = tmp_path / "end"
    nodes = launch_nodes("loop.py", "--done-at-once", 1, "--until-file", end, nproc=1, options=("--ft-node-lease", 1))
    nodes[0].until(lambda: any(node.events("finished") for node in nodes), "end of rank 1")
    done, busy = sorted(nodes, key=lambda node: not node.events("finished"))

    done.signal(signal.SIGTERM)
    assert done.wait(30) == 0
    assert "ended by SIGTERM; every worker ended with 0" in done.stderr
    assert done.stderr.endswith(f"ft_launcher[{os.uname().nodename}]: exit code 0\n")
    time.sleep(2)  # longer than the lease: nobody misses it, either
    end.touch()

    assert busy.wait(30) == 0
    assert "rank 0 is done in generation 0" in busy.stdout
    assert busy.stderr.endswith(f"ft_launcher[{os.uname().nodename}]: every rank has ended with 0; exit code 0\n")
    assert len(busy.events("started")) == 1


@pytest.mark.long
def test_a_node_whose_ranks_have_ended_does_not_wait_for_ever_for_a_job_that_is_gone(
    launch_nodes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    options = ("--ft-node-lease", 1, "--rdzv-conf", "join_timeout=4")
    nodes = launch_nodes(
        *("loop.py", "--done-at-once", 1, "--until-file", tmp_path / "never"), nproc=1, options=options
    )
    nodes[0].until(lambda: any(node.events("finished") for node in nodes), "end of rank 1")
    done, busy = sorted(nodes, key=lambda node: not node.events("finished"))

    busy.signal(signal.SIGKILL)
    assert busy.wait() == -signal.SIGKILL
    assert done.wait() == 1
    # Whether it led decides which of the two it is.
    assert (
        "nobody has led the job for 4 s" in done.stderr
        or "only 1 of at least 2 nodes could take part within 4 s" in done.stderr
    )


@pytest.mark.parametrize("what", [pytest.param(signal.SIGKILL, marks=pytest.mark.long), signal.SIGSTOP])
def test_a_node_whose_launcher_and_monitor_are_stopped_or_killed_is_fenced(
    launch_nodes: Callable[..., list[Any]], tmp_path: Path, what: signal.Signals
) -> None:
    """Nobody replaces the monitor then: a second fence kills the ranks, before others start any in their place."""
    end = tmp_path / "end"
    options = ("--ft-node-lease", 2, "--max-restarts", 3)
    nodes = launch_nodes("loop.py", "--until-file", end, nproc=1, nnodes="1:2", options=options, first_is_host=True)
    for node in nodes:
        node.wait_for_output("runs in generation 0")
    node, other = nodes[1], nodes[0]
    (rank,) = node.workers().values()
    monitor = node.monitor_pid

    node.signal(signal.SIGSTOP)
    os.kill(monitor, what)
    try:
        other.wait_for_output("runs in generation 1")
        assert rank not in node.processes()
    finally:
        node.signal(signal.SIGCONT)
        if what == signal.SIGSTOP:
            os.kill(monitor, signal.SIGCONT)
    end.touch()
    assert other.wait() == 0
    with contextlib.suppress(ProcessLookupError):  # it may have heard of the end
        node.signal(signal.SIGTERM)
    node.wait()
    node.assert_nothing_is_left()


def test_a_second_fence_that_is_killed_is_started_again(launch_nodes: Callable[..., list[Any]], tmp_path: Path) -> None:
    end = tmp_path / "end"
    nodes = launch_nodes("loop.py", "--until-file", end, nproc=1)

    def fence() -> int | None:
        return next(
            (pid for pid, said in nodes[0].processes().items() if "launcher.monitor.second_fence" in said), None
        )

    for node in nodes:
        node.wait_for_output("runs in generation 0")
    first = nodes[0].until(fence, "second fence")
    os.kill(first, signal.SIGKILL)
    assert nodes[0].until(lambda: (pid := fence()) != first and pid, "another second fence") != first
    end.touch()
    assert [node.wait() for node in nodes] == [0, 0]
    for node in nodes:
        node.assert_nothing_is_left()


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


@pytest.mark.long
def test_ranks_of_a_job_that_is_ended_on_request_save_for_longer_than_a_lease(
    launch_nodes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """The other launcher, which leads, has ended by then: nobody grants a lease any more."""
    nodes = launch_nodes("requests_and_saves.py", 4, tmp_path / "ready", nproc=1, first_is_host=True, node_lease=1)

    assert [node.wait(60) for node in nodes] == [1, 1]
    assert "rank 1 has saved" in nodes[1].stdout
    assert "cut off" not in nodes[1].stderr


def test_the_peers_of_a_rank_that_fails_for_the_last_time_get_as_long_on_each_node(
    launch_nodes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    nodes = launch_nodes(
        *("loop.py", "--until-file", "never", "--ignore-sigterm", "--meet", tmp_path),
        nproc=1,
        options=("--max-restarts", 0),
        faults="exit:rank=0,step=3",
    )

    assert [node.wait(60) for node in nodes] == [1, 1]
    assert all("to save and end" not in node.stderr for node in nodes)
    assert sum("did not end when asked; killed" in node.stderr for node in nodes) == 1


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


@pytest.mark.parametrize("when", ["is looked at", "is about to be signalled"])
@pytest.mark.parametrize("membership", ["elastic", pytest.param("torch", marks=pytest.mark.long)])
def test_who_waits_for_a_rank_of_another_node_that_comes_back_is_spared(
    launch_nodes: Callable[..., list[Any]], tmp_path: Path, membership: str, when: str
) -> None:
    """The node of the one that came back withdrew its verdict, and the other one killed who waited."""
    py_spy = tmp_path / "py-spy-that-waits"
    wait = f"for _ in $(seq 6000); do [ -e {tmp_path}/back ] && break; sleep 0.01; done"
    if when == "is about to be signalled":  # the node of the one has written its incident, and waits for this one
        wait = f'for a in "$@"; do [ -e {tmp_path}/pid-$a-of-rank-1 ] && exec {find_py_spy()} "$@"; done\n{wait}'
    py_spy.write_text(f'#!/bin/sh\ntouch {tmp_path}/asked\n{wait}\nexec {find_py_spy()} "$@"\n')
    py_spy.chmod(0o755)
    comes_for = "asked" if when == "is looked at" else "job*/logs/*/incidents/*/incident.json"
    nodes = launch_nodes(
        *("comes_back.py", tmp_path, comes_for, 2),
        nproc=1,
        options=("--max-restarts", 0, "--ft-membership", membership),
        env={"FT_PY_SPY": str(py_spy)},
        rank_section_timeouts="step:3",
        stack_capture_timeout=120,
    )
    assert [node.wait(120) for node in nodes] == [0, 0], [node.stderr for node in nodes]
    assert [node.incidents() for node in nodes] == [[], []]
    said = [node.stderr for node in nodes]
    assert sum(" waits for rank 1, which came back" in each for each in said) == 1, said


def test_the_last_words_of_every_node_name_the_culprit_and_its_report(launch_nodes: Callable[..., list[Any]]) -> None:
    """A node that waited for the next generation said only that the job had ended."""
    nodes = launch_nodes(
        "loop.py",
        "--until-stopped",
        nproc=1,
        options=("--max-restarts", 0),
        faults="sigkill:rank=1,step=3",
        log_format="json",
    )

    assert [node.wait(60) for node in nodes] == [1, 1]
    for node in nodes:
        said = [json.loads(line) for line in node.stderr.splitlines()]
        (last,) = [message for message in said if message["event"] == "job_failed"]
        assert last["ranks"] == [1]
        assert re.match(r"rank 1 on node \S+ \(pid \d+\) was killed by SIGKILL", last["who"][0])
        assert "report.txt on node" in last["report"]


@pytest.mark.long
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


@pytest.mark.long
def test_a_launcher_with_another_lease_is_refused_and_says_so(
    launch: Callable[..., Any], unused_port: Callable[[], int]
) -> None:
    options = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "job", "--local-addr", "127.0.0.1")
    options += ("--rdzv-endpoint", f"localhost:{unused_port()}", "--rdzv-conf", "join_timeout=8")
    nodes = [
        launch("loop.py", "--until-file", "never", nproc=1, options=(*options, "--ft-node-lease", lease))
        for lease in (3, 20)
    ]

    assert [node.wait(90) for node in nodes] == [1, 1]
    assert [len(node.events("started")) for node in nodes] == [0, 0]
    assert any("another value of --ft-node-lease, --nnodes" in node.stderr for node in nodes)
