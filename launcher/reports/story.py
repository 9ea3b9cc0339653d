"""The launches of one or several runs put together: what each generation came to, over all nodes."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcher.reports.evidence import Evidence, ends_a_step
from launcher.reports.last_signs import had_ended_well, last_sign_ns, waits
from launcher.reports.launches import Launch
from launcher.reports.node_generations import NodeGeneration
from launcher.reports.rank_lives import RankLife
from launcher.reports.runs import end_ns, ended_before_others, node_names, runs_of, taking_part

__all__ = ["JobGeneration", "Member", "Story", "end_ns", "put_together"]


class Member(NamedTuple):
    """One launch's part in a generation. Times are of its own clock, in nanoseconds."""

    launch: int
    """Its index."""
    own: NodeGeneration
    lives: Mapping[int, RankLife]
    """By rank; empty where no figures were written."""
    last_sign_ns: int | None
    """The last sign of progress of its ranks; None where none is known."""
    waited: Mapping[int, int]
    """Ranks that waited for one that had failed, and since when, where that is known."""
    seen_ns: int | None
    """When the failure was known here; None without one."""
    is_seen_about: bool
    """Nothing has noted that here: as long after the last sign of progress as on the node that has failed."""
    cut_ns: int | None
    """Until when its figures tell of it, where the lines after that are missing; None where none are."""
    stopped_ns: int
    """When its ranks had ended, or until when they are known to have run."""
    has_stopped: bool
    is_end_missing: bool
    """It has ended, and nothing tells when its last rank had."""
    is_silent: bool
    """Its launcher has ended without a word: its ranks may have got on after the last line."""
    errors: Mapping[int, int | None]
    """Ranks whose exception has ended a step, and the iteration of that."""
    left: frozenset[int]
    """Ranks that had ended well before the others were ended."""
    looked_at: frozenset[int]
    """Ranks of which the incident tells whether they had."""
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


class JobGeneration(NamedTuple):
    """One generation of a job, over all of its nodes."""

    run: int
    number: int
    members: tuple[Member, ...]
    has_failed: bool
    is_last: bool
    """Of its run."""

    first_iteration: int | None
    """The lowest that a rank has begun with."""
    done: int | None
    """The last one that every rank has done that had not ended well before; None where a rank that has begun a step
    has done none."""
    iteration: int | None
    """The highest that a rank has begun."""
    lowest_iteration: int | None
    """The lowest that is known to have been begun."""
    resumed_from: int | None
    """That of the checkpoint that was loaded."""
    world_size: int
    """How many ranks it has on the nodes that are known."""
    is_done_about: bool
    """A rank was behind the others, and nothing tells whether it had ended well; or the incident is missing, which
    tells whether an exception has ended the last step."""

    @property
    def is_stopped_on_purpose(self) -> bool:
        """Whether the training has stopped itself."""
        return any(member.own.is_stopped_on_purpose for member in self.members)

    @property
    def is_partial(self) -> bool:
        """Whether it ran on more nodes than are here."""
        return max((member.own.nodes or 0 for member in self.members), default=0) > len(self.members)

    @property
    def is_silent(self) -> bool:
        """Whether a launcher has ended without a word in it."""
        return any(member.is_silent for member in self.members)

    @property
    def is_open_ended(self) -> bool:
        """Whether the last figures of a node are missing, for what reason ever."""
        return any(member.is_open_ended for member in self.members)

    @property
    def is_cut(self) -> bool:
        """Whether its last figures are missing somewhere: it may have done more."""
        return any(member.cut_ns is not None for member in self.members)


class Story(NamedTuple):
    """Everything that was read, in order."""

    launches: tuple[Launch, ...]
    runs: tuple[tuple[int, ...], ...]
    """Indices of launches."""
    run_of: Mapping[int, int]
    node_of: Mapping[int, str]
    """The name of a launch's node, unique: two launches at the same time have two names."""
    generations: tuple[JobGeneration, ...]
    lives: Mapping[tuple[int, int], Mapping[int, RankLife]]
    epoch: float
    """Seconds since 1970 when the story begins."""
    missing: frozenset[tuple[int, int]] = frozenset()
    """The runs and numbers of generations of which nothing is left."""
    runs_about: frozenset[int] = frozenset()
    """The runs in which more may have been than is known: lines of their events are missing."""
    lacks: frozenset[int] = frozenset()
    """Before which runs another one is missing; their number stands for one at the end."""

    def at(self, launch: int, t_ns: int) -> float:
        """Return seconds since the story's begin of a time on a launch's clock."""
        return self.launches[launch].at(t_ns) - self.epoch

    @property
    def seconds(self) -> float:
        """How long it took, by the wall clock."""
        return max(self.at(n, end_ns(launch)) for n, launch in enumerate(self.launches) if self.takes_part(n))

    def takes_part(self, number: int) -> bool:
        """Return whether a launch counts for when its run began and ended: it has started ranks, or none there has."""
        return number in taking_part(self.launches, self.runs[self.run_of[number]])

    def lacks_end(self, run: int) -> bool:
        """Return whether all launchers of a run have ended without a word: their last lines may be on no disk."""
        return not any(self.launches[n].ended_ns is not None or self.launches[n].is_running for n in self.runs[run])

    @property
    def has_steps(self) -> bool:
        """Whether a rank has told of training steps."""
        return any(life.first_step_ns is not None for ranks in self.lives.values() for life in ranks.values())

    @property
    def members(self) -> Iterator[tuple[JobGeneration, Member]]:
        """Every launch's part in every generation."""
        return ((generation, member) for generation in self.generations for member in generation.members)


def put_together(
    launches: Sequence[Launch], lives: Mapping[tuple[int, int], Mapping[int, RankLife]], evidence: Evidence
) -> Story:
    """Return the story of launches, which are in the order of their begins."""
    runs = runs_of(launches)
    launches = ended_before_others(launches, runs)
    generations = []
    for run, numbers in enumerate(runs):
        by_number: dict[int, list[int]] = collections.defaultdict(list)
        for launch in numbers:
            for each in launches[launch].generations:
                by_number[each.number].append(launch)
        for number in sorted(by_number):
            own = dict.fromkeys(by_number[number])
            members = [_member(launches[launch], launch, number, lives, evidence) for launch in own]
            has_failed = any(
                m.own.kind in ("hang", "failure") or (m.own.failed_elsewhere and m.own.finished_ns is None)
                for m in members
            )
            members = _with_seen(members) if has_failed else members
            generations.append(_generation(run, number, members, has_failed, is_last=number == max(by_number)))
    return Story(
        launches=tuple(launches),
        runs=tuple(map(tuple, runs)),
        run_of={launch: run for run, numbers in enumerate(runs) for launch in numbers},
        node_of=node_names(launches),
        generations=tuple(generations),
        lives=lives,
        epoch=min(launches[n].at(launches[n].began_ns) for run in runs for n in taking_part(launches, run)),
    )


def _known(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _generation(run: int, number: int, members: Sequence[Member], has_failed: bool, *, is_last: bool) -> JobGeneration:
    lives = [life for member in members for life in member.lives.values()]
    # What all others have done, ranks have done too whose last lines are missing since their launcher was killed.
    told = [member for member in members if member.lives and not member.is_silent] or members
    # Whoever has ended well has done its part, and those who go on do without it.
    with_steps = [(m, rank) for m in told for rank, life in m.lives.items() if life.first_step_ns is not None]
    under_way = [(m, rank) for m, rank in with_steps if m.own.finished_ns is None and rank not in m.left]
    done = {rank: member.done(rank) for member, rank in under_way or with_steps}
    known = _known(done.values())
    # Ranks that wait for each other cannot be further apart than a step.
    behind = [m for m, r in under_way if r not in m.looked_at and (n := done[r]) is not None and n < max(known) - 1]
    return JobGeneration(
        run=run,
        number=number,
        members=tuple(members),
        has_failed=has_failed,
        is_last=is_last,
        first_iteration=min(_known(life.first_iteration for life in lives), default=None),
        done=(min if under_way else max)(known) if known and len(known) == len(done) else None,
        iteration=max(_known(life.iteration for life in lives), default=None),
        lowest_iteration=min(_known(life.lowest_iteration for life in lives), default=None),
        resumed_from=max(_known(life.resumed_from for life in lives), default=None),
        world_size=sum(len(member.own.local_ranks) for member in members),
        is_done_about=bool(behind) or any(member.lacks_incident for member in members),
    )


def _member(
    launch: Launch,
    index: int,
    number: int,
    lives: Mapping[tuple[int, int], Mapping[int, RankLife]],
    evidence: Evidence,
) -> Member:
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
        is_end_missing=own.stopped_ns is None
        and (bool(later) or (seen_ns is not None and launch.ended_ns is not None)),
        is_silent=not (own.stopped_ns is not None or later or launch.ended_ns is not None or launch.is_running),
        errors={
            rank.rank: rank.error.iteration
            for rank in looked_at
            if rank.error is not None and ends_a_step(rank.error, ranks.get(rank.rank))
        },
        left=frozenset(rank.rank for rank in looked_at if had_ended_well(rank, seen_ns)),
        looked_at=frozenset(rank.rank for rank in looked_at),
        lacks_incident=incident is None
        and bool(own.incident_folder or own.culprits or (own.failed_elsewhere and own.finished_ns is None)),
    )


def _with_seen(members: list[Member]) -> list[Member]:
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
