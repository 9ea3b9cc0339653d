"""Presence: whether a store is still there, found out without a call to it; and whether the process group is.

torch prints a page of C++ frames for every call to a store whose server has ended, before it raises, so such a call is
better not made. The store of a process group may end with it. In between, a connection of our own to the server's
port, which is closed at once, tells whether anybody listens there.
"""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Presence", "same_group"]

_LONGEST_NEST = 8


class Presence:
    """Tells whether a store is still there.

    Args:
        store: The store; one that has no server (a file, a dictionary) always answers while it is expected.
        is_expected: Whether what the store belongs to still exists.
    """

    def __init__(self, store: Any, is_expected: Callable[[], bool]) -> None:
        self.is_expected = is_expected
        self._server = _server_of(store)

    def answers(self, limit_seconds: float) -> bool:
        """Return whether somebody listens at the server's port.

        Args:
            limit_seconds: How long to wait for the connection.
        """
        if self._server is None:
            return self.is_expected()
        try:
            socket.create_connection(self._server, timeout=limit_seconds).close()
        except OSError:
            return False
        return True


def _server_of(store: Any) -> tuple[str, int] | None:
    """Return host and port of the server beneath a store, None where there is none."""
    for _ in range(_LONGEST_NEST):
        host, port = getattr(store, "host", None), getattr(store, "port", None)
        if isinstance(host, str) and isinstance(port, int):
            return host, port
        store = getattr(store, "underlying_store", None)
    return None


def same_group() -> Callable[[], bool]:
    """Return a function that tells whether the default process group is still the one of now, or is still missing.

    It keeps no group alive, and with it no server of a store.
    """
    began = _default_group()
    if began is None:
        return lambda: _default_group() is None
    known = weakref.ref(began)

    def is_same() -> bool:
        now = _default_group()
        return now is not None and known() is now

    return is_same


def _default_group() -> object | None:
    import torch.distributed as dist

    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
