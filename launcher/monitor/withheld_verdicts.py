"""Which verdicts wait for somebody else's time: a learned limit does not undercut a configured one through a peer.

A rank that waits for a peer, in a barrier outside of any section, say, stays there for as long as the peer takes. Where
the peer is in a section with a configured limit of 600 s and the one that waits is under a learned limit of 60 s, a
verdict after 60 s would end a job in which nobody has taken longer than somebody has allowed. Hence these rules:

* A deadline whose limit was learned alone (nobody has configured it, or one that it lengthens) is *withheld* when it
  has passed while another rank, seen in the same look, has time left under a configured limit: of a section, of the
  time between sections, of a heartbeat or of its start.
* So is a learned limit of heartbeats while the rank itself is in a section that has time left under a configured limit:
  how long that may take has been said, whatever else the rank was seen to do meanwhile in other sections. And so is a
  learned limit between sections while the rank meets a configured one of heartbeats.
* It stays withheld until the last of the deadlines that were running then has been met. Then the learned limit runs
  anew: who was let go needs time to go on.
* For the same reason it runs anew from when another rank last left a section or sent a heartbeat while the deadline was
  running: the one that waited may have been let go just before its deadline. What limit that section was under does
  not matter: a peer that hangs next, under whatever limit, gives no further sign, and the learned limit passes.
* A rank that has shut monitoring down may take as long as it likes, over a last save, say. While its process lives it
  counts as one that has just given a sign.
* When it has passed again, all of this is asked again: a rank that waits while a peer evaluates in section after
  section is no more to blame than one whose peer does so in a single long one. This is so for :data:`PATIENCE_NS`, an
  hour, after the deadline has passed for the first time; what begins after that does not count.
* So a rank that hangs is found when its peers stop, which a training of ranks that need each other does at the next
  collective: together with the configured limit of what they stop in, or one learned limit after their last sign of
  progress. Peers that never stop do not need it, or only seem to make progress, say by asking for it in a section of
  their own again and again. That cannot be told from the outside, hence the hour. It is then found within an hour, one
  configured limit and one learned limit of its deadline. A shorter time would kill the healthy, and cost a restart or
  the job; meanwhile a hang that stops nobody costs little.
* A configured deadline that passes is a verdict by itself; who is withheld because of it is condemned with it.
* A limit that is configured, a default, or of unknown origin is never withheld, nor is any with ``--ft-learned-limits
  replace``, where learned limits are to undercut configured ones, nor the learned limit of a start, which runs before a
  rank has anything to wait for.

Only ranks of this node are seen. A monitor that takes over judges afresh, by what runs then. No clock, no process and
no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from launcher.monitor.deadline_keys import Key, key_of, passes_ns
from launcher.monitor.lost_time import Freeze
from launcher.monitor.verdict import HEARTBEAT, OUT_OF_SECTION, SECTION, Deadline, Sighting
from resilience_core.protocol.cell_layout import SHUT_DOWN
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.limit_kinds import CONFIGURED, LEARNED

__all__ = ["PATIENCE_NS", "WithheldVerdicts"]

_SPEAK_FOR_ITSELF = {(HEARTBEAT, SECTION), (OUT_OF_SECTION, HEARTBEAT)}
"""A learned limit that has passed, and the configured one of the same rank by which it is well all the same."""
PATIENCE_NS = 3600 * 1_000_000_000
"""For how long after a deadline has passed what other ranks do keeps it from being a verdict."""


class _Rank(Protocol):
    def basis(self, deadline: Deadline) -> str | None:
        """Return what its limit rests on: ``CONFIGURED``, ``LEARNED`` alone, or None for neither or not known."""


R = TypeVar("R", bound=_Rank)


class _Hold(Generic[R]):
    """One deadline that is withheld.

    Args:
        others: The configured deadlines that it waits for.
        anew_ns: From when on its limit runs anew; None while any of the others runs.
    """

    def __init__(self, others: frozenset[Key[R]], anew_ns: int | None) -> None:
        self.others = others
        self.anew_ns = anew_ns


class WithheldVerdicts(Generic[R]):
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
                key = key_of(rank, sighting.view, deadline)
                hold = self._holds.get(key)
                if hold is None:
                    hold = _new_hold(sightings, rank, deadline, now_ns) if rank.basis(deadline) == LEARNED else None
                elif hold.anew_ns is not None and passes_ns(deadline, hold.anew_ns, freezes) <= now_ns:
                    is_too_late = now_ns >= deadline.at_ns + PATIENCE_NS
                    hold = hold if is_too_late else _new_hold(sightings, rank, deadline, now_ns) or hold
                if hold is not None:
                    holds[key] = hold
        self._holds = holds
        if not holds:
            return sightings
        running = {
            key_of(rank, sighting.view, deadline)
            for rank, sighting in sightings.items()
            for deadline in (*sighting.late, *(each for _, each in sighting.pending))
        }
        for hold in holds.values():
            if hold.anew_ns is None and running.isdisjoint(hold.others):
                hold.anew_ns = now_ns
        return {rank: self.apply(rank, sighting, now_ns, freezes) for rank, sighting in sightings.items()}

    def had(self, rank: R, view: CellView, deadlines: Iterable[Deadline]) -> tuple[Deadline, ...]:
        """Return those of them that were withheld, and may be no longer."""
        return tuple(deadline for deadline in deadlines if key_of(rank, view, deadline) in self._holds)

    def apply(self, rank: R, sighting: Sighting, now_ns: int, freezes: Sequence[Freeze]) -> Sighting:
        """Judge one rank by what the last look at all of them has found."""
        if not self._holds or not sighting.late:
            return sighting
        late, held, pending = [], [], list(sighting.pending)
        for deadline in sighting.late:
            hold = self._holds.get(key_of(rank, sighting.view, deadline))
            if hold is None:
                late.append(deadline)
            elif hold.anew_ns is None:
                held.append(deadline)
            else:
                at_ns = passes_ns(deadline, hold.anew_ns, freezes)
                if now_ns >= at_ns:
                    late.append(deadline)
                else:
                    pending.append((at_ns, deadline))
        return sighting._replace(late=tuple(late), pending=tuple(pending), held=tuple(held))


def _new_hold(sightings: Mapping[R, Sighting], rank: R, deadline: Deadline, now_ns: int) -> _Hold[R] | None:
    """Return what a deadline that has passed waits for; None where it is a verdict. An old sign buys no time."""
    others = frozenset(
        key_of(other, sighting.view, theirs)
        for other, sighting in sightings.items()
        for _, theirs in sighting.pending
        if other is not rank or (deadline.cause, theirs.cause) in _SPEAK_FOR_ITSELF
        if other.basis(theirs) == CONFIGURED
    )
    if others:
        return _Hold(others, None)
    sign_ns = max((_sign_ns(s.view, now_ns) for other, s in sightings.items() if other is not rank), default=0)
    return _Hold(others, sign_ns) if sign_ns > deadline.since_ns else None


def _sign_ns(view: CellView, now_ns: int) -> int:
    """Return when a rank last gave a sign of progress; one that has shut monitoring down gives none."""
    return now_ns if view.state == SHUT_DOWN else max(view.left_section_ns, view.last_heartbeat_ns)
