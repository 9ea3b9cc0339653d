"""StoreNames: the names behind hashes, through the store.

Windows carry hashes only; a name is told once it is asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

__all__ = ["Store", "StoreNames"]

T = TypeVar("T")


class Store(Protocol):
    """The part of ``torch.distributed.Store`` that is used."""

    def set(self, key: str, value: Any) -> None:
        """Set a key."""

    def get(self, key: str) -> bytes:
        """Return the value of a key; waits for it."""
        ...

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Return whether all of these keys are set."""
        ...

    def delete_key(self, key: str) -> bool:
        """Delete a key and return whether it was set."""
        ...


class StoreNames:
    """Asks for names and tells them. Every method makes calls to the store, so it runs where such calls are bounded.

    Args:
        connected: Returns the store.
        key: Makes a key of its parts.
        to_write: The same for a key that is about to be written.
        bound_seconds: Of one call; half of it is for reading or telling names, so that a slow store is told from one
            that hangs.
    """

    def __init__(
        self,
        connected: Callable[[], Store],
        key: Callable[..., str],
        to_write: Callable[..., str],
        bound_seconds: float,
    ) -> None:
        self._connected = connected
        self._key = key
        self._to_write = to_write
        self._bound = bound_seconds
        self._epoch = 0

    def wanted(self) -> list[int]:
        """Return the hashes that rank 0 asks for, where that has changed since the last call."""
        epoch = self._connected().add(self._to_write("wanted-epoch"), 0)
        # 0: rank 0 has asked for nothing, or has left and taken it away; a get would wait for it.
        if epoch in (0, self._epoch) or not self._connected().check([self._key("wanted")]):
            return []
        self._epoch = epoch
        return [int(number) for number in json.loads(self._connected().get(self._key("wanted")))]

    def want(self, hashes: Iterable[int]) -> None:
        """Ask for names, on rank 0."""
        self._connected().set(self._to_write("wanted"), json.dumps(list(hashes)))
        self._connected().add(self._to_write("wanted-epoch"), 1)

    def tell(self, names: Mapping[int, str]) -> None:
        """Tell names, as far as there is time."""
        for number, name in self._while_there_is_time(names.items()):
            self._connected().set(self._to_write("name", number), name)

    def read(self, hashes: Iterable[int], found: dict[int, str]) -> None:
        """Read the names that were told, on rank 0, as far as there is time.

        Args:
            hashes: Whose names.
            found: They are added to this.
        """
        for number in self._while_there_is_time(hashes):
            key = self._to_write("name", number)  # others write it, and rank 0 removes it
            if self._connected().check([key]):
                found[number] = self._connected().get(key).decode("utf-8", "replace")

    def _while_there_is_time(self, items: Iterable[T]) -> Iterator[T]:
        deadline = time.monotonic() + 0.5 * self._bound
        for item in items:
            if time.monotonic() >= deadline:
                return
            yield item
