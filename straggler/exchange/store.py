"""StoreExchange: windows and outcomes through a ``torch.distributed`` store, every call bounded.

See :mod:`straggler.exchange.exchange` for why, and for what it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from straggler.exchange.bounded_calls import BoundedCalls
from straggler.exchange.leaving import IS_OVER, LATE_REPORTS, WrittenKeys, counters, leave
from straggler.exchange.many_keys import own_connection, read_all, write_all
from straggler.exchange.presence import Presence
from straggler.exchange.sequences import asked, kind_of
from straggler.exchange.store_names import Store, StoreNames
from straggler.exchange.wire import LEFT
from straggler.pacing import paced

__all__ = ["StoreExchange"]

_CHUNK = 1024
_NO_MORE = b"left "
"""Before the window of a rank that makes no more of them, in the place where its next would be."""
_GRACE_SECONDS = 0.1
_LEAVING_SECONDS = 3.0


class StoreExchange:
    """Windows through a ``torch.distributed`` store.

    Args:
        store: A store of this job; a connection of its own is made from it where the store can
            (``clone``), so that a slow call here never blocks another user of the same connection. The helper thread
            makes it, and nobody waits for that: where the process group is made late, it is within an iteration.
        rank: This rank.
        world_size: Ranks in the job.
        bound_seconds: How long rank 0 waits for the others, and anybody for the store.
        prefix: Before every key; carries the generation, so that a restart meets no old keys.
        heard_within: Seconds between two looks at what rank 0 shows.
        is_expected: Whether what the store belongs to still exists; False: no call is made any more.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        *,
        bound_seconds: float,
        prefix: str,
        heard_within: float = 0.01,
        is_expected: Callable[[], bool] = lambda: True,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.heard_within = heard_within
        self._bound = bound_seconds
        self._prefix = prefix
        self._is_expected = is_expected
        self._helper = BoundedCalls(Presence(store, is_expected))
        self._written = WrittenKeys()
        self._is_closed = False
        self._store: Store = store  # until the helper thread, which alone makes calls, has connected
        self._helper.begin("connecting to the store", lambda: self._connect(store))
        self._windows_made: dict[tuple[int, int], bytes] = {}
        self._posted = {0: -1, 1: asked(-1)}
        self._seen: dict[tuple[int, int], set[int]] = {}
        self._late: set[int] = set()
        self._names = StoreNames(lambda: self._store, self._key, self._to_write, bound_seconds)
        self._board_epoch = 0
        self._counted = 0

    def _connect(self, store: Any) -> None:
        self._store = own_connection(store)

    def _key(self, *parts: object) -> str:
        return "/".join([self._prefix, *map(str, parts)])

    def _to_write(self, *parts: object) -> str:
        """Return a key that is about to be written, so that it is removed in the end."""
        key = self._key(*parts)
        self._written.note(key, str(parts[0]))
        return key

    def post(self, sequence: int, payload: bytes) -> None:
        """Leave this rank's window for report ``sequence``."""

        def work() -> None:
            self._posted[kind_of(sequence)] = sequence
            self._windows_made[_place(sequence)] = value = b"%d " % sequence + payload
            self._store.set(self._to_write("window", *_place(sequence), self.rank), value)
            counter = self._to_write("count", sequence)
            if self._store.add(counter, 1) == 1 and self._is_too_late(sequence):
                self._store.delete_key(counter)  # it would stay: rank 0 removes those of the last few reports

        self._helper.call("leaving this rank's window", work, self._bound)

    def _is_too_late(self, sequence: int) -> bool:
        """Return whether rank 0 has collected a later report than this already."""
        latest = self._key("collected", kind_of(sequence))
        return self._store.check([latest]) and int(self._store.get(latest)) > sequence

    def collect(self, sequence: int, is_over: Callable[[], bool] | None = None) -> list[bytes | None]:
        """Return every rank's latest window, on rank 0, in at most the bound; see :class:`Exchange`."""
        nothing: list[bytes | None] = [None] * self.world_size
        return self._helper.call("collecting", lambda: self._collect(sequence, is_over), 2 * self._bound) or nothing

    def _collect(self, sequence: int, is_over: Callable[[], bool] | None) -> list[bytes | None]:
        deadline = time.monotonic() + self._bound
        counter = self._to_write("count", sequence)
        pause = 0.0005
        grace: float | None = None
        while True:
            if not self._is_expected():
                return [None] * self.world_size
            came = self._store.add(counter, 0)
            now = time.monotonic()
            if came >= self.world_size or now >= deadline or (grace is not None and now >= grace):
                break
            if is_over is not None:
                if is_over():
                    break
            # Everybody waits for this report. Ranks that were missing last time are probably still missing: once all
            # others are here, wait for them a tenth of a second, and not the whole bound at every report.
            elif grace is None and self._late and came >= self.world_size - len(self._late):
                grace = now + min(_GRACE_SECONDS, self._bound)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)
        self._store.set(self._to_write("collected", kind_of(sequence)), str(sequence))
        for before in range(1, LATE_REPORTS + 1):  # a rank that is late makes its counter anew
            self._store.delete_key(self._key("count", sequence - before))
        everybody = range(self.world_size)
        found = self._windows(sequence, everybody, is_complete=came >= self.world_size)
        if missing := [rank for rank in everybody if found.get(rank, LEFT) == LEFT]:
            # What came too late for the last report, of ranks that are missing again, is still worth having.
            found |= self._windows(sequence - 1, missing, is_complete=False)
        return [found.get(rank) for rank in everybody]

    def _windows(self, sequence: int, ranks: Sequence[int], *, is_complete: bool) -> dict[int, bytes]:
        """Return the windows for a report that these ranks have made, and ``LEFT`` of a rank that makes no more."""
        seen = self._seen.setdefault(_place(sequence), set())
        unseen = [rank for rank in ranks if rank not in seen]
        seen.update(unseen if is_complete else self._existing(sequence, unseen))
        there = [rank for rank in ranks if rank in seen]
        found: dict[int, bytes] = {}
        windows = self._key("window", *_place(sequence))
        values = read_all(self._store, [f"{windows}/{rank}" for rank in there])
        for rank, value in zip(paced(there, _CHUNK), values, strict=True):
            window = value.removeprefix(_NO_MORE)
            number, _, payload = window.partition(b" ")
            if window and int(number) == sequence:
                found[rank] = payload
            elif window != value:
                found[rank] = LEFT
        return found

    def _window(self, sequence: int, rank: int) -> str:
        return self._key("window", *_place(sequence), rank)

    def note_late(self, ranks: Iterable[int]) -> None:
        """Note, on rank 0, who was missing in the report just made."""
        self._late = set(ranks)

    def _existing(self, sequence: int, ranks: list[int]) -> list[int]:
        """Return which of these ranks have ever left a window; log N calls to the store for each that has not."""
        if not ranks or self._store.check([self._window(sequence, rank) for rank in ranks]):
            return ranks
        if len(ranks) == 1:
            return []
        middle = len(ranks) // 2
        return self._existing(sequence, ranks[:middle]) + self._existing(sequence, ranks[middle:])

    def publish(self, sequence: int, outcomes: dict[int, bytes]) -> None:
        """Leave a message for each of these ranks, on rank 0."""

        def work() -> None:
            keys = [self._to_write("outcome", rank) for rank in outcomes]
            write_all(self._store, keys, [b"%d " % sequence + outcome for outcome in outcomes.values()])

        self._helper.call("publishing the outcome", work, self._bound)

    def outcome(self, sequence: int, is_over: Callable[[], bool] | None = None) -> bytes | None:
        """Return rank 0's message to this rank, in at most twice the bound (rank 0 may spend one itself)."""
        limit = 2 * self._bound + 1.0
        return self._helper.call("waiting for rank 0's outcome", lambda: self._outcome(sequence, is_over), limit)

    def _outcome(self, sequence: int, is_over: Callable[[], bool] | None) -> bytes | None:
        deadline = time.monotonic() + 2 * self._bound
        key, has_left = self._key("outcome", self.rank), self._key(IS_OVER)
        pause = 0.001
        while time.monotonic() < deadline and self._is_expected():
            if self._store.check([key]):
                number, _, word = self._store.get(key).partition(b" ")
                if int(number) >= sequence and kind_of(int(number)) == kind_of(sequence):
                    return word if int(number) == sequence else None  # a later one: this rank's came too late
            if (is_over is not None and is_over()) or self._store.check([has_left]):
                return None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        return None

    def show(self, board: bytes) -> None:
        """Show all other ranks, on rank 0, what it has planned and proposes."""

        def work() -> None:
            self._store.set(self._to_write("board"), board)
            self._store.add(self._to_write("board-epoch"), 1)

        self._helper.call("announcing a report", work, self._bound)

    def look(self) -> bytes | None:
        """Return what rank 0 shows, None where that has not changed since the last call."""
        return self._helper.call("asking for the next report", self._look, self._bound)

    def _look(self) -> bytes | None:
        epoch = self._store.add(self._to_write("board-epoch"), 0)
        # 0: rank 0 has shown nothing, or has left and taken it away; a get would wait for it.
        if epoch in (0, self._board_epoch) or not self._store.check([self._key("board")]):
            return None
        board = self._store.get(self._key("board"))
        self._board_epoch = epoch
        return board

    def answer(self, proposal: int, amount: int) -> None:
        """Add to the answers to a proposal of rank 0's."""
        key = self._to_write("answers", proposal)
        self._helper.call("answering a proposal", lambda: self._store.add(key, amount), self._bound)

    def answers(self, proposal: int) -> int:
        """Return the sum of the answers to a proposal, on rank 0."""
        key, before = self._to_write("answers", proposal), self._key("answers", proposal - 1)

        def work() -> int:
            if proposal > self._counted:
                self._store.delete_key(before)
                self._counted = proposal
            return self._store.add(key, 0)

        return self._helper.call("counting answers", work, self._bound) or 0

    def wanted_names(self) -> list[int]:
        """Return the hashes whose names rank 0 asks everybody for."""
        return self._helper.call("asking for wanted names", self._names.wanted, self._bound) or []

    def want_names(self, hashes: Iterable[int]) -> None:
        """Ask, on rank 0, for the names behind these hashes."""
        listed = list(hashes)
        self._helper.call("asking for names", lambda: self._names.want(listed), self._bound)

    def tell_names(self, names: Mapping[int, str]) -> None:
        """Tell rank 0 the names behind these hashes, in at most the bound; rank 0 asks again for what is left."""
        self._helper.call("telling names", lambda: self._names.tell(names), self._bound)

    def names_of(self, hashes: Iterable[int]) -> dict[int, str]:
        """Return the names behind these hashes, on rank 0, as far as ranks have told them, in at most the bound."""
        found: dict[int, str] = {}
        self._helper.call("reading names", lambda: self._names.read(hashes, found), self._bound)
        return dict(found)  # a copy: a call that comes back late may still add to the original

    def close(self) -> None:
        """Remove what nobody reads any more and stop the helper thread; nothing is sent after this. Twice is no error.

        Takes at most three seconds, and none where the store is gone.
        """
        if self._is_closed:
            return
        self._is_closed = True
        limit = min(self._bound, _LEAVING_SECONDS)
        self._helper.last_call("removing what was left in the store", lambda: self._leave(0.5 * limit), limit)

    def _leave(self, limit_seconds: float) -> None:
        if self.rank:
            for last in self._posted.values():
                place = _place(last + 1)
                value = _NO_MORE + self._windows_made.get(place, b"")  # rank 0 may not yet have read it
                self._store.set(self._to_write("window", *place, self.rank), value)
        leave(self._store, self._key, self.rank, self.world_size, self._all_written, limit_seconds=limit_seconds)

    def _all_written(self) -> list[str]:
        written, everybody = self._written.all(), list(range(self.world_size))
        if self.rank == 0:  # what others have written since the last report, too
            written += counters(self._key, self._posted)
            for number in (0, 1, asked(0), asked(1)):
                written += [self._window(number, rank) for rank in self._existing(number, everybody)]
        return written


def _place(sequence: int) -> tuple[int, int]:
    """Return where windows for a report are: two places in turn, so that the next does not overwrite one unread."""
    return kind_of(sequence), sequence % 2
