"""How long each part of each restart of a run took, from its events. Pure.

A folder may hold several runs of one name, one after the other, and each of several nodes: files whose times overlap
belong to one run. The clocks of machines may differ; a part that would end before it began is taken for empty.

The parts of a restart follow one another without a gap:

* *detection*: from the deadline that a hung rank has missed, or from when the end of a rank was seen, until its peers
  are asked to end; where no rank of the folder's nodes has failed, from when these nodes have learned of it;
* *stop*: until the last process of the generation is gone;
* *rendezvous*: until the nodes have met again;
* *start*: until every rank of the next generation has shown its first sign of life; where one never does (it has no
  monitoring), until its processes are started.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeGuard

from launcher.records.event_files import DatedEvent
from launcher.records.verdicts import SPARED, was_taken_back
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["PARTS", "Restart", "Run", "runs_of"]

PARTS = ("detection", "stop", "rendezvous", "start")


class Restart(NamedTuple):
    """One generation replaced by the next. Times are nanoseconds since 1970."""

    generation: int
    """The new one."""
    kind: str
    """``hang``, ``failure``, ``lost`` or ``request``; ``membership`` where nodes have come or gone."""
    cause: str
    """In words."""
    culprits: tuple[int, ...]
    """Ranks; empty where nobody is named."""
    times_ns: tuple[int, int, int, int, int]
    """When each of :data:`PARTS` began, and when the last one ended."""
    is_complete: bool
    """Every rank of the new generation has shown a sign of life, or will show none any more."""


class Run(NamedTuple):
    """One start of the job, on all nodes that wrote into the folder."""

    began_ns: int
    ended_ns: int | None
    """None while a launcher of it has not ended."""
    last_ns: int
    """Of the newest event."""
    outcome: str
    """Of the launcher that has ended last; empty for none."""
    exit_code: int | None
    why: str
    nodes: int
    restarts: tuple[Restart, ...]


def runs_of(events: Sequence[DatedEvent]) -> list[Run]:
    """Return the runs of a folder, oldest first.

    Args:
        events: As :func:`launcher.records.event_files.dated_events` returns them.
    """
    files: dict[str, list[DatedEvent]] = {}
    for event in events:
        files.setdefault(event.path, []).append(event)
    groups: list[list[list[DatedEvent]]] = []
    until_ns = 0
    for file in sorted(files.values(), key=lambda file: file[0].at_ns):
        if not groups or file[0].at_ns > until_ns:
            groups.append([])
        groups[-1].append(file)
        until_ns = max(until_ns, file[-1].at_ns)
    return [_run(group) for group in groups]


def _run(files: Sequence[Sequence[DatedEvent]]) -> Run:
    events = sorted((event for file in files for event in file), key=lambda event: event.at_ns)
    ended = [event for event in events if event.facts["event"] == "ended"]
    has_ended = len(ended) == len(files)
    last = ended[-1].facts if ended else {}
    return Run(
        began_ns=events[0].at_ns,
        ended_ns=ended[-1].at_ns if has_ended else None,
        last_ns=events[-1].at_ns,
        outcome=str(last.get("outcome") or ""),
        exit_code=_whole(last.get("exit_code")),
        why=str(last.get("why") or ""),
        nodes=max((_whole(event.facts.get("nodes")) or 1 for event in _named(events, "rendezvous")), default=1),
        restarts=tuple(_restarts(events, has_ended=has_ended)),
    )


def _restarts(events: Sequence[DatedEvent], *, has_ended: bool) -> Iterable[Restart]:
    generations: dict[int, list[DatedEvent]] = {}
    for event in events:
        if (number := _whole(event.facts.get("generation"))) is not None:
            generations.setdefault(number, []).append(event)
    for number in sorted(generations):
        after = generations[number]
        before = generations.get(number - 1, [])
        if number == 0 or not _named(after, "started") or not before:
            continue
        yield _restart(number, before, after, is_last=has_ended or number + 1 in generations)


def _restart(number: int, before: Sequence[DatedEvent], after: Sequence[DatedEvent], *, is_last: bool) -> Restart:
    stories, incidents = _named(before, "job_incident"), _incidents(before)
    told = next(iter(stories or incidents), None)
    caused = [str(event.facts["cause"]) for event in _named(after, "restarted") if event.facts.get("cause")]
    # The failure itself, where a node has seen it: its peers know of it a moment later.
    cause = next((each for each in caused if each == "the failure"), caused[0] if caused else "")
    kind = "membership"
    culprits: tuple[int, ...] = ()
    if told is not None:
        kind = str(told.facts.get("kind") or told.facts["event"])
        culprits = tuple(rank for rank in told.facts.get("culprits") or () if type(rank) is int)
    started, met = _named(after, "started"), _named(after, "rendezvous") or _named(after, "started")
    stopped = _named(before, "stopped") or met
    known_ns = _learned_ns(after)
    seen_ns = [event.at_ns for event in _named(before, "seen")] or known_ns
    asked = _named(before, "asked") or _named(before, "failure")
    asked_ns = next(iter([event.at_ns for event in asked] or seen_ns), stopped[0].at_ns)
    deadlines = [_moved(event, event.facts["deadline_ns"]) for event in incidents if event.facts.get("deadline_ns")]
    phases = _named(after, "phases")
    signs = [_moved(event, at_ns) for event in phases for at_ns in _signs(event)]
    times = [
        min([*seen_ns, asked_ns, *deadlines]),
        asked_ns,
        stopped[-1].at_ns,
        met[-1].at_ns,
        max([started[-1].at_ns, *signs]),
    ]
    for index in range(1, len(times)):
        times[index] = max(times[index], times[index - 1])
    nodes = {event.path for event in started}
    is_complete = is_last or {event.path for event in phases} >= nodes
    return Restart(number, kind, cause, culprits, (times[0], times[1], times[2], times[3], times[4]), is_complete)


def _incidents(events: Sequence[DatedEvent]) -> list[DatedEvent]:
    """Return those of one generation that stand: a verdict that was taken back has ended nothing."""
    spared: dict[str, list[dict[str, Any]]] = {}
    for event in _named(events, *SPARED):
        spared.setdefault(event.path, []).append(event.facts)
    return [
        event
        for event in _named(events, "hang", "failure")
        if not was_taken_back(event.facts, spared.get(event.path, ()))
    ]


def _learned_ns(after: Iterable[DatedEvent]) -> list[int]:
    """Return when nodes have learned that the generation before was over, the earliest first."""
    restarted = [(event.at_ns, event.facts.get("seconds")) for event in _named(after, "restarted")]
    return sorted(at_ns - round(each * NS_PER_SECOND) for at_ns, each in restarted if _is_duration(each))


def _is_duration(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and 0 <= value < math.inf


def _signs(phases: DatedEvent) -> list[int]:
    ranks = phases.facts.get("ranks")
    stamps = ranks.values() if isinstance(ranks, dict) else ()
    found = (_whole(stamp.get("first_sign_ns")) for stamp in stamps if isinstance(stamp, dict))
    return [at_ns for at_ns in found if at_ns]


def _moved(event: DatedEvent, at_ns: Any) -> int:
    """Return when, on the wall clock, a monotonic time of the same machine was."""
    known = _whole(at_ns)
    return event.at_ns if known is None else event.at_ns - int(event.facts["t_ns"]) + known


def _named(events: Iterable[DatedEvent], *names: str) -> list[DatedEvent]:
    return [event for event in events if event.facts["event"] in names]


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
