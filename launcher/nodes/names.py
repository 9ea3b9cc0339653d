"""Addresses of other launchers: numeric ones at once, names in the background, so that no name server blocks."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Names", "Place", "places_of"]

_FRESH_SECONDS = 5.0
_RETRY_NAME_SECONDS = 1.0
_THREADS = 4


class Place(NamedTuple):
    """An address as the system takes it."""

    family: int
    sockaddr: Any


class Names:
    """Resolves names without blocking: numeric addresses at once, others in at most four threads.

    Args:
        resolved: Called from such a thread when it is done.
    """

    def __init__(self, resolved: Callable[[], None]) -> None:
        self._resolved = resolved
        self._known: dict[tuple[str, int], tuple[list[Place], float]] = {}
        self._asked: set[tuple[str, int]] = set()

    def find(self, address: tuple[str, int]) -> list[Place] | None:
        """Return the places of an address; an empty list where there is none, None where that is not known yet."""
        try:
            return places_of(address, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError, OverflowError):
            pass
        places, until = self._known.get(address, (None, -math.inf))
        if time.monotonic() >= until and address not in self._asked and len(self._asked) < _THREADS:
            self._asked.add(address)
            try:
                threading.Thread(target=self._ask, args=(address,), name="ft_node_names", daemon=True).start()
            except RuntimeError:  # no more threads can be had; the next attempt asks again
                self._asked.discard(address)
        return places

    def _ask(self, address: tuple[str, int]) -> None:
        try:
            places = places_of(address)
        except (OSError, UnicodeError, OverflowError):
            places = []
        # One that has answered before is not forgotten because the name server is down now.
        kept = places or self._known.get(address, ([], 0.0))[0]
        self._known[address] = (kept, time.monotonic() + (_FRESH_SECONDS if places else _RETRY_NAME_SECONDS))
        self._asked.discard(address)
        self._resolved()


def places_of(address: tuple[str, int], flags: int = 0) -> list[Place]:
    """Resolve an address; blocks, unless ``flags`` is ``AI_NUMERICHOST``.

    Raises:
        OSError: There is no such name, or no answer.
        UnicodeError: No name can be like that.
        OverflowError: No port can be like that.
    """
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=flags)
    return [Place(family, sockaddr) for family, _, _, _, sockaddr in found]
