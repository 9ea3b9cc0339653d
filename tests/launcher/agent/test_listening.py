"""Where a node listens, and whether the job begins there."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from launcher.agent import listening
from launcher.agent.store_host import RendezvousRefusedError
from resilience_core.errors import ConfigError

IDENTITY = ("run", b"0123456789abcdef", "node-1")


@pytest.mark.parametrize(
    ("backend", "options", "node_rank", "expected"),
    [
        ("c10d", {}, None, None),
        ("c10d", {}, 0, None),
        ("c10d", {"is_host": "1"}, None, True),
        ("c10d", {"is_host": "false"}, None, False),
        ("static", {}, None, None),
        ("static", {}, 0, True),
        ("static", {}, 1, False),
        ("static", {"is_host": "yes"}, 1, True),
    ],
)
def test_who_is_at_the_endpoint_is_told_by_is_host_the_node_rank_or_the_address(
    backend: str, options: dict[str, Any], node_rank: int | None, expected: bool | None
) -> None:
    assert listening.is_host(backend, options, node_rank) is expected


def test_is_host_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match="--rdzv-conf is_host is perhaps: "):
        listening.is_host("c10d", {"is_host": "perhaps"}, None)


def test_the_node_of_the_first_contact_begins_and_others_listen_where_the_others_find_them(unused_port: Any) -> None:
    port = unused_port()
    first, address, own = listening.listen((("127.0.0.1", port),), None, IDENTITY, None)
    second, other_address, none = listening.listen((("127.0.0.1", port),), None, IDENTITY, None)
    try:
        assert (address, first.address[1], own) == ("127.0.0.1", port, 0)
        assert (other_address, none) == ("127.0.0.1", None)
        assert second.address[1] not in (0, port)
    finally:
        first.close()
        second.close()


def test_a_name_that_leads_to_a_loopback_address_is_told_to_others_as_a_name(
    monkeypatch: pytest.MonkeyPatch, unused_port: Any
) -> None:
    """A node often finds its own name in its hosts file as 127.0.1.1."""
    monkeypatch.setattr(listening, "_resolve", lambda host: ["127.0.1.1"])

    transport, address, own = listening.listen((("node0", unused_port()),), None, IDENTITY, None)
    transport.close()

    assert (address, own) == ("node0", 0)


def test_a_node_that_can_listen_nowhere_says_where_it_tried(monkeypatch: pytest.MonkeyPatch, unused_port: Any) -> None:
    monkeypatch.setattr(listening, "_resolve", lambda host: [])
    monkeypatch.setattr(socket, "getfqdn", lambda: "here")

    with pytest.raises(RendezvousRefusedError, match="cannot listen at here: its name is not known here"):
        listening.listen((("node0", unused_port()),), None, IDENTITY, None)


def test_who_is_said_to_be_the_host_listens_although_the_endpoint_is_no_address_of_its_own(
    monkeypatch: pytest.MonkeyPatch, unused_port: Any
) -> None:
    monkeypatch.setattr(listening, "_resolve", lambda host: ["192.0.2.1"])
    port = unused_port()

    transport, address, own = listening.listen((("service", port), ("other", 1)), None, IDENTITY, True)
    transport.close()

    assert (address, transport.address[1], own) == ("service", port, 0)


def test_who_is_said_to_be_the_host_does_not_make_way(unused_port: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RendezvousRefusedError, match=rf"cannot listen at 127.0.0.1 port {port}: Address already"):
            listening.listen((("127.0.0.1", port),), None, IDENTITY, True)


def test_who_is_said_not_to_be_the_host_leaves_the_endpoint_to_it(unused_port: Any) -> None:
    port = unused_port()

    transport, address, own = listening.listen((("127.0.0.1", port),), None, IDENTITY, False)
    transport.close()

    assert (address, own) == ("127.0.0.1", None)
    assert transport.address[1] not in (0, port)
