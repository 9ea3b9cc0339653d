"""Addresses that the user gives: what can never be one is refused, a name that nobody here knows is told."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from launcher.command_line import addresses
from launcher.command_line.addresses import check_addresses, tell_unresolved
from launcher.command_line.options import parse
from resilience_core.errors import ConfigError


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").touch()
    return str(tmp_path / "train.py")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said, with a recorded name server that knows ``node1`` alone."""
    lines: list[str] = []
    real = socket.getaddrinfo

    def recorded(host: str, port: Any, flags: int = 0) -> Any:
        if host == "node1":
            return []
        if flags & socket.AI_NUMERICHOST:
            return real(host, port, flags=flags)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", recorded)
    monkeypatch.setattr(addresses, "announce", lambda *text, **_: lines.extend(text))
    return lines


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.300",
        "1.2.3.4.5",
        "http://node1",
        "node1:29500",
        "[::g]",
        "node 1",
        "node1,node2",
        "$MASTER",
    ],
)
@pytest.mark.parametrize("option", ["--master-addr", "--local-addr"])
def test_what_no_resolver_can_make_sense_of_is_refused(script: str, option: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(["--nnodes", "2", option, text, script])
    assert str(refused.value).startswith(
        f"{option} {text}: that is neither a name nor an address. Give the name or the address"
    )


@pytest.mark.parametrize(
    "text",
    ["10.0.0.3", "127.1", "::1", "[::1]", "fe80::1%eth9", "node1", "not-up-yet.job_1.svc.", "k8s--1", "ü.example"],
)
def test_what_another_node_may_know_is_accepted(text: str) -> None:
    check_addresses({"--master-addr": text})


@pytest.mark.parametrize(
    ("options", "looked_for"),
    [
        (["--nnodes", "2"], {"--master-addr": "a b"}),
        (["--master-port", "29511"], {"--master-addr": "a b"}),
        ([], {}),  # on one node, without a port: torchrun takes localhost
        (["--standalone", "--master-port", "29511"], {}),
        (["--nnodes", "2", "--rdzv-backend", "c10d"], {}),
        (["--nnodes", "2", "--rdzv-endpoint", "node1:29500"], {}),
    ],
)
def test_a_master_address_that_nobody_looks_for_is_not_looked_at(
    script: str, options: list[str], looked_for: dict[str, str]
) -> None:
    command = [*options, "--master-addr", "a b", script]
    if looked_for:
        with pytest.raises(ConfigError, match=r"--master-addr a b"):
            parse(command)
    else:
        assert parse(command).addresses == {}


def test_a_name_that_cannot_be_resolved_here_is_told_and_a_job_goes_on(said: list[str]) -> None:
    thread = tell_unresolved({"--master-addr": "nosuch.invalid", "--local-addr": "node1"})
    assert thread is not None
    thread.join()
    (line,) = said
    assert line.startswith("--master-addr nosuch.invalid cannot be resolved on this node (Name or service not known)")


def test_no_name_server_is_asked_for_a_number_or_localhost(said: list[str]) -> None:
    given = {"--master-addr": "127.0.0.1", "--local-addr": "localhost", "--other": "fe80::1%eth9"}
    assert tell_unresolved(given) is None
    assert said == []
