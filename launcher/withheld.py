"""Which verdicts wait for somebody else's time: a learned limit does not undercut a configured one through a peer.

A rank that waits for a peer, in a barrier outside of any section, say, stays there for as long as the peer takes. Where
the peer is in a section with a configured limit of 600 s and the one that waits is under a learned limit of 60 s, a
verdict after 60 s would end a job in which nobody has taken longer than somebody has allowed. Hence these rules:

* A deadline whose limit was learned alone (nobody has configured it, or one that it lengthens) is *withheld* when it
  has passed while another rank, seen in the same look, has time left under a configured limit: of a section, of the
  time between sections, of a heartbeat or of its start. What that rank begins later does not count, so one that makes
  progress for ever does not keep alive one that hangs.
* It stays withheld until the last of the deadlines that were running then has been met. Then the learned limit runs
  anew, once: who was let go needs time to go on. So a hang is found at the latest with the last of those configured
  limits, or, where they were met, one learned limit later.
* For the same reason it runs anew, once, from when another rank last left a section while the deadline was running: the
  one that waited may have been let go just before its deadline.
* A configured deadline that passes is a verdict by itself; who is withheld because of it is condemned with it.
* A limit that is configured, a default, or of unknown origin is never withheld, nor is any with ``--ft-learned-limits
  replace``, where learned limits are to undercut configured ones, nor the learned limit of a start, which runs before a
  rank has anything to wait for.

Only ranks of this node are seen. A monitor that takes over judges afresh, by what runs then. No clock, no process and
no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from launcher.lost_time import Freeze, moved_by_ns
from launcher.verdict import Deadline, Sighting
from resilience_core.cell import CellView
from resilience_core.limit_text import CONFIGURED, LEARNED

__all__ = ["Withheld", "word"]


class _Rank(Protocol):
    def basis(self, deadline: Deadline) -> str | None:
        """What its limit rests on: ``CONFIGURED``, ``LEARNED`` alone, or None for neither or not known."""


R = TypeVar("R", bound=_Rank)
Word = tuple[str, int, int]
Key = tuple[R, tuple[int, int], Word]


class _Hold(Generic[R]):
    """One deadline that is withheld.

    Args:
        others: The configured deadlines that it waits for.
        anew_ns: From when on its limit runs anew; None while any of the others runs.
    """

    def __init__(self, others: frozenset[Key[R]], anew_ns: int | None) -> None:
        self.others = others
        self.anew_ns = anew_ns


class Withheld(Generic[R]):
    """Remembers, from look to look, what each deadline that is withheld waits for."""

    def __init__(self) -> None:
        self._holds: dict[Key[R], _Hold[R]] = {}

    def weigh(self, sightings: Mapping[R, Sighting], now_ns: int, freezes: Sequence[Freeze]) -> Mapping[R, Sighting]:
        """Judge one look at all ranks.

        Args:
            sightings: What the ranks said at one instant, each judged by itself.
            now_ns: That instant.
            freezes: When everybody lost time.

        Returns:
            The same, with what is withheld no longer among what is late.
        """
        if not any(sighting.late for sighting in sightings.values()):
            self._holds.clear()
            return sightings
        holds: dict[Key[R], _Hold[R]] = {}
        for rank, sighting in sightings.items():
            for deadline in sighting.late:
                key = _key(rank, sighting.view, deadline)
                hold = self._holds.get(key)
                if hold is None and rank.basis(deadline) == LEARNED:
                    hold = _new_hold(sightings, rank, deadline)
                if hold is not None:
                    holds[key] = hold
        self._holds = holds
        if not holds:
            return sightings
        running = {
            _key(rank, sighting.view, deadline)
            for rank, sighting in sightings.items()
            for deadline in (*sighting.late, *(each for _, each in sighting.pending))
        }
        for hold in holds.values():
            if hold.anew_ns is None and running.isdisjoint(hold.others):
                hold.anew_ns = now_ns
        return {rank: self.apply(rank, sighting, now_ns, freezes) for rank, sighting in sightings.items()}

    def apply(self, rank: R, sighting: Sighting, now_ns: int, freezes: Sequence[Freeze]) -> Sighting:
        """Judge one rank by what the last look at all of them has found."""
        if not self._holds or not sighting.late:
            return sighting
        late, held, pending = [], [], list(sighting.pending)
        for deadline in sighting.late:
            hold = self._holds.get(_key(rank, sighting.view, deadline))
            if hold is None:
                late.append(deadline)
            elif hold.anew_ns is None:
                held.append(deadline)
            else:
                at_ns = hold.anew_ns + deadline.at_ns - deadline.since_ns
                at_ns += moved_by_ns(hold.anew_ns, at_ns, freezes)
                if now_ns >= at_ns:
                    late.append(deadline)
                else:
                    pending.append((at_ns, deadline))
        return sighting._replace(late=tuple(late), pending=tuple(pending), held=tuple(held))


def word(deadline: Deadline) -> Word:
    """What tells a deadline from one that was set later in the same place."""
    return deadline.cause, deadline.slot, deadline.at_ns


def _key(rank: R, view: CellView, deadline: Deadline) -> Key[R]:
    return rank, (view.pid, view.start_time), word(deadline)


def _new_hold(sightings: Mapping[R, Sighting], rank: R, deadline: Deadline) -> _Hold[R] | None:
    others = frozenset(
        _key(other, sighting.view, theirs)
        for other, sighting in sightings.items()
        if other is not rank
        for _, theirs in sighting.pending
        if other.basis(theirs) == CONFIGURED
    )
    if others:
        return _Hold(others, None)
    left_ns = max((s.view.left_section_ns for other, s in sightings.items() if other is not rank), default=0)
    return _Hold(others, left_ns) if left_ns > deadline.since_ns else None
