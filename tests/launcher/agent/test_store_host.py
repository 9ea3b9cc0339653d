"""The ranks' store: empty for each generation, and a fixed port that is bound once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from launcher.agent.store_host import RendezvousRefusedError, StoreHost

TIMEOUT = timedelta(seconds=60)


@pytest.fixture
def fixed_port(unused_port: Callable[[], int]) -> int:
    return unused_port()


@pytest.fixture
def host(fixed_port: int) -> Iterator[StoreHost]:
    host = StoreHost(fixed_port, TIMEOUT)
    yield host
    host.close()


def client(port: int) -> TCPStore:
    return TCPStore("localhost", port, None, False, TIMEOUT)


def test_every_generation_gets_an_empty_store_on_the_fixed_port(host: StoreHost, fixed_port: int) -> None:
    held = []  # clients that outlive their generation, as those of a dead rank's children may
    for generation in range(4):
        assert host.renew() == fixed_port
        ranks = client(fixed_port)
        assert ranks.check(["address"]) is False
        ranks.set("address", f"generation {generation}")
        held.append(ranks)


def test_a_store_on_a_free_port_is_empty_too() -> None:
    host = StoreHost(0, TIMEOUT)
    client(host.renew()).set("address", "generation 0")
    assert client(host.renew()).check(["address"]) is False
    host.close()


def test_a_store_is_opened_ahead_and_used_once() -> None:
    host = StoreHost(0, TIMEOUT)
    first = host.renew()
    host.prepare()
    (making,) = host._making
    host.prepare()
    assert host._making == [making]
    making.join(60)
    host.prepare()
    spare = host._spares.get_nowait()
    assert spare is not None
    ahead = spare.port
    host._spares.put(spare)
    del spare
    assert ahead != first
    client(first).set("address", "generation 0")

    assert host.renew() == ahead
    assert client(ahead).check(["address"]) is False
    assert host.renew() not in (first, ahead)
    host.close()


def test_a_store_that_cannot_be_opened_ahead_is_opened_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = StoreHost(0, TIMEOUT)
    with monkeypatch.context() as patch:
        patch.setattr(StoreHost, "_on_a_free_port", refused)
        host.prepare()
        host._making[0].join(60)
    assert client(host.renew()).check(["address"]) is False
    host.close()


@pytest.mark.long
def test_nobody_waits_for_a_store_that_is_opened_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when torch waits for a name server whose answer was lost: another one is opened meanwhile."""
    host, name_server = StoreHost(0, TIMEOUT), threading.Event()
    open_store = StoreHost._on_a_free_port
    calls: list[StoreHost] = []

    def first_is_slow(host: StoreHost) -> TCPStore:
        calls.append(host)
        assert len(calls) > 1 or name_server.wait(60)
        return open_store(host)

    monkeypatch.setattr(StoreHost, "_on_a_free_port", first_is_slow)
    host.prepare()
    assert client(host.renew()).check(["address"]) is False
    assert len(calls) == 2
    name_server.set()
    late = host._making[0]
    late.join(60)
    assert client(host.renew()).check(["address"]) is False
    assert len(calls) == 2
    host.close()


def test_without_room_for_a_thread_a_store_is_opened_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    host = StoreHost(0, TIMEOUT)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_room)
        host.prepare()
    assert host._making == []
    assert client(host.renew()).check(["address"]) is False
    host.close()


def refused(host: StoreHost) -> TCPStore:
    raise RuntimeError("Resource temporarily unavailable")


def test_a_fixed_port_is_not_opened_ahead(host: StoreHost, fixed_port: int) -> None:
    assert host.renew() == fixed_port
    host.prepare()
    assert host._spares.empty()
    assert host.renew() == fixed_port


def test_nobody_can_take_a_fixed_port_between_two_generations(host: StoreHost, fixed_port: int) -> None:
    host.renew()
    host._store = None  # the moment between two stores

    with pytest.raises(OSError, match="in use"), socket.create_server(("", fixed_port)):
        pass
    assert host.renew() == fixed_port


def test_who_waits_since_the_last_generation_is_turned_away(host: StoreHost, fixed_port: int) -> None:
    with socket.create_connection(("localhost", fixed_port), timeout=180) as late:
        host.renew()
        assert late.recv(1) == b""


def test_a_fixed_port_that_is_taken_is_refused_before_anything_starts(host: StoreHost, fixed_port: int) -> None:
    with pytest.raises(RendezvousRefusedError, match=rf"port {fixed_port}: it is in use.*--master-port"):
        StoreHost(fixed_port, TIMEOUT)


def test_a_fixed_port_is_given_back(fixed_port: int) -> None:
    first = StoreHost(fixed_port, TIMEOUT)
    first.renew()
    first.close()
    second = StoreHost(fixed_port, TIMEOUT)
    assert second.renew() == fixed_port
    second.close()
