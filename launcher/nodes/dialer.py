"""Messages that wait for a connection, one route per address, and the attempts to connect there."""

from __future__ import annotations

import collections
import errno
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from launcher.nodes.connection import QUEUE_BYTES, Connection, open_socket
from launcher.nodes.frames import Handshake
from launcher.nodes.names import Names, Place
from launcher.nodes.pool import Pool, text_of

__all__ = ["RETRY_SECONDS", "Dialer"]

RETRY_SECONDS: Final = 0.25
"""Between two attempts at an address; one lasts longer where nothing answers, so that several may be under way."""
_WAIT_SECONDS = 2.0
"""What has waited for a connection for so long is dropped: the protocol above has repeated it."""
_ASK_AGAIN_SECONDS = 0.05


class _Waiting(NamedTuple):
    node_id: str | None
    payload: bytes
    since: float


class _Route:
    """What waits for a connection to one address."""

    def __init__(self) -> None:
        self.waiting: collections.deque[_Waiting] = collections.deque()
        self.attempts: list[Connection] = []
        self.attempt_at = -math.inf
        self._size = 0
        self._tried = 0
        self._places = 1

    @property
    def expires_at(self) -> float:
        """When the oldest message is dropped."""
        return self.waiting[0].since + _WAIT_SECONDS if self.waiting else math.inf

    @property
    def next_at(self) -> float:
        """When the next attempt is due: at once if all have failed and the name has places that were not tried."""
        if any(not each.is_connecting for each in self.attempts):
            return math.inf
        return self.attempt_at if self.attempts or self._tried % self._places == 0 else -math.inf

    def add(self, node_id: str | None, payload: bytes, now: float) -> bool:
        """Let a message wait; return whether there was room."""
        if self._size + len(payload) > QUEUE_BYTES:
            return False
        self.waiting.append(_Waiting(node_id, payload, now))
        self._size += len(payload)
        return True

    def tidy(self, now: float) -> None:
        """Forget attempts that are over, and messages that have waited for too long."""
        self.attempts = [each for each in self.attempts if not each.is_closed and each.session is None]
        while now >= self.expires_at:
            self._size -= len(self.waiting.popleft().payload)

    def choose(self, places: list[Place]) -> Place:
        """Return the place to try now, each in turn."""
        self._tried += 1
        self._places = len(places)
        return places[(self._tried - 1) % len(places)]

    def take(self, peer: str, is_here: bool) -> tuple[list[bytes], list[str]]:
        """Take out what a peer is to get.

        Args:
            peer: Who has authenticated.
            is_here: Whether it answers at this address. Then messages for others wait in vain, and are dropped.

        Returns:
            The payloads for it, and the node ids of others whose messages are dropped.
        """
        mine, others, kept = [], [], list[_Waiting]()
        for each in self.waiting:
            if each.node_id == peer or (is_here and each.node_id is None):
                mine.append(each.payload)
            elif is_here:
                others.append(each.node_id or "")
            else:
                kept.append(each)
        self.waiting = collections.deque(kept)
        self._size = sum(len(each.payload) for each in kept)
        return mine, others


class Dialer:
    """Opens connections while there is something to send.

    Args:
        pool: Gets the connections.
        handshake: Makes the initiator's side of a handshake.
        resolved: Called from another thread when a name is resolved; ``care`` is then due.
    """

    def __init__(self, pool: Pool, handshake: Callable[[], Handshake], resolved: Callable[[], None]) -> None:
        self._pool, self._handshake = pool, handshake
        self._names = Names(resolved)
        self._routes: dict[tuple[str, int], _Route] = {}
        self._open: dict[tuple[str, int], Connection] = {}

    def find(self, address: tuple[str, int]) -> Connection | None:
        """Return the connection that was opened to an address, if it still stands."""
        connection = self._open.get(address)
        if connection is not None and connection.is_closed:
            del self._open[address]
            return None
        return connection

    def add(self, node_id: str | None, address: tuple[str, int], payload: bytes, now: float) -> None:
        """Let a message wait for a connection."""
        route = self._routes.setdefault(address, _Route())
        if not route.add(node_id, payload, now):
            self._pool.say("queue", f"too much waits for {text_of(address)}: messages are dropped")
        self._pool.care_by(route.next_at)

    def connected(self, connection: Connection) -> None:
        """End the other attempts at an address: the system there has answered this one."""
        route = self._routes.get(connection.address) if connection.address is not None else None
        for other in route.attempts if route is not None else []:
            if other.is_connecting:
                self._pool.drop(other)

    def known(self, connection: Connection, peer: str, now: float) -> None:
        """Send what has waited for a peer, which has authenticated."""
        if connection.address is not None:
            self._open[connection.address] = connection
        for address, route in self._routes.items():
            payloads, others = route.take(peer, address == connection.address)
            for payload in payloads:
                self._pool.send_over(connection, payload, now)
            if others:
                told = f"{connection.where} is node {peer}, not {others[0]}: messages to the latter are dropped"
                self._pool.say("identity", told)

    def care(self, now: float) -> None:
        """Open connections where it is time to, and drop messages that have waited for too long."""
        for address, route in list(self._routes.items()):
            route.tidy(now)
            if route.waiting and now >= route.next_at:
                self._dial(address, route, now)
            if route.waiting:
                self._pool.care_by(min(route.expires_at, route.next_at))
            elif not route.attempts:
                del self._routes[address]

    def _dial(self, address: tuple[str, int], route: _Route, now: float) -> None:
        places = self._names.find(address)
        route.attempt_at = now + (_ASK_AGAIN_SECONDS if places is None else RETRY_SECONDS)
        if places == []:
            self._pool.say("name", f"the address {text_of(address)} of another node cannot be resolved")
        if not places:
            return
        family, sockaddr = route.choose(places)
        try:
            sock = open_socket(family)
        except OSError as error:
            self._pool.say("shortage", f"no connection to {text_of(address)} can be opened for now: {error.strerror}")
            return
        try:
            result = sock.connect_ex(sockaddr)
        except (OSError, OverflowError):
            result = errno.EINVAL
        if result not in (0, errno.EINPROGRESS):
            sock.close()
            return
        connection = Connection(sock, self._handshake(), text_of(sockaddr), now, address)
        route.attempts.append(connection)
        self._pool.add(connection)
