"""Ranks that were silent for long and have given a sign since: why others have waited. No clock, process or file.

A rank that came back explains the wait of others once, also where it came back before their own limits had passed, and
where it runs on another node. So the monitor remembers for a while who came back, and tells the monitors of other nodes
that ask (:mod:`launcher.monitor.other_nodes`). Between machines only durations travel.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.monitor.deadline_keys import word
from launcher.monitor.rank_monitor import RankMonitor
from launcher.monitor.verdict import Deadline, deadlines_in_force
from resilience_core.protocol.cell_view import CellView

__all__ = ["Comeback", "Comebacks", "explaining", "heard"]

_MOST = 16
"""How many are remembered: a node has eight ranks or so."""
_FIELDS = 3


class Comeback(NamedTuple):
    """A rank that was silent, and is no longer. Times are ``CLOCK_MONOTONIC`` of this machine, in nanoseconds."""

    rank: int
    """Its number in the job."""
    at_ns: int
    """When it was found to have come back, or a time before that: of a rank of another node, or of one that no look has
    found to be late."""
    silent_ns: int
    """How long it had given no sign, or had what it was late with."""


class Comebacks:
    """Remembers the last ones of one generation."""

    def __init__(self) -> None:
        self._generation = -1
        self._last: collections.deque[Comeback] = collections.deque(maxlen=_MOST)
        self._before: dict[RankMonitor, CellView] = {}

    def look(self, ranks: Sequence[RankMonitor], *, read: bool = False) -> None:
        """Note who has come back since the last look after a limit had passed, and was not found to be late.

        It was so for less time than a look takes, or a monitor that has just taken over does not believe yet what it
        sees. The time that is noted is that at which the limit had passed, since the next one is not known. Lost time
        is not given back here: who waits for a rank that was in time because of it has waited for longer, too.

        A rank that has given signs before it was looked at for the first time may have been late unseen: its monitor
        was replaced. It counts as one that came back with its last sign.

        Args:
            ranks: The ranks that are watched.
            read: Have them say what is now; else what they have said last counts.
        """
        generation = max((rank.order.generation for rank in (*ranks, *self._before)), default=-1)
        before = {rank: view for rank, view in self._before.items() if rank.order.generation >= generation}
        self._before = dict(before)
        came_back: list[Comeback] = []
        for rank in ranks:
            view = rank.view() if read else rank.known
            if view is None or rank.order.generation != generation:
                continue
            self._before[rank] = view
            if rank in before:
                passed = _passed(before[rank], view)[:1]
                came_back += [Comeback(rank.order.rank, each.at_ns, each.at_ns - each.since_ns) for each in passed]
            elif view.last_sign_ns:
                at_ns = view.last_sign_ns
                came_back.append(Comeback(rank.order.rank, at_ns, at_ns - rank.order.started_ns))
        if came_back:
            self.note(generation, came_back)

    def note(self, generation: int, comebacks: Iterable[Comeback]) -> None:
        """Remember some; those of an earlier generation are forgotten."""
        if generation != self._generation:
            self._generation = generation
            self._last.clear()
        self._last.extend(comebacks)

    def of(self, generation: int) -> tuple[Comeback, ...]:
        """Return those of a generation, the newest first."""
        return tuple(reversed(self._last)) if generation == self._generation else ()

    def told(self, generation: int, now_ns: int, more: Sequence[Comeback] = ()) -> tuple[int, ...]:
        """Return the longest of them, and of more, as they travel to another node: rank, how long ago, how long silent.

        Args:
            generation: Which.
            now_ns: ``CLOCK_MONOTONIC``.
            more: Such as are not worth remembering.
        """
        longest = sorted((*self.of(generation), *more), key=lambda each: -each.silent_ns)[:_MOST]
        return tuple(value for each in longest for value in (each.rank, now_ns - each.at_ns, each.silent_ns))


def _passed(before: CellView, now: CellView) -> list[Deadline]:
    """Return the deadlines that a rank has met or closed after they had passed, the first to pass first."""
    if (now.pid, now.start_time) != (before.pid, before.start_time):
        return []
    running = set(map(word, deadlines_in_force(now)))
    met = [each for each in deadlines_in_force(before) if word(each) not in running]
    return sorted((each for each in met if each.at_ns <= now.last_sign_ns), key=lambda each: each.at_ns)


def heard(told: Sequence[int], asked_ns: int) -> tuple[Comeback, ...]:
    """Return what another node has told.

    Args:
        told: As :meth:`Comebacks.told` has returned it, the times that passed on its way added; nothing is taken of
            what is not of that kind.
        asked_ns: When it was asked for (``CLOCK_MONOTONIC``): it was told later, so none came back before the time
            that follows.
    """
    if not isinstance(told, (tuple, list)) or len(told) % _FIELDS or not all(type(value) is int for value in told):
        return ()
    rows = [told[place : place + _FIELDS] for place in range(0, len(told), _FIELDS)]
    return tuple(Comeback(rank, asked_ns - ago_ns, silent_ns) for rank, ago_ns, silent_ns in rows)


def explaining(comebacks: Iterable[Comeback], since_ns: int, limit_ns: int) -> list[Comeback]:
    """Return those for whom somebody may have waited.

    Args:
        comebacks: Some.
        since_ns: From when on the limit of who waits has run, renewals included.
        limit_ns: That limit. Who was silent for less than half of it is not why it has passed.
    """
    return [each for each in comebacks if each.at_ns > since_ns and 2 * each.silent_ns >= limit_ns]
