"""StoreExchange: windows and outcomes through a ``torch.distributed`` store, every call bounded.

See :mod:`straggler.exchange.exchange` for why, and for what it costs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from straggler.exchange.bounded_calls import BoundedCalls

__all__ = ["Store", "StoreExchange"]

T = TypeVar("T")

_CHUNK = 1024
_GRACE_SECONDS = 0.1


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


class StoreExchange:
    """Windows through a ``torch.distributed`` store.

    Args:
        store: A store of this job; a connection of its own is made from it where the store can
            (``clone``), so that a slow call here never blocks another user of the same connection.
        rank: This rank.
        world_size: Ranks in the job.
        bound_seconds: How long rank 0 waits for the others, and anybody for the store.
        prefix: Before every key; carries the generation, so that a restart meets no old keys.
    """

    def __init__(self, store: Any, rank: int, world_size: int, *, bound_seconds: float, prefix: str) -> None:
        self.rank = rank
        self.world_size = world_size
        self._bound = bound_seconds
        self._prefix = prefix
        self._helper = BoundedCalls()
        self._store: Store = (
            self._helper.call("cloning the store", lambda: _own_connection(store), bound_seconds) or store
        )
        self._seen: set[int] = set()
        self._late: set[int] = set()
        self._epoch = 0

    def _key(self, *parts: object) -> str:
        return "/".join([self._prefix, *map(str, parts)])

    def post(self, sequence: int, payload: bytes) -> None:
        """Leave this rank's window for report ``sequence``."""

        def work() -> None:
            self._store.set(self._key("window", self.rank), payload)
            self._store.add(self._key("count", sequence), 1)

        self._helper.call("leaving this rank's window", work, self._bound)

    def collect(self, sequence: int) -> list[bytes | None]:
        """Return every rank's window, on rank 0, in at most the bound."""
        nothing: list[bytes | None] = [None] * self.world_size
        return self._helper.call("collecting", lambda: self._collect(sequence), 2 * self._bound) or nothing

    def _collect(self, sequence: int) -> list[bytes | None]:
        deadline = time.monotonic() + self._bound
        counter = self._key("count", sequence)
        pause = 0.0005
        grace: float | None = None
        while True:
            came = self._store.add(counter, 0)
            now = time.monotonic()
            if came >= self.world_size or now >= deadline or (grace is not None and now >= grace):
                break
            # Ranks that were missing last time are probably still missing: once all others are here, wait for
            # them a tenth of a second, and not the whole bound at every report.
            if grace is None and self._late and came >= self.world_size - len(self._late):
                grace = now + min(_GRACE_SECONDS, self._bound)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)
        if sequence > 0:
            self._store.delete_key(self._key("count", sequence - 1))
        unseen = [rank for rank in range(self.world_size) if rank not in self._seen]
        self._seen.update(unseen if came >= self.world_size else self._existing(unseen))
        ranks = sorted(self._seen)
        found: list[bytes | None] = [None] * self.world_size
        for rank, payload in zip(ranks, self._read([self._key("window", r) for r in ranks]), strict=True):
            found[rank] = payload
        return found

    def note_late(self, ranks: Iterable[int]) -> None:
        """Note, on rank 0, who was missing in the report just made; they get a short grace next time."""
        self._late = set(ranks)

    def _existing(self, ranks: list[int]) -> list[int]:
        """Return which of these ranks have ever left a window; log N calls to the store for each that has not."""
        if not ranks:
            return []
        if self._store.check([self._key("window", rank) for rank in ranks]):
            return ranks
        if len(ranks) == 1:
            return []
        middle = len(ranks) // 2
        return self._existing(ranks[:middle]) + self._existing(ranks[middle:])

    def _read(self, keys: Sequence[str]) -> list[bytes]:
        store: Any = self._store
        if not _has_many(store):
            return [store.get(key) for key in keys]
        found: list[bytes] = []
        for start in range(0, len(keys), _CHUNK):
            found += store.multi_get(list(keys[start : start + _CHUNK]))
        return found

    def publish(self, sequence: int, outcomes: dict[int, bytes]) -> None:
        """Leave a message for each of these ranks, on rank 0."""

        def work() -> None:
            store: Any = self._store
            keys = [self._key("outcome", rank) for rank in outcomes]
            values = [b"%d " % sequence + outcome for outcome in outcomes.values()]
            if _has_many(store):
                for start in range(0, len(keys), _CHUNK):
                    store.multi_set(keys[start : start + _CHUNK], values[start : start + _CHUNK])
            else:
                for key, value in zip(keys, values, strict=True):
                    store.set(key, value)

        self._helper.call("publishing the outcome", work, self._bound)

    def outcome(self, sequence: int) -> bytes | None:
        """Return rank 0's message to this rank, in at most twice the bound (rank 0 may spend one itself)."""
        limit = 2 * self._bound + 1.0
        return self._helper.call("waiting for rank 0's outcome", lambda: self._outcome(sequence), limit)

    def _outcome(self, sequence: int) -> bytes | None:
        deadline = time.monotonic() + 2 * self._bound
        key = self._key("outcome", self.rank)
        pause = 0.001
        while time.monotonic() < deadline:
            if self._store.check([key]):
                number, _, word = self._store.get(key).partition(b" ")
                if int(number) == sequence:
                    return word
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        return None

    def announce(self, sequence: int, iteration: int) -> None:
        """Say, on rank 0, at which iteration report ``sequence`` is to be made."""
        plan = f"{sequence} {iteration}"
        self._helper.call("announcing a report", lambda: self._store.set(self._key("plan"), plan), self._bound)

    def announced(self) -> tuple[int, int] | None:
        """Return number and iteration of the report announced last."""
        return self._helper.call("asking for the next report", self._announced, self._bound)

    def _announced(self) -> tuple[int, int] | None:
        key = self._key("plan")
        if not self._store.check([key]):
            return None
        number, iteration = map(int, self._store.get(key).split())
        return number, iteration

    def wanted_names(self) -> list[int]:
        """Return the hashes whose names rank 0 asks everybody for."""
        return self._helper.call("asking for wanted names", self._wanted_names, self._bound) or []

    def _wanted_names(self) -> list[int]:
        epoch = self._store.add(self._key("wanted-epoch"), 0)
        if epoch == self._epoch:
            return []
        self._epoch = epoch
        return [int(number) for number in json.loads(self._store.get(self._key("wanted")))]

    def want_names(self, hashes: Iterable[int]) -> None:
        """Ask, on rank 0, for the names behind these hashes."""
        listed = json.dumps(list(hashes))

        def work() -> None:
            self._store.set(self._key("wanted"), listed)
            self._store.add(self._key("wanted-epoch"), 1)

        self._helper.call("asking for names", work, self._bound)

    def tell_names(self, names: Mapping[int, str]) -> None:
        """Tell rank 0 the names behind these hashes, in at most the bound; rank 0 asks again for what is left."""

        def work() -> None:
            for number, name in self._while_there_is_time(names.items()):
                self._store.set(self._key("name", number), name)

        self._helper.call("telling names", work, self._bound)

    def names_of(self, hashes: Iterable[int]) -> dict[int, str]:
        """Return the names behind these hashes, on rank 0, as far as ranks have told them, in at most the bound."""
        found: dict[int, str] = {}

        def work() -> None:
            for number in self._while_there_is_time(hashes):
                key = self._key("name", number)
                if self._store.check([key]):
                    found[number] = self._store.get(key).decode("utf-8", "replace")

        self._helper.call("reading names", work, self._bound)
        return dict(found)  # a copy: a call that comes back late may still add to the original

    def _while_there_is_time(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items until half the bound is over, so that a slow store is told from one that hangs."""
        deadline = time.monotonic() + 0.5 * self._bound
        for item in items:
            if time.monotonic() >= deadline:
                return
            yield item

    def close(self) -> None:
        """Stop the helper thread; nothing is sent after this."""
        self._helper.close()


def _own_connection(store: Any) -> Any:
    try:
        return store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):  # older torch, or a store that cannot
        return store


def _has_many(store: Any) -> bool:
    return bool(getattr(store, "has_extended_api", lambda: False)())
