"""The log that voters replicate: entries by index, a snapshot in place of the oldest ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Entry", "RaftLog", "Snapshot"]


class Entry(NamedTuple):
    """One entry; its index is where it stands in the log.

    Args:
        term: Of the leader that made it.
        kind: ``noop`` (the first of each leader's term), ``voters`` (``data`` lists them) or ``command``.
        data: Of JSON's types.
    """

    term: int
    kind: str
    data: Any


class Snapshot(NamedTuple):
    """What the log up to an index amounts to.

    Args:
        last_index: Of the last entry that it covers.
        last_term: That entry's.
        voters: Those in force there.
        state: The state machine's, of JSON's types.
    """

    last_index: int
    last_term: int
    voters: tuple[str, ...]
    state: Any


class RaftLog:
    """Entries after a snapshot.

    Args:
        snapshot: Where the log begins.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._entries: list[Entry] = []
        self._voters = [(snapshot.last_index, snapshot.voters)]

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.snapshot.last_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self._entries[-1].term if self._entries else self.snapshot.last_term

    @property
    def voters(self) -> tuple[str, ...]:
        """The voters in force: those of the last entry that names them, committed or not (dissertation, 4.1)."""
        return self._voters[-1][1]

    @property
    def voters_index(self) -> int:
        """Index of the entry that put them in force."""
        return self._voters[-1][0]

    def voters_at(self, index: int) -> tuple[str, ...]:
        """Return the voters as of an index; those of the snapshot where it is earlier."""
        return next((voters for at, voters in reversed(self._voters) if at <= index), self._voters[0][1])

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry; None where it is not held."""
        if index == self.snapshot.last_index:
            return self.snapshot.last_term
        position = index - self.snapshot.last_index - 1
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def entry(self, index: int) -> Entry:
        """Return an entry that is held."""
        return self._entries[index - self.snapshot.last_index - 1]

    def after(self, index: int, at_most: int) -> list[Entry]:
        """Return the entries after an index that is held or is the snapshot's."""
        position = index - self.snapshot.last_index
        return self._entries[position : position + at_most]

    def append(self, entry: Entry) -> int:
        """Append an entry and return its index."""
        self._entries.append(entry)
        if entry.kind == "voters":
            self._voters.append((self.last_index, tuple(entry.data)))
        return self.last_index

    def merge(self, previous_index: int, entries: Sequence[Entry]) -> None:
        """Take over a leader's entries after an index whose term agrees; what contradicts them is dropped."""
        for index, entry in enumerate(entries, previous_index + 1):
            if index <= self.snapshot.last_index:
                continue
            held = self.term_at(index)
            if held is not None and held != entry.term:
                self._truncate(index)
                held = None
            if held is None:
                self.append(entry)

    def compact(self, index: int, state: Any) -> None:
        """Replace the entries up to a committed index by a snapshot."""
        term = self.term_at(index)
        assert term is not None
        voters = self.voters_at(index)
        del self._entries[: index - self.snapshot.last_index]
        self.snapshot = Snapshot(index, term, voters, state)
        self._voters = [(index, voters), *((at, each) for at, each in self._voters if at > index)]

    def _truncate(self, index: int) -> None:
        del self._entries[index - self.snapshot.last_index - 1 :]
        self._voters = [each for each in self._voters if each[0] < index]
