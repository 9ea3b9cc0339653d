"""The connections of a transport: whose they are, what the selector looks for, and when each must be looked after."""

from __future__ import annotations

import contextlib
import math
import selectors
from collections.abc import Callable
from typing import Any, Final

from launcher.nodes.connection import Connection
from launcher.nodes.frames import DATA

__all__ = ["MAX_STRANGERS", "Pool", "text_of"]

MAX_STRANGERS: Final = 512
"""Accepted connections that have not authenticated yet; the oldest is dropped for another one.

Every node of a large job connects to the leader at about the same time. Each needs some milliseconds to authenticate.
"""
_PER_PEER = 4


def text_of(address: Any) -> str:
    """Return an address, which begins with host and port, as people write it."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


class Pool:
    """Connections from the attempt, or their acceptance, until they are closed.

    Args:
        remark: Called with one line for each sort of refusal, once.

    Attributes:
        selector: Its keys' data are the connections.
        care_at: When ``care`` is due, seconds of the monotonic clock.
    """

    def __init__(self, remark: Callable[[str], object]) -> None:
        self.selector = selectors.DefaultSelector()
        self.care_at = math.inf
        self._remark, self._remarked = remark, set[str]()
        self._all: dict[Connection, None] = {}
        self._strangers: dict[Connection, None] = {}
        self._by_node: dict[str, list[Connection]] = {}

    def say(self, sort: str, text: str) -> None:
        """Remark something, once for each sort."""
        if sort not in self._remarked:
            self._remarked.add(sort)
            with contextlib.suppress(Exception):
                self._remark(f"{text} (said once)")

    def care_by(self, when: float) -> None:
        """Let ``care`` be due at a time, or earlier."""
        self.care_at = min(self.care_at, when)

    def newest(self, node_id: str) -> Connection | None:
        """Return the connection over which messages to a node go."""
        mine = self._by_node.get(node_id)
        return mine[-1] if mine else None

    def add(self, connection: Connection) -> None:
        """Look after a connection; an accepted one may push out the oldest that has not authenticated."""
        if connection.address is None:
            if len(self._strangers) >= MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                self.say("strangers", f"{oldest.where} is dropped: {MAX_STRANGERS} more have not authenticated either")
                self.drop(oldest)
            self._strangers[connection] = None
        self._all[connection] = None
        self.watch(connection)

    def know(self, connection: Connection, peer: str) -> None:
        """Send messages to a peer over this connection from now on, unless it is for one message only."""
        self._strangers.pop(connection, None)
        if connection.handshake.peer_is_one_shot:
            return
        mine = self._by_node.setdefault(peer, [])
        for other in mine:
            other.is_spare = True
            self.care_by(other.due)
        mine.append(connection)
        if len(mine) > _PER_PEER:
            self.drop(mine[0])

    def send_over(self, connection: Connection, payload: bytes, now: float, kind: int = DATA) -> None:
        """Send a message over a connection, or lose it."""
        if connection.is_closed:
            return
        if not connection.send(payload, kind, now):
            self.say("queue", f"too much waits for {connection.where}: messages are dropped")
        self.watch(connection)

    def watch(self, connection: Connection) -> None:
        """Let the selector look for what a connection waits for, and ``care`` be due when it may be stalled."""
        if connection.is_closed:
            return
        self.care_by(connection.due)
        if connection.is_connecting:
            events = selectors.EVENT_WRITE
        else:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.out else 0)
        if events == connection.watched:
            return
        try:
            if connection.watched:
                self.selector.modify(connection.sock, events, connection)
            else:
                self.selector.register(connection.sock, events, connection)
        except (OSError, KeyError, ValueError):  # the system has no room for another watch
            self.drop(connection)
        else:
            connection.watched = events

    def drop(self, connection: Connection) -> None:
        """Close a connection, and lose what waits on it."""
        if connection.is_closed:
            return
        connection.is_closed = True
        if connection.watched:
            with contextlib.suppress(OSError, KeyError, ValueError):
                self.selector.unregister(connection.sock)
        connection.sock.close()
        connection.out.clear()
        self._all.pop(connection, None)
        self._strangers.pop(connection, None)
        peer = connection.handshake.peer
        if peer is None:
            if connection.address is not None:
                self.care_at = -math.inf  # an attempt is over: the next place may be tried
            return
        mine = self._by_node.get(peer, [])
        if connection in mine:
            mine.remove(connection)
            if mine:
                mine[-1].is_spare = False
            else:
                del self._by_node[peer]

    def care(self, now: float) -> None:
        """Drop connections that are stalled, and note when to look again."""
        for connection in list(self._all):
            if connection.due > now or not connection.is_stalled(now):
                self.watch(connection)
                continue
            if connection.session is None and not connection.is_connecting:
                self.say("silent", f"{connection.where} has not authenticated in time: the connection is closed")
            self.drop(connection)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._all):
            self.drop(connection)
        self.selector.close()
