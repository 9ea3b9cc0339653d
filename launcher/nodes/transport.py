"""Messages between the launchers of one job: authenticated, bounded, and without a call that blocks.

A message may be lost, with its connection or because there is none; the protocol above repeats it. It never arrives
altered, nor twice. Messages over one connection arrive in the order in which they were sent.

Each side opens a connection when it has something to send and there is none. Where both do so at once, both
connections work, and the newest takes the messages. A connection is dropped if the peer's system does not acknowledge
bytes for 1.5 s (``TCP_USER_TIMEOUT``, see tcp(7)), or if its launcher answers nothing for 2 s.
"""

from __future__ import annotations

import errno
import math
import selectors
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from launcher.nodes.connection import Connection, set_options
from launcher.nodes.dialer import RETRY_SECONDS, Dialer
from launcher.nodes.frames import CONFIRM, DATA, MAX_PAYLOAD, PING, PONG, TAKEN, Handshake, RefusedError
from launcher.nodes.pool import Pool, text_of

__all__ = ["Received", "Transport"]

_CHUNK = 1 << 16
_ACCEPTED_AT_ONCE = 64  # then those that were accepted before are read
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_WOKEN, _RESOLVED = b"w", b"n"


class Received(NamedTuple):
    """A message, and who has sent it."""

    node_id: str
    payload: bytes


class Transport:
    """Authenticated, bounded, non-blocking messages between the launchers of one job.

    One thread calls ``send``, ``poll`` and ``close``; any thread may call ``wake``.

    Args:
        run_id: Of the job's run; peers of other runs are refused.
        secret: Of the job; random, 16 bytes or more.
        node_id: Of this launcher, at most 255 bytes of UTF-8.
        listen: Host and port to listen at. An empty host is every interface; port 0 is a free one.
        remark: Called with one line for each sort of refusal, once.

    Attributes:
        address: Where it listens, host and port.

    Raises:
        OSError: It cannot listen there.
        ValueError: The secret or the node id is empty, or the node id is too long.
    """

    def __init__(
        self, run_id: str, secret: bytes, node_id: str, listen: tuple[str, int], remark: Callable[[str], object]
    ) -> None:
        self._identity = (run_id, secret, node_id)
        self._handshake(initiates=True)  # refuses what is not valid
        self._listener = _listen(listen)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._woken, self._waker = socket.socketpair()
        self._pool = Pool(remark)
        for sock in (self._listener, self._woken, self._waker):
            sock.setblocking(False)
        for sock in (self._listener, self._woken):
            self._pool.selector.register(sock, selectors.EVENT_READ)
        self._dialer = Dialer(self._pool, lambda: self._handshake(True), lambda: self._tell_poll(_RESOLVED))
        self._owed: list[Connection] = []
        self._received: list[Received] = []
        self._accept_at = math.inf
        self._is_closed = False

    def send(self, node_id: str | None, address: tuple[str, int] | None, payload: bytes) -> None:
        """Send a message, or lose it.

        Args:
            node_id: Whom it is for: a connection of it is used, whoever has opened that. None: whoever answers there.
            address: Where to connect if there is no connection; numeric, or a name, which a thread resolves. None:
                without a connection the message is lost.
            payload: Up to 16 MiB.

        Raises:
            ValueError: The payload is longer than that.
        """
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"a message has at most {MAX_PAYLOAD} bytes, not {len(payload)}")
        if self._is_closed:
            return
        now = time.monotonic()
        if node_id is not None:
            connection = self._pool.newest(node_id)
        else:
            connection = self._dialer.find(address) if address is not None else None
        if connection is not None:
            self._pool.send_over(connection, payload, now)
        elif address is not None:
            self._dialer.add(node_id, address, payload, now)

    def poll(self, timeout_seconds: float | None) -> list[Received]:
        """Return what has arrived, as soon as something has; nothing after ``wake`` or the timeout.

        A peer that waits for a confirmation gets it at the next call, when the caller has dealt with the message.

        Args:
            timeout_seconds: How long to wait for something; None: without end.
        """
        end = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._confirm()
        while not self._is_closed:
            before = time.monotonic()
            until = min(end, self._pool.care_at)
            is_woken = self._wait(None if until == math.inf else max(0.0, until - before))
            # As of the time before: what had arrived by then is read, even if this process has been stopped meanwhile.
            if before >= self._pool.care_at:
                self._care(before)
            if self._received or is_woken or before >= end:
                break
        received, self._received = self._received, []
        return received

    def wake(self) -> None:
        """Make ``poll`` return; from any thread or signal handler."""
        self._tell_poll(_WOKEN)

    def close(self) -> None:
        """Close every connection; what the system has not sent yet may be lost."""
        self._is_closed = True
        self._pool.close()
        for sock in (self._listener, self._woken, self._waker):
            sock.close()

    def _handshake(self, initiates: bool) -> Handshake:
        return Handshake(*self._identity, initiates=initiates)

    def _tell_poll(self, what: bytes) -> None:
        try:
            self._waker.send(what)
        except OSError:  # full, so that it is awake; or closed
            pass

    def _confirm(self) -> None:
        owed, self._owed = self._owed, []
        for connection in owed:
            self._pool.send_over(connection, b"", time.monotonic(), TAKEN)

    def _care(self, now: float) -> None:
        self._pool.care_at = math.inf
        if now >= self._accept_at:
            try:
                self._pool.selector.register(self._listener, selectors.EVENT_READ)
                self._accept_at = math.inf
            except OSError:
                self._accept_at = now + RETRY_SECONDS
        self._pool.care_by(self._accept_at)
        self._pool.care(now)
        self._dialer.care(now)

    def _wait(self, timeout_seconds: float | None) -> bool:
        """Handle the events of one call of the selector; return whether somebody has called ``wake``."""
        is_woken = False
        for key, events in self._pool.selector.select(timeout_seconds):
            connection: Connection | None = key.data
            if connection is not None:
                if not connection.is_closed:
                    self._serve(connection, events)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                what = self._woken.recv(4096)
                is_woken = is_woken or _WOKEN in what
                if _RESOLVED in what:
                    self._pool.care_at = -math.inf
        return is_woken

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    continue  # the peer was gone before it was accepted
                self._pool.say("shortage", f"no other node can connect for now: {error.strerror}")
                self._pool.selector.unregister(self._listener)
                self._accept_at = time.monotonic() + RETRY_SECONDS
                self._pool.care_by(self._accept_at)
                return
            try:
                set_options(sock)
            except OSError:
                sock.close()
                continue
            self._pool.add(Connection(sock, self._handshake(False), text_of(address), time.monotonic(), None))

    def _serve(self, connection: Connection, events: int) -> None:
        now = time.monotonic()
        was_connecting = connection.is_connecting
        try:
            if was_connecting:
                connection.connected(now)
                self._dialer.connected(connection)
            elif events & selectors.EVENT_READ:
                self._read(connection, now)
            connection.flush(now)
        except BlockingIOError:
            pass
        except RefusedError as error:
            self._pool.say(error.sort, f"{connection.where} {error}: the connection is closed")
            self._pool.drop(connection)
        except OSError:
            if connection.address is not None and connection.session is None and not was_connecting:
                self._pool.say("unfinished", f"{connection.where} closes the connection instead of authenticating")
            self._pool.drop(connection)
        self._pool.watch(connection)

    def _read(self, connection: Connection, now: float) -> None:
        data = connection.sock.recv(_CHUNK)
        if not data:
            raise ConnectionError("closed by the peer")
        connection.heard(now)
        session = connection.session
        peer = connection.handshake.peer
        if session is None or peer is None:
            connection.out += connection.handshake.feed(data)
            session, peer = connection.session, connection.handshake.peer
            if session is None or peer is None:
                return
            data = b""
            self._pool.know(connection, peer)
            if not connection.handshake.peer_is_one_shot:
                self._dialer.known(connection, peer, now)
        for kind, payload in session.frames(data):
            if kind in (DATA, CONFIRM):
                self._received.append(Received(peer, payload))
                if kind == CONFIRM:
                    self._owed.append(connection)
            elif kind == PING:
                connection.send(b"", PONG, now)


def _listen(address: tuple[str, int]) -> socket.socket:
    host, port = address
    if not host:
        if socket.has_dualstack_ipv6():
            try:
                return socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
            except OSError:  # IPv6 is switched off
                pass
        host = "0.0.0.0"
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    return socket.create_server((host, port), family=family, backlog=1024)
