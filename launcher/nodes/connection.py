"""One TCP connection to another launcher: its options, its handshake, what waits to be sent, and when it is stalled."""

from __future__ import annotations

import math
import socket
from typing import Final

from launcher.nodes.frames import CONFIRM, DATA, PING, Handshake, Session

__all__ = ["CONNECT_SECONDS", "HANDSHAKE_SECONDS", "QUEUE_BYTES", "Connection", "open_socket", "set_options"]

CONNECT_SECONDS: Final = 1.0
HANDSHAKE_SECONDS: Final = 2.0
QUEUE_BYTES: Final = 32 << 20
"""What may wait for one peer."""
_UNSENT_MS = 1500
_QUIET_SECONDS = 1.0
"""After so long without an answer the peer is asked whether it reads; after as long again the connection is dropped."""
_SPARE_SECONDS = 10.0
"""A second connection of the same peer is closed if nothing arrives for so long."""


def open_socket(family: int) -> socket.socket:
    """Open a non-blocking socket with the options below.

    Raises:
        OSError: The system refuses it.
    """
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        set_options(opened)
    except OSError:
        opened.close()
        raise
    return opened


def set_options(sock: socket.socket) -> None:
    """Make a socket non-blocking, without delay, and dropped by the system when the peer's machine does not answer."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)


class Connection:
    """A connection, from the attempt or its acceptance on.

    Args:
        sock: Non-blocking.
        handshake: Of this side.
        where: The peer's address, for remarks.
        now: Seconds of the monotonic clock.
        address: What it was opened for, as given to ``Transport.send``; None for an accepted one.

    Attributes:
        is_connecting: The peer's system has not answered yet.
        is_spare: There is a newer connection of the same peer, which messages take.
        out: What the system has not taken yet.
        watched: The events that the selector looks for.
    """

    def __init__(
        self, sock: socket.socket, handshake: Handshake, where: str, now: float, address: tuple[str, int] | None
    ) -> None:
        self.sock, self.handshake, self.where, self.address = sock, handshake, where, address
        self.is_connecting = address is not None
        self.is_spare = False
        self.is_closed = False
        self.out = bytearray()
        self.watched = 0
        self._since = now
        self._heard_at = now
        self._sent_at = math.inf
        self._asked_at = math.inf

    @property
    def session(self) -> Session | None:
        """What seals and opens frames; None before the peer is known."""
        return self.handshake.session

    @property
    def due(self) -> float:
        """When ``is_stalled`` has to be looked at again."""
        if self.is_connecting:
            return self._since + CONNECT_SECONDS
        if self.session is None:
            return self._since + HANDSHAKE_SECONDS
        spare = self._heard_at + _SPARE_SECONDS if self.is_spare else math.inf
        return min(spare, min(self._sent_at, self._asked_at) + _QUIET_SECONDS)

    def is_stalled(self, now: float) -> bool:
        """Return whether the connection is to be closed; ask the peer whether it reads, where it is time for that."""
        if now < self.due:
            return False
        if self.session is None or self._asked_at < math.inf or self.is_spare:
            return True
        self._sent_at, self._asked_at = math.inf, now
        self.send(b"", PING, now)  # with a full queue it cannot be asked; then what it takes shows that it reads
        return False

    def connected(self, now: float) -> None:
        """Begin the handshake: the peer's system has answered.

        Raises:
            OSError: The attempt has failed.
        """
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "connect")
        # A free port that the system has chosen for this very socket: it would also keep the peer from listening.
        if self.sock.getsockname() == self.sock.getpeername():
            raise OSError("connected to itself")
        self.is_connecting, self._since = False, now
        self.out += self.handshake.begin()

    def heard(self, now: float) -> None:
        """Note that bytes have arrived."""
        self._heard_at = now
        self._sent_at = self._asked_at = math.inf

    def send(self, payload: bytes, kind: int, now: float) -> bool:
        """Seal a message and give as much of it to the system as it takes.

        Returns:
            Whether there was room in the queue.
        """
        session = self.session
        if session is None or len(self.out) + len(payload) > QUEUE_BYTES:
            return False
        if kind in (DATA, CONFIRM):
            self._sent_at = min(self._sent_at, now)
        frame = session.seal(payload, kind)
        if not self.out:
            frame = frame[self._give(frame) :]
        self.out += frame
        return True

    def flush(self, now: float) -> None:
        """Give what waits to the system; the peer's silence counts from the last byte that it took.

        Raises:
            OSError: The connection is broken.
        """
        given = self.sock.send(self.out[: 1 << 20], socket.MSG_NOSIGNAL) if self.out else 0
        del self.out[:given]
        if given and self.session is not None and min(self._sent_at, self._asked_at) < math.inf:
            self._sent_at, self._asked_at = now, math.inf

    def _give(self, frame: bytes) -> int:
        try:
            return self.sock.send(frame, socket.MSG_NOSIGNAL)
        except OSError:  # full; or broken, which the selector says next
            return 0
