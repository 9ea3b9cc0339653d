"""The launches of one or several runs put together: what each generation came to, over all nodes."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcher.reports.evidence import Evidence
from launcher.reports.launches import Launch
from launcher.reports.members import Member, member_of, with_seen
from launcher.reports.rank_lives import RankLife
from launcher.reports.runs import end_ns, ended_before_others, node_names, runs_of, taking_part

__all__ = ["JobGeneration", "Member", "Story", "end_ns", "put_together"]


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
    """The last one that every rank has done that had not ended well before, or that a checkpoint holds which counts as
    kept (:mod:`launcher.reports.held`); None where a rank that takes steps has done none."""
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
    tells whether an exception has ended the last step; or :attr:`is_held_about`."""
    is_held_about: bool = False
    """Training has gone on beyond what all ranks are known to have done, and it is not certain that they have."""

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
    aside: frozenset[int] = frozenset()
    """The ranks that tell of no steps in any generation, where others do."""
    places_aside: frozenset[tuple[str, int]] = frozenset()
    """Node and local rank of these, and of ranks that tell of nothing at all beside others that take steps."""

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
    def has_signs(self) -> bool:
        """Whether a rank has told of anything: a step, a section or a heartbeat."""
        lives = (life for ranks in self.lives.values() for life in ranks.values())
        return (
            self.has_steps
            or any(life.first_sign_ns is not None for life in lives)
            or any(member.own.first_sign_ns for _, member in self.members)
        )

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
    parts: list[tuple[int, int, list[Member], bool, bool]] = []
    for run, numbers in enumerate(runs):
        by_number: dict[int, list[int]] = collections.defaultdict(list)
        for launch in numbers:
            for each in launches[launch].generations:
                by_number[each.number].append(launch)
        for number in sorted(by_number):
            own = dict.fromkeys(by_number[number])
            members = [member_of(launches[launch], launch, number, lives, evidence) for launch in own]
            has_failed = any(
                m.own.kind in ("hang", "failure") or (m.own.failed_elsewhere and m.own.finished_ns is None)
                for m in members
            )
            members = with_seen(members) if has_failed else members
            parts.append((run, number, members, has_failed, number == max(by_number)))
    aside = _taking_no_steps([members for _, _, members, _, _ in parts])
    generations = [
        _generation(run, number, members, aside, has_failed=has_failed, is_last=is_last)
        for run, number, members, has_failed, is_last in parts
    ]
    nodes = node_names(launches)
    return Story(
        launches=tuple(launches),
        runs=tuple(map(tuple, runs)),
        run_of={launch: run for run, numbers in enumerate(runs) for launch in numbers},
        node_of=nodes,
        generations=tuple(generations),
        lives=lives,
        epoch=min(launches[n].at(launches[n].began_ns) for run in runs for n in taking_part(launches, run)),
        aside=aside,
        places_aside=_places_without_steps([members for _, _, members, _, _ in parts], nodes),
    )


def _known(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _taking_no_steps(parts: Sequence[Sequence[Member]]) -> frozenset[int]:
    """Return the ranks that tell of no steps in any generation, also where others have done several without them."""
    begun, without = set[int](), set[int]()
    for members in parts:
        lives = {rank: life for member in members for rank, life in member.lives.items()}
        own = {rank for rank, life in lives.items() if life.first_step_ns is not None}
        begun |= own
        if _are_several_done(members):
            without |= lives.keys() - own
    return frozenset(without - begun)


def _places_without_steps(parts: Sequence[Sequence[Member]], node_of: Mapping[int, str]) -> frozenset[tuple[str, int]]:
    """Return node and local rank of those that tell of no steps in any generation, though others have done several."""
    begun, without = set[tuple[str, int]](), set[tuple[str, int]]()
    for members in parts:
        several = _are_several_done(members)
        for member in members:
            lives = member.lives.values()
            begun |= {
                (node_of[member.launch], life.local_rank)
                for life in lives
                if life.first_step_ns is not None and life.local_rank is not None
            }
            if several:
                without |= {(node_of[member.launch], local_rank) for local_rank in member.own.local_ranks}
    return frozenset(without - begun)


def _are_several_done(members: Sequence[Member]) -> bool:
    """Return whether ranks have done more than a step: those that wait for each other cannot be further apart."""
    done = ((life.first_iteration, life.done) for member in members for life in member.lives.values())
    return any(first is not None and last is not None and last > first for first, last in done)


def _generation(
    run: int, number: int, members: Sequence[Member], aside: frozenset[int], *, has_failed: bool, is_last: bool
) -> JobGeneration:
    lives = [life for member in members for life in member.lives.values()]
    # What all others have done, ranks have done too whose last lines are missing since their launcher was killed.
    told = [member for member in members if member.lives and not member.is_silent] or members
    # Whoever has ended well has done its part, and those who go on do without it.
    with_steps = [(m, rank) for m in told for rank, life in m.lives.items() if life.first_step_ns is not None]
    under_way = [(m, rank) for m, rank in with_steps if m.own.finished_ns is None and rank not in m.left]
    done = {rank: member.done(rank) for member, rank in under_way or with_steps}
    if under_way:  # whoever has come to no step has done none
        done |= dict.fromkeys(rank for m in told for rank in m.lives if rank not in aside and _came_to_none(m, rank))
    known = _known(done.values())
    # Ranks that wait for each other cannot be further apart than a step.
    behind = [m for m, r in under_way if r not in m.reports and (n := done[r]) is not None and n < max(known) - 1]
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


def _came_to_none(member: Member, rank: int) -> bool:
    """Return whether a rank has begun no step by the end of a generation, though it had not ended well."""
    life = member.lives[rank]
    has_begun = life.first_step_ns is not None or life.iteration is not None
    return life.is_over and not has_begun and rank not in member.left and member.own.finished_ns is None
