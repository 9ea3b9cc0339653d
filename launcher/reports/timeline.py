"""Each rank's way through time, in spans that leave no gap, few enough for a picture."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from launcher.reports.ledger import last_sign_ns
from launcher.reports.model import DOWN, IDLE, OUT_OF_SECTION, SECTION, STARTING, STOPPING, UNSEEN, Part, Rank, Span
from launcher.reports.rank_lives import RankLife
from launcher.reports.samples import Sample
from launcher.reports.story import Member, Story
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["MOST_SPANS", "least_seconds", "timeline"]

MOST_SPANS = 20_000
"""Of all ranks together, but for those that begin and end generations."""
_MOST_POINTS = 1000
_FEWEST_POINTS = 12
_MOST_PARTS = 4
_SETUP = "setup"
"""Closed when the first step begins. Named as in ``resilience_core.plugins``, which takes long to import."""


def least_seconds(seconds: float, ranks: int) -> float:
    """Return how long a span is at least, for a story of so many seconds and ranks."""
    points = min(max(MOST_SPANS // max(ranks, 1), _FEWEST_POINTS), _MOST_POINTS)
    return seconds / points


class _Piece(NamedTuple):
    start: float
    end: float
    kind: str
    section: str | None = None
    generation: int | None = None
    iteration: int | None = None
    parts: tuple[Part, ...] = ()


def timeline(story: Story, seconds: float) -> tuple[Rank, ...]:
    """Return every rank's spans on each of its nodes; of a rank whose number is known nowhere, there is none.

    Nodes are in the order of the ranks that they had first: where one was lost, those of the others are numbered anew.

    Args:
        story: What was read.
        seconds: Until when, since the story's begin.
    """
    pieces: dict[tuple[int, str], list[_Piece]] = collections.defaultdict(list)
    local_ranks: dict[tuple[int, str], int] = {}
    first_of: dict[str, int] = {}
    for index, generation in enumerate(story.generations):
        for member in generation.members:
            node = story.node_of[member.launch]
            is_running = story.launches[member.launch].is_running and generation.is_last
            by_local = {life.local_rank: life for life in member.lives.values()}
            ranks: list[int] = []
            for local_rank in member.own.local_ranks:
                life = by_local.get(local_rank)
                if life is None and len(generation.members) > 1:
                    continue  # which rank that was is not known
                ranks.append(life.rank if life is not None else local_rank)
                local_ranks[ranks[-1], node] = local_rank
                pieces[ranks[-1], node] += _pieces(story, index, member, life, is_running=is_running)
            if ranks:
                first_of.setdefault(node, min(ranks))
    order = {node: number for number, node in enumerate(first_of)}
    places = sorted(pieces, key=lambda place: (first_of[place[1]], order[place[1]], place[0]))
    return tuple(
        Rank(*place, local_ranks[place], spans=tuple(_without_gaps(sorted(pieces[place]), seconds))) for place in places
    )


def _pieces(story: Story, index: int, member: Member, life: RankLife | None, *, is_running: bool) -> Iterator[_Piece]:
    def at(t_ns: int) -> float:
        return story.at(member.launch, t_ns)

    started, stopped = at(member.own.started_ns), at(member.stopped_ns)
    group_sign_ns = last_sign_ns(member)
    if life is None:
        yield _Piece(started, stopped, UNSEEN, generation=index)
        return
    own_sign_ns = life.last_sign_ns(member.seen_ns if member.seen_ns is not None else member.stopped_ns)
    is_followed = own_sign_ns is not None and not is_running and member.cut_ns is None
    sign_ns = group_sign_ns if own_sign_ns is None or not is_followed else min(own_sign_ns, group_sign_ns)
    first_ns = life.first_step_ns if life.first_step_ns is not None else life.first_sign_ns
    first_ns = sign_ns if first_ns is None else min(max(first_ns, member.own.started_ns), sign_ns)
    yield _Piece(started, at(first_ns), STARTING, generation=index)
    for piece in _worked(life, first_ns, sign_ns):
        yield piece._replace(start=at(round(piece.start)), end=at(round(piece.end)), generation=index)
    seen_ns = member.seen_ns if member.seen_ns is not None else member.stopped_ns
    is_open = life.samples[-1].inside_ns if life.samples else {}
    section = _grew(life.samples[-2:], is_open) if len(life.samples) > 1 else None
    goes_on = is_running and member.own.finished_ns is None
    if (member.is_end_missing or goes_on) and member.seen_ns is None:
        seen_ns = sign_ns  # nothing tells what it did until the next generation, or has done by now
    ending = UNSEEN if member.is_end_missing or goes_on else STOPPING
    yield _Piece(at(sign_ns), at(max(seen_ns, sign_ns)), IDLE, section, index, life.iteration)
    yield _Piece(at(max(seen_ns, sign_ns)), stopped, ending, None, index, life.iteration)


def _grew(samples: Sequence[Sample], inside: object) -> str | None:
    """Return the section in which most of the time between two samples was spent."""
    parts = _parts(samples[0], samples[-1])
    return next((part.section for part in parts if part.section is not None), None)


def _worked(life: RankLife, first_ns: int, last_ns: int) -> Iterator[_Piece]:
    """Yield what a rank did from its first step on; times in nanoseconds."""
    before = Sample(first_ns, life.first_iteration, None, {}, {})
    known = [sample for sample in life.samples if first_ns < sample.t_ns]
    for sample in known:
        end_ns = min(sample.t_ns, last_ns)
        if before.t_ns >= end_ns:
            break
        yield _piece(before, sample, end_ns)
        before = sample
    if before.t_ns < last_ns:  # no line was written after that
        yield _Piece(before.t_ns, last_ns, UNSEEN, iteration=life.iteration)


def _piece(before: Sample, after: Sample, end_ns: int) -> _Piece:
    length = (end_ns - before.t_ns) / NS_PER_SECOND
    # What was open until the first step, or goes on after the last sign, is no part of this.
    parts = tuple(
        part._replace(seconds=min(part.seconds, length))
        for part in _parts(before, after)
        if before.inside_ns or part.section != _SETUP
    )
    largest = parts[0].section if parts else None
    kind = OUT_OF_SECTION if largest is None else SECTION
    return _Piece(before.t_ns, end_ns, kind, largest, None, after.iteration, parts[:_MOST_PARTS])


def _parts(before: Sample, after: Sample) -> tuple[Part, ...]:
    spent_ns = {name: ns - before.inside_ns.get(name, 0) for name, ns in after.inside_ns.items()}
    parts = [
        Part(name, ns / NS_PER_SECOND, after.closed.get(name, 0) - before.closed.get(name, 0))
        for name, ns in spent_ns.items()
        if ns > 0
    ]
    outside_ns = after.t_ns - before.t_ns - sum(ns for ns in spent_ns.values() if ns > 0)
    if outside_ns > 0:
        parts.append(Part(None, outside_ns / NS_PER_SECOND, 0))
    return tuple(sorted(parts, key=lambda part: -part.seconds))


def _without_gaps(pieces: Sequence[_Piece], seconds: float) -> Iterator[Span]:
    now = 0.0
    for piece in pieces:
        start, end = max(piece.start, now), min(piece.end, seconds)
        if end - start <= 0:
            continue
        if start > now:
            yield Span(now, start, DOWN, None, None, None, ())
        yield Span(start, end, *piece[2:])
        now = end
    if now < seconds:
        yield Span(now, seconds, DOWN, None, None, None, ())
