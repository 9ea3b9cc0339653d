"""One launch's part in a generation: what its events, the figures of its ranks and its incident tell together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.incidents.rank_report import RankReport
from launcher.reports.evidence import Evidence, ends_a_step
from launcher.reports.last_signs import had_ended_well, last_sign_ns, waits
from launcher.reports.launches import Launch
from launcher.reports.node_generations import NodeGeneration
from launcher.reports.rank_lives import RankLife
from launcher.reports.runs import end_ns
from launcher.reports.samples import Wait

__all__ = ["Member", "member_of", "with_seen"]


class Member(NamedTuple):
    """One launch's part in a generation. Times are of its own clock, in nanoseconds."""

    launch: int
    """Its index."""
    own: NodeGeneration
    lives: Mapping[int, RankLife]
    """By rank; empty where no figures were written."""
    last_sign_ns: int | None
    """The last sign of progress of its ranks; None where none is known."""
    waited: Mapping[int, Wait]
    """Ranks that waited for one that had failed, where it is known since when."""
    seen_ns: int | None
    """When the failure was known here; None without one."""
    is_seen_about: bool
    """Nothing has noted that here: as long after the last sign of progress as on the node that has failed."""
    cut_ns: int | None
    """Until when its figures tell of it, where the lines after that are missing; None where none are."""
    stopped_ns: int
    """When its ranks had ended, or until when they are known to have run."""
    has_stopped: bool
    is_ending: bool
    """A failure was seen, and its ranks have not ended yet: their last figures are still to come."""
    is_end_missing: bool
    """It has ended, and nothing tells when its last rank had."""
    is_silent: bool
    """Its launcher has ended without a word: its ranks may have got on after the last line."""
    errors: Mapping[int, int | None]
    """Ranks whose exception has ended a step, and the iteration of that."""
    left: frozenset[int]
    """Ranks that had ended well before the others were ended."""
    reports: Mapping[int, RankReport]
    """What the incident tells of ranks; whether they had ended well, too."""
    looked_ns: int | None
    """When that was seen; None without one."""
    lacks_incident: bool
    """Its events tell of an incident that is not here, or cannot be read."""

    @property
    def is_open_ended(self) -> bool:
        """Whether its last figures are missing: its ranks may have done more than they tell, and for longer."""
        has_ended = self.has_stopped or self.is_end_missing or self.is_silent
        return self.cut_ns is not None or self.is_silent or (has_ended and not self.lives)

    def done(self, rank: int) -> int | None:
        """Return the last iteration that a rank has done; a step that an exception has ended does not count."""
        done = self.lives[rank].done
        first = self.lives[rank].first_iteration
        if done is not None and rank in self.errors and self.errors[rank] == done:
            return done - 1 if first is None or done > first else None
        return done


def member_of(
    launch: Launch,
    index: int,
    number: int,
    lives: Mapping[tuple[int, int], Mapping[int, RankLife]],
    evidence: Evidence,
) -> Member:
    """Return the part of a launch, by its index, in a generation, by the number of that."""
    own = [generation for generation in launch.generations if generation.number == number][-1]
    later = [generation.started_ns for generation in launch.generations if generation.number > number]
    until_ns = min(later, default=end_ns(launch))
    stopped_ns = own.stopped_ns if own.stopped_ns is not None else until_ns
    incident = evidence.of_generation(launch, own)
    looked_at = incident.ranks if incident is not None else ()
    seen_ns = own.seen_ns
    is_told = seen_ns is None and incident is not None and own.finished_ns is None
    if is_told and incident is not None:
        seen_ns = min(incident.seen_ns, stopped_ns)
    if seen_ns is not None:
        seen_ns = max(seen_ns, own.started_ns)  # where the first lines are missing, that is the first one left
    ranks = lives.get((index, number), {})
    sign_until_ns = seen_ns if seen_ns is not None else stopped_ns
    waited = waits(ranks, incident, sign_until_ns)
    cut_ns: int | None = None
    has_ended = own.stopped_ns is not None or bool(later) or launch.ended_ns is not None
    if has_ended and not any(life.is_over for life in ranks.values()):
        cut_ns = max((life.last_ns for life in ranks.values()), default=None)
    return Member(
        launch=index,
        own=own,
        lives=ranks,
        last_sign_ns=last_sign_ns(own, ranks, cut_ns, incident, sign_until_ns, waited),
        waited=waited,
        seen_ns=seen_ns,
        is_seen_about=is_told,
        cut_ns=cut_ns,
        stopped_ns=max(stopped_ns, seen_ns or 0, own.started_ns),
        has_stopped=own.stopped_ns is not None,
        is_ending=seen_ns is not None and own.stopped_ns is None and not later and launch.is_running,
        is_end_missing=own.stopped_ns is None
        and (bool(later) or (seen_ns is not None and launch.ended_ns is not None)),
        is_silent=not (own.stopped_ns is not None or later or launch.ended_ns is not None or launch.is_running),
        errors={
            rank.rank: rank.error.iteration
            for rank in looked_at
            if rank.error is not None and ends_a_step(rank.error, ranks.get(rank.rank))
        },
        left=frozenset(rank.rank for rank in looked_at if had_ended_well(rank, seen_ns)),
        reports={rank.rank: rank for rank in looked_at},
        looked_ns=incident.seen_ns if incident is not None else None,
        lacks_incident=incident is None
        and bool(own.incident_folder or own.culprits or (own.failed_elsewhere and own.finished_ns is None)),
    )


def with_seen(members: list[Member]) -> list[Member]:
    """Return members of a generation that has failed; those that have noted nothing knew of it as soon as the others.

    Clocks of two machines are not compared: what is taken over is how long it took from the last sign of progress on.
    """
    took = [m.seen_ns - m.last_sign_ns for m in members if m.seen_ns is not None and m.last_sign_ns is not None]
    shortest = min(took, default=0)
    return [
        member._replace(
            seen_ns=min(max(member.last_sign_ns + shortest, member.own.started_ns), member.stopped_ns),
            is_seen_about=True,
        )
        if member.seen_ns is None and member.last_sign_ns is not None and member.own.finished_ns is None
        else member
        for member in members
    ]
