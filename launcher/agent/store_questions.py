"""Questions that the nodes of a round put to each other through its store: counted, each answered by all up to then."""

from __future__ import annotations

import json

# It is documented; torch exports it without saying so.
# pyright: reportPrivateImportUsage=false
from torch.distributed import Store

__all__ = ["Questions"]

_MOST_TOLD = 64
"""Of so many nodes at most who came back is asked for."""


class Questions:
    """One kind of question, as one node puts and answers it.

    Args:
        asked: Key of how many there were.
        answered: Begin of the keys of how many nodes have answered each, and of who came back there.
    """

    def __init__(self, asked: str, answered: str) -> None:
        self._asked, self._answered = asked, answered
        self._own: int | None = None
        self._seen = self._told = 0

    def ask(self, store: Store) -> None:
        """Put one."""
        self._own = self._seen = store.add(self._asked, 1)

    def drop(self) -> None:
        """Do without the answers to the last one."""
        self._own = None

    def are_new(self, store: Store) -> bool:
        """Return whether another node has put one."""
        return store.add(self._asked, 0) > self._seen

    def take_new(self, store: Store) -> bool:
        """Return whether another node has put one since the last time."""
        latest = store.add(self._asked, 0)
        is_new, self._seen = latest > self._seen, max(self._seen, latest)
        return is_new

    def tell(self, store: Store, came_back: tuple[int, ...]) -> None:
        """Answer all there are, with who came back here."""
        latest = store.add(self._asked, 0)
        for number in range(self._told + 1, latest + 1):
            if came_back:
                place = store.add(f"{self._answered}/back/{number}", 1)
                store.set(f"{self._answered}/back/{number}/{place}", json.dumps(came_back))
            store.add(f"{self._answered}/{number}", 1)
            self._told = number  # each is answered once, also where the store does not answer in between
        self._seen = latest

    def answers(self, store: Store, size: int) -> tuple[int, ...] | None:
        """Return, once, who came back on all nodes; None where this node has not asked, or not all have answered."""
        number = self._own
        if number is None or store.add(f"{self._answered}/{number}", 0) < size:
            return None
        self._own = None
        places = range(1, min(store.add(f"{self._answered}/back/{number}", 0), _MOST_TOLD) + 1)
        told = [_read(store, f"{self._answered}/back/{number}/{place}") for place in places]
        return tuple(value for values in told for value in values)


def _read(store: Store, key: str) -> list[int]:
    """Return the numbers that another node has told; none where it was lost while it told them."""
    if not store.check([key]):
        return []
    try:
        told = json.loads(store.get(key))
    except ValueError:
        return []
    return told if isinstance(told, list) and all(type(value) is int for value in told) else []
