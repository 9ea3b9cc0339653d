"""Who belongs to a generation, and where its ranks meet: torch's own handlers, several nodes in one process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters, registry

from launcher.agent import rendezvous
from launcher.agent.local_rendezvous import LocalRendezvous
from launcher.agent.rendezvous import FreshStoreRendezvous

TIMEOUT = 60.0


def ranks_store(info: RendezvousInfo) -> TCPStore:
    """The store that the ranks of this generation get, as a rank opens it."""
    where = info.bootstrap_store_info
    assert where is not None
    return TCPStore("localhost", where.master_port, None, False)


@pytest.fixture
def nodes(
    monkeypatch: pytest.MonkeyPatch, unused_port: Callable[[], int]
) -> Iterator[Callable[..., list[FreshStoreRendezvous]]]:
    """Makes nodes of one job, on torch's backend of that name."""
    # Each handler sets it for a while and puts it back, as is right for a launcher, which has one; here are two.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    made: list[FreshStoreRendezvous] = []

    def make(backend: str, count: int = 2) -> list[FreshStoreRendezvous]:
        port = unused_port()
        for rank in range(count):
            parameters = RendezvousParameters(
                backend=backend,
                endpoint=f"localhost:{port}",
                run_id="job",
                min_nodes=count,
                max_nodes=count,
                local_addr="localhost",
                **({"rank": rank, "timeout": 60} if backend == "static" else {"is_host": rank == 0}),
            )
            made.append(FreshStoreRendezvous(registry.get_rendezvous_handler(parameters), "localhost", TIMEOUT))
        return made

    yield make
    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(lambda node: node.shutdown(), made))


def together(nodes: list[FreshStoreRendezvous]) -> list[RendezvousInfo]:
    """One round of all of them."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        return [future.result(TIMEOUT) for future in [pool.submit(node.next_rendezvous) for node in nodes]]


def wait_until(condition: Callable[[], Any]) -> None:
    for _ in range(600):
        if condition():
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"not within a minute: {condition}")


# ---- one node -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_fixed", [True, False], ids=["fixed port", "free port"])
def test_one_node_counts_and_gives_each_generation_an_empty_store(
    is_fixed: bool, unused_port: Callable[[], int]
) -> None:
    port = unused_port() if is_fixed else 0
    handler = LocalRendezvous("job", "localhost", port, TIMEOUT)
    for generation in range(3):
        info = handler.next_rendezvous()
        assert (handler.generation, info.rank, info.world_size) == (generation, 0, 1)
        assert info.bootstrap_store_info is not None
        assert info.bootstrap_store_info.master_addr == "localhost"
        assert not port or info.bootstrap_store_info.master_port == port
        store = ranks_store(info)
        assert not store.check(["address"])
        store.set("address", "stale")
    assert handler.failures == 0  # the agent counts them
    assert (handler.has_peers, handler.num_nodes_waiting(), handler.ended_by_peer()) == (False, 0, None)
    handler.shutdown()


def test_a_fixed_port_is_free_again_after_the_shutdown(unused_port: Callable[[], int]) -> None:
    port = unused_port()
    handler = LocalRendezvous("job", "localhost", port, TIMEOUT)
    handler.next_rendezvous()
    handler.shutdown()
    socket.create_server(("localhost", port)).close()


# ---- several nodes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_nodes_agree_on_generation_failures_and_place(
    nodes: Callable[..., list[FreshStoreRendezvous]], backend: str
) -> None:
    first, second = nodes(backend)
    for generation in range(2):
        infos = together([first, second])
        assert sorted(info.rank for info in infos) == [0, 1]
        assert first.generation == second.generation == generation
        assert infos[0].bootstrap_store_info == infos[1].bootstrap_store_info
        store = ranks_store(infos[0])
        assert not store.check(["address"])
        store.set("address", "stale")
        # One budget for the whole job, whoever failed: the highest count that any node has.
        assert first.failures == second.failures == generation
        second.failures += 1


def test_torchs_own_store_is_switched_off_for_the_round_only(
    nodes: Callable[..., list[FreshStoreRendezvous]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    (only,) = nodes("c10d", 1)
    only.next_rendezvous()
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in os.environ


def test_a_node_that_joins_late_counts_on(nodes: Callable[..., list[FreshStoreRendezvous]]) -> None:
    first, second = nodes("c10d")
    first.generation, first.failures = 6, 4
    together([first, second])
    assert (second.generation, second.failures) == (7, 4)


@pytest.mark.parametrize("backend", [pytest.param("c10d", marks=pytest.mark.long), "static"])
def test_a_node_that_begins_anew_is_seen_by_the_others(
    nodes: Callable[..., list[FreshStoreRendezvous]], backend: str
) -> None:
    first, second = nodes(backend)
    together([first, second])
    assert second.num_nodes_waiting() == 0
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(first.next_rendezvous)
        wait_until(second.num_nodes_waiting)
        second.next_rendezvous()
        again.result(TIMEOUT)
    assert first.num_nodes_waiting() == second.num_nodes_waiting() == 0


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_a_failure_is_told_to_the_others_until_the_next_generation(
    nodes: Callable[..., list[FreshStoreRendezvous]], backend: str
) -> None:
    """Their ranks have lost a peer then, and not only to a change of membership."""
    one, other = nodes(backend)
    together([one, other])
    assert not other.failed_elsewhere()

    one.note_failure("a rank failed")

    wait_until(other.failed_elsewhere)
    together([one, other])
    assert (one.failures, other.failures) == (1, 1)
    assert not other.failed_elsewhere()


def test_the_end_reaches_the_others_before_the_store_goes(
    nodes: Callable[..., list[FreshStoreRendezvous]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes("c10d")
    assert second.ended_by_peer() is None
    together([first, second])
    assert second.ended_by_peer() is None
    first.end("no restart is left")
    first.end("something later")
    assert first.ended_by_peer() is None

    order: list[str | None] = []
    leave = first._inner.shutdown
    monkeypatch.setattr(first._inner, "shutdown", lambda: order.append("the store goes") or leave())
    # While the first waits, the second looks.
    monkeypatch.setattr(rendezvous.time, "sleep", lambda _: order.append(second.ended_by_peer()))
    first.shutdown()
    assert order == ["no restart is left", "the store goes"]


def test_the_first_reason_to_end_the_job_is_the_one_that_is_told(
    nodes: Callable[..., list[FreshStoreRendezvous]],
) -> None:
    first, second = nodes("c10d")
    together([first, second])
    first.end("no restart is left")
    second.end("its peer has gone")
    assert second.ended_by_peer() == "no restart is left"


def test_a_store_whose_host_has_gone_ends_no_launcher() -> None:
    """Each question and each word to the others: the job goes on, or ends, by what this node sees itself."""
    host = TCPStore("localhost", 0, None, True, wait_for_workers=False)
    handler: Any = None  # nobody is met here
    node = FreshStoreRendezvous(handler, "localhost", TIMEOUT)
    node._round = TCPStore("localhost", host.port, None, False)
    node._inner = LocalRendezvous("job", "localhost", 0, TIMEOUT)
    assert not node.failed_elsewhere()
    del host

    assert (node.ended_by_peer(), node.failed_elsewhere()) == (None, False)
    node.note_failure("a rank failed")
    node.end("no restart is left")
    assert node.failures == 1


def test_the_store_is_asked_less_often_the_more_nodes_ask(nodes: Callable[..., list[FreshStoreRendezvous]]) -> None:
    """All nodes together make at most a thousand requests a second of the one process that answers them."""
    node, _ = nodes("c10d")
    for peers, wanted in ((1, 0.1), (99, 0.1), (999, 1.0), (9_999, 10.0)):
        node._peers = peers
        assert node.look_seconds == pytest.approx(wanted)
    node._peers = 0
