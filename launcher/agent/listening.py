"""Where a launcher of several nodes listens, and whether that is where the job begins."""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
from collections.abc import Mapping
from typing import Any

from launcher.agent.store_host import RendezvousRefusedError
from launcher.nodes.session import Address
from launcher.nodes.transport import Transport
from launcher.records.console import announcer
from resilience_core.config.converters import boolean
from resilience_core.errors import ConfigError

__all__ = ["is_host", "listen"]

_LONGEST_RESOLVE_SECONDS = 20.0


def is_host(backend: str, options: Mapping[str, Any], node_rank: int | None) -> bool | None:
    """Return whether this node is the one that the first endpoint names; None where its address tells.

    Args:
        backend: Of ``--rdzv-backend``; with ``static`` it is the node whose ``--node-rank`` is 0.
        options: Of ``--rdzv-conf``; ``is_host`` decides, as it does for torch's c10d.
        node_rank: Of ``--node-rank``; None where the user gave none, since its default says nothing about a node.

    Raises:
        ConfigError: ``is_host`` is neither true nor false.
    """
    if "is_host" in options:
        try:
            return boolean(options["is_host"])
        except ValueError as error:
            raise ConfigError(f"--rdzv-conf is_host is {options['is_host']}: {error}") from None
    if backend == "static" and node_rank is not None:
        return node_rank == 0
    return None


def listen(
    contacts: tuple[Address, ...], local_addr: str | None, identity: tuple[str, bytes, str], hosts: bool | None
) -> tuple[Transport, str, int | None]:
    """Listen at the first contact that is an address of this node and free, else at this node's own address.

    Args:
        contacts: The endpoints.
        local_addr: Where the user says that others find this node.
        identity: Run, secret and name, as of :class:`.Transport`.
        hosts: Whether this node is the first contact, by :func:`is_host`.

    Returns:
        The transport, the address that other nodes find it at, and which contact is this node; the first one begins the
        job.

    Raises:
        RendezvousRefusedError: It cannot listen there.
    """
    seen: list[str] = []
    for at, (host, port) in enumerate(contacts):
        for address in _resolve(host):
            seen.append(address)
            if hosts is not None and hosts != (at == 0):
                continue  # it is another node's, or not the one that this node is said to be
            # A node often knows its own name as a loopback address, where nobody else would find it.
            is_hidden = ipaddress.ip_address(address).is_loopback and not _is_loopback(host)
            try:
                transport = _transport(identity, ("" if is_hidden else address, port))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL and (hosts or error.errno != errno.EADDRINUSE):
                    raise RendezvousRefusedError(f"cannot listen at {address} port {port}: {error.strerror}") from error
                continue
            return transport, local_addr or (host if is_hidden else address), at
    if hosts:  # others reach it by an address that it has not itself: a service, or a port that is passed on
        host, port = contacts[0]
        try:
            return _transport(identity, ("", port)), local_addr or host, 0
        except OSError as error:
            raise RendezvousRefusedError(f"cannot listen at port {port}: {error.strerror}") from error
    own = local_addr or _own_address(seen)
    problem = "its name is not known here"
    ports = (contacts[0][1], 0) if hosts is None or own not in seen else (0,)
    for port in ports:
        for address in _resolve(own):
            try:
                return _transport(identity, (address, port)), own, None
            except OSError as error:
                problem = error.strerror or str(error)
    raise RendezvousRefusedError(f"cannot listen at {own}: {problem}; name another address with --local-addr")


def _transport(identity: tuple[str, bytes, str], listen: Address) -> Transport:
    return Transport(*identity, listen, announcer("warning"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _own_address(others: list[str]) -> str:
    """Return the address from which this node would speak to one of the others; nothing is sent."""
    for other in others:
        family = socket.AF_INET6 if ":" in other else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((other, 9))
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return socket.getfqdn()


def _resolve(host: str) -> list[str]:
    """Return a host's addresses within a bound; none where its name is not known (yet)."""
    found: list[str] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        found.extend(str(address[0]) for *_, address in answers)

    thread = threading.Thread(target=ask, name="ft_resolve", daemon=True)
    thread.start()
    thread.join(_LONGEST_RESOLVE_SECONDS)
    return list(dict.fromkeys(found))
