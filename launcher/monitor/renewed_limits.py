"""Limits that run anew: of a rank that waited in a collective for one that came back after its own limit.

The wait up to then is explained by the other rank, which has all of its next limit from then on. So has the one that
waited: a look a few milliseconds later would find it overdue before the collective could go on. Where the collective
does not go on, the verdict is made one limit later, together with that on the rank that came back, if that hangs again.
No clock, no process and no file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from launcher.monitor.deadline_keys import Key, key_of, passes_ns
from launcher.monitor.lost_time import Freeze
from launcher.monitor.verdict import Deadline, Sighting
from resilience_core.protocol.cell_view import CellView

__all__ = ["RenewedLimits"]

R = TypeVar("R")


class RenewedLimits(Generic[R]):
    """Remembers, from look to look, from when on the limit of a deadline runs."""

    def __init__(self) -> None:
        self._since_ns: dict[Key[R], int] = {}

    def renew(self, rank: R, view: CellView, deadlines: Iterable[Deadline], now_ns: int) -> None:
        """Have the limits of these deadlines run from now on."""
        for deadline in deadlines:
            self._since_ns[key_of(rank, view, deadline)] = now_ns

    def was_renewed(self, rank: R, view: CellView, deadline: Deadline) -> bool:
        """Return whether the limit of a deadline has run anew."""
        return key_of(rank, view, deadline) in self._since_ns

    def since_ns(self, rank: R, view: CellView, deadline: Deadline) -> int:
        """Return from when on the limit of a deadline runs."""
        return self._since_ns.get(key_of(rank, view, deadline), deadline.since_ns)

    def apply(self, rank: R, sighting: Sighting, now_ns: int, freezes: Sequence[Freeze]) -> Sighting:
        """Return a rank's sighting with what is not late any more, or will be later, since its limit runs anew."""
        if not self._since_ns:
            return sighting
        late: list[Deadline] = []
        pending: list[tuple[int, Deadline]] = []
        for at_ns, deadline in (*((now_ns, each) for each in sighting.late), *sighting.pending):
            since_ns = self._since_ns.get(key_of(rank, sighting.view, deadline))
            anew_ns = at_ns if since_ns is None else passes_ns(deadline, since_ns, freezes)
            if anew_ns <= now_ns:
                late.append(deadline)
            else:
                pending.append((anew_ns, deadline))
        return sighting._replace(late=tuple(late), pending=tuple(pending))

    def forget(self, ranks: Collection[R], sightings: Mapping[R, Sighting]) -> None:
        """Forget deadlines that run no longer, and ranks that are not asked for any more.

        Args:
            ranks: Who was looked at.
            sightings: What those said that could be read, each judged by itself.
        """
        if not self._since_ns:
            return
        running = {
            key_of(rank, sighting.view, deadline)
            for rank, sighting in sightings.items()
            for deadline in (*sighting.late, *(each for _, each in sighting.pending))
        }
        for key in [*self._since_ns]:
            if key[0] not in ranks or (key[0] in sightings and key not in running):
                del self._since_ns[key]
