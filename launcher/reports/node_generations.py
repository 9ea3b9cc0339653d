"""What one launcher has written of each generation of its ranks, as typed values.

Times are ``CLOCK_MONOTONIC`` nanoseconds of its machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.records.verdicts import SPARED, listed, seen_at_ns, was_taken_back
from launcher.reports.verdicts_of_jobs import JobVerdict, verdict_in
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["NodeGeneration", "generations_of", "generations_unstarted", "seconds_or_none", "text_or_none", "unstarted"]

_LONGEST_SECONDS = 1e10
_OF_GENERATIONS = (
    *("phases", "hang", "failure", "seen", "fenced", "request", "finished", "stopped"),
    *("backing_off", "job_incident", "rendezvous", "stopped_on_purpose"),
    *SPARED,
)
"""Events that have the number of a generation."""
_OF_STARTED = ("phases", "hang", "failure", "seen", "asked", "fenced", "finished", "stopped", "restarted", *SPARED)
"""Events of a generation whose ranks were started."""


class NodeGeneration(NamedTuple):
    """A generation as one launcher has seen it; None for what it has not written."""

    number: int
    started_ns: int
    is_start_known: bool
    """Otherwise it begins with the first line that is left of it."""
    local_ranks: tuple[int, ...]
    pids: Mapping[int, int]
    """By local rank; empty where no event is left of its start."""
    first_sign_ns: Mapping[int, int]
    """By local rank."""
    seen_ns: int | None
    """When a failure was seen here."""
    kind: str | None
    """``hang``, ``failure`` or ``request``, where it was seen here."""
    culprits: tuple[int, ...]
    """The ranks that were named when it was seen here."""
    incident_folder: str | None
    finished_ns: int | None
    stopped_ns: int | None
    backed_off_ns: tuple[int, int] | None
    """From when until when the restart was put off."""
    verdict: JobVerdict | None
    """What the nodes have found together, as it was told here."""
    nodes: int | None
    """How many have met for it."""
    is_stopped_on_purpose: bool
    """The training has stopped itself."""

    @property
    def failed_elsewhere(self) -> bool:
        """Whether the nodes have found a failure, wherever."""
        return self.verdict is not None


def generations_of(named: Mapping[str, list[dict[str, Any]]]) -> Iterator[NodeGeneration]:
    """Yield the generations that a launcher has started, from its events by their names."""
    for started in named["started"]:
        if type(number := started.get("generation")) is int:
            told = started.get("pids")
            local_ranks = {int(rank) for rank in listed(told) if str(rank).isdigit()}
            pids = {
                rank: pid for rank in local_ranks if isinstance(told, dict) and type(pid := told.get(str(rank))) is int
            }
            yield _generation(named, number, started["t_ns"], local_ranks, pids, is_start_known=True)


def generations_unstarted(
    named: Mapping[str, list[dict[str, Any]]], lines: Sequence[Mapping[str, Any]]
) -> Iterator[NodeGeneration]:
    """Yield the generations of whose start no event is left; each begins with its first line.

    Args:
        named: The events that are left, by their names.
        lines: The lines of figures that are left.
    """
    started = [event.get("generation") for event in named["started"]]
    names = _OF_STARTED if named["began"] else (*_OF_GENERATIONS, "asked", "restarted")
    first_ns: dict[int, int] = {}
    for event in (*(event for name in names for event in named.get(name, ())), *lines):
        if type(number := event.get("generation")) is int and number >= 0 and number not in started:
            first_ns[number] = min(first_ns.get(number, event["t_ns"]), event["t_ns"])
    for number in sorted(first_ns):
        ranks = _local_ranks(line for line in lines if line.get("generation") == number)
        known = ranks or _of_phases(named["phases"], number) or _local_ranks(lines)
        yield _generation(named, number, first_ns[number], known, is_start_known=False)


def _of_phases(phases: Iterable[Mapping[str, Any]], number: int) -> set[int]:
    ranks = (listed(event.get("ranks")) for event in phases if event.get("generation") == number)
    return {int(rank) for each in ranks for rank in each if str(rank).isdigit()}


def unstarted(number: int, at_ns: int, local_ranks: Iterable[int]) -> NodeGeneration:
    """Return a generation of which no event is left.

    Args:
        number: Of it.
        at_ns: When it is first known to have run.
        local_ranks: Those that are known.
    """
    return _generation({}, number, at_ns, local_ranks, is_start_known=False)


def _local_ranks(lines: Iterable[Mapping[str, Any]]) -> set[int]:
    ranks = [line["ranks"].values() for line in lines if isinstance(line.get("ranks"), dict)]
    known = (facts.get("local_rank") for each in ranks for facts in each if isinstance(facts, dict))
    return {local_rank for local_rank in known if type(local_rank) is int}


def _generation(
    named: Mapping[str, list[dict[str, Any]]],
    number: int,
    started_ns: int,
    local_ranks: Iterable[int],
    pids: Mapping[int, int] | None = None,
    *,
    is_start_known: bool,
) -> NodeGeneration:
    of = {name: [e for e in named.get(name, ()) if e.get("generation") == number] for name in _OF_GENERATIONS}
    seen_ns, kind, first = _end(of)
    backed_off = of["backing_off"][-1] if of["backing_off"] else None
    return NodeGeneration(
        number=number,
        started_ns=started_ns,
        is_start_known=is_start_known,
        local_ranks=tuple(sorted(local_ranks)),
        pids=pids or {},
        first_sign_ns=_first_signs(of["phases"]),
        seen_ns=seen_ns,
        kind=kind,
        culprits=tuple(sorted({rank for rank in listed(first.get("culprits")) if type(rank) is int})),
        incident_folder=text_or_none(first.get("folder")),
        finished_ns=of["finished"][0]["t_ns"] if of["finished"] else None,
        stopped_ns=of["stopped"][-1]["t_ns"] if of["stopped"] else None,
        backed_off_ns=None if backed_off is None else _back_off(backed_off),
        verdict=verdict_in(of["job_incident"][0]) if of["job_incident"] else None,
        nodes=_count(of["rendezvous"][-1].get("nodes")) if of["rendezvous"] else None,
        is_stopped_on_purpose=bool(of["stopped_on_purpose"]),
    )


def _end(of: Mapping[str, list[dict[str, Any]]]) -> tuple[int | None, str | None, Mapping[str, Any]]:
    """Return when a failure was seen here that has ended the generation, its kind, and what was written of it."""
    spared = [event for name in SPARED for event in of[name]]
    found = (event for event in (*of["hang"], *of["failure"]) if not was_taken_back(event, spared))
    incidents = sorted(found, key=seen_at_ns)
    seen = [event["t_ns"] for event in (*of["seen"], *of["fenced"])]
    if incidents:
        first = incidents[0]
        return min([seen_at_ns(first), *seen]), first["event"], first
    if seen:
        return min(seen), "failure", {}
    if of["request"] and not of["finished"]:
        return of["request"][-1]["t_ns"], "request", {}
    return None, None, {}


def _first_signs(phases: list[dict[str, Any]]) -> dict[int, int]:
    ranks = phases[-1].get("ranks", {}) if phases else {}
    signs = {
        int(rank): stamps.get("first_sign_ns")
        for rank, stamps in (ranks.items() if isinstance(ranks, dict) else ())
        if str(rank).isdigit() and isinstance(stamps, dict)
    }
    return {rank: sign for rank, sign in signs.items() if type(sign) is int and sign > 0}


def _back_off(event: Mapping[str, Any]) -> tuple[int, int]:
    seconds = seconds_or_none(event.get("seconds")) or 0.0
    return event["t_ns"], event["t_ns"] + int(seconds * NS_PER_SECOND)


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def text_or_none(value: object) -> str | None:
    """Return a text that says something; None for anything else."""
    return value if isinstance(value, str) and value else None


def seconds_or_none(value: object) -> float | None:
    """Return a duration; None for what is none, as a number that is longer than any clock has run."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _LONGEST_SECONDS else None  # type: ignore[arg-type]
