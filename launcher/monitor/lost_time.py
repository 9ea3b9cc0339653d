"""Lost time: when nobody here could run, and what a deadline is moved by because of it.

Two witnesses, the monitor's loop and the launcher's keeper thread, note the time again and again ("beats") and record
every gap between two of their own beats. Where both were silent, everybody was: a stopped tree, a frozen cgroup, a
paused container, a machine that stood still. Where only one was, it was starved or stopped by itself, while the ranks
could run: nothing was lost. Both write to one small shared memory that outlives every monitor, so a successor and the
launcher itself judge by the same record.

The rule (:func:`moved_by_ns`) is a function of one deadline and of that record. It keeps no state, and it is bounded.
"""

from __future__ import annotations

import heapq
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = [
    "KEEPER",
    "LONGEST_BEAT_NS",
    "MONITOR",
    "SHORTEST_BEAT_NS",
    "Freeze",
    "LostTime",
    "freezes_of",
    "moved_by_ns",
]

MONITOR, KEEPER = 0, 1

SHORTEST_BEAT_NS = 25_000_000
LONGEST_BEAT_NS = 500_000_000
"""A limit of eight seconds and more is watched at no extra cost: the monitor looks twice a second anyway."""
BEATS_PER_LIMIT = 16
"""A freeze is unseen only below one and a half beats, less than a tenth of the smallest limit in force."""
LONGEST_SETTLING_NS = 500_000_000
"""Not everybody wakes at once: a freeze counts as longer by its own length, and by so much at most."""
MOST_FREEZES = 8
"""So many freezes, the longest, count for a deadline without limit; more only up to the deadline's own limit."""

_BEAT_PERIOD, _BUSY_UNTIL = 0, 1
_FIRST_WITNESS = 8
_RING = 512
_WITNESS_WORDS = 2 + 2 * _RING
_SIZE = (_FIRST_WITNESS + 2 * _WITNESS_WORDS) * 8


class Freeze(NamedTuple):
    """A span in which nobody ran; ``CLOCK_MONOTONIC`` nanoseconds."""

    start_ns: int
    end_ns: int


def moved_by_ns(since_ns: int, at_ns: int, freezes: Iterable[Freeze]) -> int:
    """Return how much later a deadline is because of freezes while it was running.

    Args:
        since_ns: When it began to run.
        at_ns: The deadline as the rank set it.
        freezes: What was lost, oldest first; they may overlap.

    Returns:
        Nanoseconds: all that was lost, but no more than the deadline's own limit, or than the ``MOST_FREEZES`` longest
        freezes together, whichever is more. So one long suspension counts in full, while a machine on which
        everybody stutters for ever cannot put a verdict off for ever.
    """
    seen_ns, end_ns = since_ns, at_ns
    pieces = []
    for freeze in freezes:
        if freeze.end_ns <= seen_ns:
            continue
        start_ns = max(freeze.start_ns, seen_ns)
        if start_ns >= end_ns:
            break
        pieces.append(freeze.end_ns - start_ns)
        end_ns += pieces[-1]
        seen_ns = freeze.end_ns
    lost_ns = end_ns - at_ns
    if lost_ns <= at_ns - since_ns:
        return lost_ns
    return max(at_ns - since_ns, sum(heapq.nlargest(MOST_FREEZES, pieces)))


def freezes_of(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[Freeze]:
    """Return where two witnesses were silent together, each with the moment that the last sleepers need to wake.

    Args:
        some: Gaps of one witness, as (last beat, next beat), oldest first.
        others: Likewise, of the other.
    """
    freezes = []
    left = right = 0
    while left < len(some) and right < len(others):
        start_ns = max(some[left][0], others[right][0])
        end_ns = min(some[left][1], others[right][1])
        if start_ns < end_ns:
            freezes.append(Freeze(start_ns, end_ns + min(end_ns - start_ns, LONGEST_SETTLING_NS)))
        if some[left][1] < others[right][1]:
            left += 1
        else:
            right += 1
    return freezes


class LostTime:
    """The shared record. Each witness writes its own part only, so there is nothing to lock.

    Args:
        descriptor: The memory, as :meth:`create` made it; it stays open and is the caller's to close.

    Raises:
        OSError: It cannot be mapped.
    """

    def __init__(self, descriptor: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, _SIZE)).cast("q")
        self._read = (0, 0)
        self._freezes: list[Freeze] = []

    @staticmethod
    def create() -> int:
        """Make the memory; it has no name, so nobody can remove it.

        Returns:
            A descriptor, closed on exec.

        Raises:
            OSError: There is no memory.
        """
        descriptor = os.memfd_create("ft_lost_time", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, _SIZE)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    # ---- witnesses --------------------------------------------------------------------------------------

    def beat(self, witness: int, now_ns: int) -> int:
        """Note that a witness runs, and the gap if it could not for a while.

        Returns:
            The length of that gap; 0 when there was none.
        """
        words, base = self._words, _base(witness)
        last_ns = words[base]
        gap_ns = now_ns - last_ns
        if last_ns and gap_ns > self._longest_pause_ns():
            entry = base + 2 + 2 * (words[base + 1] % _RING)
            words[entry], words[entry + 1] = last_ns, now_ns
            words[base + 1] += 1
            # The beat last: a reader that finds the old one takes the gap for open, and loses nothing.
            words[base] = now_ns
            return gap_ns
        words[base] = now_ns
        return 0

    def last_beat_ns(self, witness: int) -> int:
        """Return when a witness has last said that it runs; 0 when it never has."""
        return self._words[_base(witness)]

    @property
    def beat_period_ns(self) -> int:
        """How often each witness must note the time."""
        return self._words[_BEAT_PERIOD] or LONGEST_BEAT_NS

    def suit_limit(self, smallest_limit_ns: int) -> int:
        """Choose the beat for the smallest limit in force (0: none); the monitor's to call.

        Returns:
            The period.
        """
        period_ns = LONGEST_BEAT_NS
        if smallest_limit_ns:
            period_ns = min(max(smallest_limit_ns // BEATS_PER_LIMIT, SHORTEST_BEAT_NS), LONGEST_BEAT_NS)
        if self._words[_BEAT_PERIOD] != period_ns:
            self._words[_BEAT_PERIOD] = period_ns
        return period_ns

    @property
    def busy_until_ns(self) -> int:
        """Until when the monitor has announced not to beat, because it takes stacks."""
        return self._words[_BUSY_UNTIL]

    def announce_work(self, until_ns: int) -> None:
        """Tell the keeper that the monitor will be busy; the monitor's to call."""
        self._words[_BUSY_UNTIL] = until_ns

    # ---- the record -------------------------------------------------------------------------------------

    def freezes(self, now_ns: int) -> list[Freeze]:
        """Return when everybody was frozen, oldest first; a freeze that is only just over counts already."""
        # The beats before the counts: whoever records a gap moves its beat last.
        open_gaps = [self._open_gap(witness, now_ns) for witness in (MONITOR, KEEPER)]
        counts = self._words[_base(MONITOR) + 1], self._words[_base(KEEPER) + 1]
        if counts != self._read:
            self._read = counts
            self._freezes = freezes_of(self._gaps(MONITOR, counts[MONITOR]), self._gaps(KEEPER, counts[KEEPER]))
        if not any(open_gaps):
            return self._freezes
        return freezes_of(*(self._gaps(witness, counts[witness]) + open_gaps[witness] for witness in (MONITOR, KEEPER)))

    def _open_gap(self, witness: int, now_ns: int) -> list[tuple[int, int]]:
        last_ns = self._words[_base(witness)]
        return [(last_ns, now_ns)] if last_ns and now_ns - last_ns > self._longest_pause_ns() else []

    def _gaps(self, witness: int, count: int) -> list[tuple[int, int]]:
        words, base = self._words, _base(witness)
        gaps = []
        if count:
            flat = words[base + 2 : base + 2 + 2 * min(count, _RING)].tolist()
            gaps = [*zip(flat[::2], flat[1::2], strict=True)]
            turn = count % _RING if count > _RING else 0
            gaps = gaps[turn:] + gaps[:turn]
        return gaps

    def _longest_pause_ns(self) -> int:
        return self.beat_period_ns * 3 // 2


def _base(witness: int) -> int:
    return _FIRST_WITNESS + witness * _WITNESS_WORDS
