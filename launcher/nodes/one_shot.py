"""Deliver one message to another launcher, for a process that is about to end: it blocks, within a bound."""

from __future__ import annotations

import socket
import threading
import time

from launcher.nodes.frames import CONFIRM, TAKEN, Handshake, RefusedError
from launcher.nodes.names import Place, places_of

__all__ = ["send_once"]


def send_once(
    address: tuple[str, int], run_id: str, secret: bytes, node_id: str, payload: bytes, timeout_seconds: float
) -> bool:
    """Send one message, and wait until the peer has dealt with it.

    The peer sends nothing else over this connection, even if it has messages for this node.

    Args:
        address: Host and port of a ``Transport``.
        run_id: Of the job's run.
        secret: Of the job.
        node_id: In whose name.
        payload: Up to 16 MiB.
        timeout_seconds: For all of it, name resolution included.

    Returns:
        Whether the peer has confirmed it. If not, it may have got the message nevertheless.

    Raises:
        ValueError: The payload is too long, the secret or the node id empty, or the node id too long.
    """
    end = time.monotonic() + timeout_seconds
    for place in _resolve(address, timeout_seconds):
        handshake = Handshake(run_id, secret, node_id, initiates=True, one_shot=True)
        try:
            if _deliver(place, handshake, payload, end):
                return True
        except (OSError, RefusedError, OverflowError):
            continue
    return False


def _deliver(place: Place, handshake: Handshake, payload: bytes, end: float) -> bool:
    with socket.socket(place.family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _bound(sock, end)
        sock.connect(place.sockaddr)
        _send(sock, handshake.begin(), end)
        while handshake.session is None:
            _send(sock, handshake.feed(_receive(sock, end)), end)
        session = handshake.session
        _send(sock, session.seal(payload, CONFIRM), end)
        data = b""
        while True:
            if any(kind == TAKEN for kind, _ in session.frames(data)):
                return True
            data = _receive(sock, end)


def _send(sock: socket.socket, data: bytes, end: float) -> None:
    if data:
        _bound(sock, end)
        sock.sendall(data, socket.MSG_NOSIGNAL)


def _receive(sock: socket.socket, end: float) -> bytes:
    _bound(sock, end)
    data = sock.recv(1 << 16)
    if not data:
        raise ConnectionError("closed by the peer")
    return data


def _bound(sock: socket.socket, end: float) -> None:
    """Let the next call on a socket end in time.

    Raises:
        TimeoutError: The time is up.
    """
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def _resolve(address: tuple[str, int], timeout_seconds: float) -> list[Place]:
    """Resolve a name within a bound: a numeric address at once, others in a thread."""
    try:
        return places_of(address, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError, OverflowError):
        pass
    found: list[Place] = []

    def ask() -> None:
        try:
            found.extend(places_of(address))
        except (OSError, UnicodeError, OverflowError):
            pass

    thread = threading.Thread(target=ask, name="ft_node_names", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads can be had
        return []
    thread.join(timeout_seconds)
    return list(found)
