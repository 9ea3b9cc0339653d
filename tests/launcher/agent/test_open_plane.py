"""Where a node listens, who begins the job, what nodes are sorted by, and what they prove to each other."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent import open_plane
from launcher.agent.open_plane import order_of, parse_contacts, secret_of
from launcher.agent.store_host import RendezvousRefusedError
from resilience_core.errors import ConfigError

IDENTITY = ("run", b"0123456789abcdef", "node-1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node0:29400", (("node0", 29400),)),
        ("node0", (("node0", 29400),)),
        ("a:1, b:2", (("a", 1), ("b", 2))),
        ("10.0.0.1:5", (("10.0.0.1", 5),)),
        ("[fe80::1]:5", (("fe80::1", 5),)),
        ("fe80::1", (("fe80::1", 29400),)),
    ],
)
def test_an_endpoint_names_one_node_or_several(text: str, expected: Any) -> None:
    assert parse_contacts(text) == expected


@pytest.mark.parametrize("text", ["", "a:0", "a:65536", "a:x", ":5", "a,,b", "[fe80::1]:x"])
def test_an_endpoint_that_is_none_is_refused_with_its_part(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--rdzv-endpoint .* is not HOST or HOST:PORT"):
        parse_contacts(text)


@pytest.mark.parametrize(
    ("given", "argv", "environ", "expected"),
    [
        (None, (), {}, ""),
        ("rack7-node12", (), {"SLURM_NODEID": "3"}, "rack" + "7".zfill(20) + "-node" + "12".zfill(20)),
        (None, ("--node-rank", "4"), {"SLURM_NODEID": "3"}, "4".zfill(20)),
        (None, ("--node_rank=4",), {}, "4".zfill(20)),
        (None, (), {"PET_NODE_RANK": "4"}, "4".zfill(20)),
        (None, (), {"SLURM_NODEID": "3"}, "3".zfill(20)),
    ],
)
def test_nodes_are_sorted_by_what_the_user_names_then_by_the_scheduler(
    given: str | None, argv: tuple[str, ...], environ: dict[str, str], expected: str
) -> None:
    assert order_of(given, SimpleNamespace(node_rank=4), argv, environ) == expected


def test_numbers_are_sorted_by_their_value() -> None:
    nothing = SimpleNamespace(node_rank=0)
    keys = [order_of(f"node{number}", nothing, (), {}) for number in (2, 10, 1)]
    assert sorted(keys) == [keys[2], keys[0], keys[1]]


def test_a_secret_comes_from_a_file_the_environment_or_the_name_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"  0123456789abcdef\n")
    named = {"FT_NODE_SECRET": "an environment's secret"}

    assert secret_of(str(file), named, "run") == b"0123456789abcdef"
    assert secret_of(None, named, "run") == b"an environment's secret"
    assert secret_of(None, {}, "run") == secret_of(None, {"FT_NODE_SECRET": ""}, "run")
    assert secret_of(None, {}, "run") != secret_of(None, {}, "another run")


def test_a_secret_that_is_short_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"123456789012345\n")

    with pytest.raises(ConfigError, match=r"--ft-node-secret-file .*short has 15 bytes; a secret needs 16 or more"):
        secret_of(str(tmp_path / "short"), {}, "run")
    with pytest.raises(ConfigError, match="FT_NODE_SECRET has 3 bytes"):
        secret_of(None, {"FT_NODE_SECRET": "abc"}, "run")
    with pytest.raises(ConfigError, match=r"--ft-node-secret-file .*none cannot be read: No such file"):
        secret_of(str(tmp_path / "none"), {}, "run")


def test_the_node_of_the_first_contact_begins_and_others_listen_where_the_others_find_them(unused_port: Any) -> None:
    port = unused_port()
    first, address, own = open_plane._listen((("127.0.0.1", port),), None, IDENTITY)
    second, other_address, none = open_plane._listen((("127.0.0.1", port),), None, IDENTITY)
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
    monkeypatch.setattr(open_plane, "_resolve", lambda host: ["127.0.1.1"])

    transport, address, own = open_plane._listen((("node0", unused_port()),), None, IDENTITY)
    transport.close()

    assert (address, own) == ("node0", 0)


def test_a_node_that_can_listen_nowhere_says_where_it_tried(monkeypatch: pytest.MonkeyPatch, unused_port: Any) -> None:
    monkeypatch.setattr(open_plane, "_resolve", lambda host: [])
    monkeypatch.setattr(socket, "getfqdn", lambda: "here")

    with pytest.raises(RendezvousRefusedError, match="cannot listen at here: its name is not known here"):
        open_plane._listen((("node0", unused_port()),), None, IDENTITY)
