"""The limits of a job against what was observed under them."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcher.records.figures_log import LimitInForce
from launcher.reports.doubts import is_doubtful
from launcher.reports.formats import rank_list
from launcher.reports.launches import Launch
from launcher.reports.let_go import ended_by_themselves
from launcher.reports.model import Limit
from launcher.reports.rank_lives import RankLife
from launcher.reports.spread import Spread
from launcher.reports.story import Story
from resilience_core.protocol.limit_kinds import (
    CONFIGURED,
    HEARTBEAT,
    OUT_OF_SECTION,
    option_for,
    section_kind,
    section_name,
)
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["limits", "of_unclear_waits"]

_LONGEST_SECONDS = 1e10
_LITTLE = 0.05
"""Of a limit: so much more or less of its room changes nothing; whether a duration came close is counted."""


class _Seen(NamedTuple):
    longest_ns: int = 0
    rank: int | None = None
    samples: int = 0
    close_calls: int = 0
    most_ns: int = 0
    """The longest was at most that."""


def limits(story: Story) -> tuple[Limit, ...]:
    """Return each limit with what was observed, those with the least room first."""
    seen: dict[str, _Seen] = collections.defaultdict(_Seen)
    spreads: dict[str, Spread] = collections.defaultdict(Spread)
    in_force: dict[str, dict[int, LimitInForce]] = collections.defaultdict(dict)
    told_of = set[str]()
    for _, member in story.members:
        for rank, life in member.lives.items():
            # The sections of the last full line are those whose limits that line tells.
            told_of.update(map(section_kind, life.durations))
            own = _configured(story.launches[member.launch], life) | dict(life.limits)
            own = {kind: limit for kind, limit in own.items() if _is_limit(limit.seconds)}
            for kind, limit in own.items():
                in_force[kind][rank] = limit
            limits_ns = {
                name: own[kind].seconds * NS_PER_SECOND for name in life.sections if (kind := section_kind(name)) in own
            }
            for name, (section, most_ns) in ended_by_themselves(member, life, limits_ns).items():
                kind = section_kind(name)
                seen[kind] = _with(seen[kind], rank, section.longest_ns, section.closed, section.close_calls, most_ns)
                spreads[kind].add(section)
            for kind, longest_ns in ((OUT_OF_SECTION, life.longest_gap_ns), (HEARTBEAT, life.longest_heartbeat_gap_ns)):
                if longest_ns > 0:  # of these, only the longest of each rank is written down
                    seen[kind] = _with(seen[kind], rank, longest_ns, 1, 0, longest_ns)
    missed = collections.Counter(miss.kind for launch in story.launches for miss in launch.spared if miss.was_late)
    kinds = {kind for kind in (*seen, *in_force) if seen[kind].samples or section_name(kind)} | set(missed)
    is_about = is_doubtful(story) or bool(_without_incident(story))
    rows = [
        _row(kind, seen[kind], in_force[kind], spreads[kind], missed[kind], is_told=kind in told_of)._replace(
            is_about=is_about or _may_be_longer(seen[kind], in_force[kind].values())
        )
        for kind in sorted(kinds)
    ]
    return tuple(sorted(rows, key=lambda row: (row.room is None, row.room if row.room is not None else 0.0)))


def of_unclear_waits(story: Story, rows: Sequence[Limit]) -> Iterator[str]:
    """Yield why rows are about right only where nothing is missing."""
    if is_doubtful(story):  # of which there is another note
        return
    if without := _without_incident(story):
        yield (
            f"generation(s) {rank_list(without)}: the incident, which is missing, tells which durations were waits "
            "for a rank that had failed, so what was observed under limits and the room of these are about right only"
        )
    elif unclear := [row.kind for row in rows if row.is_about]:
        yield (
            f"{', '.join(unclear)}: which of several long durations was a wait for a rank that had failed cannot be "
            "told from the figures and incidents, so a longer one than that may have ended by itself, and what was "
            "observed and the room are about right only"
        )


def _without_incident(story: Story) -> list[int]:
    return sorted({generation.number for generation, member in story.members if member.lacks_incident})


def _configured(launch: Launch, life: RankLife) -> dict[str, LimitInForce]:
    """Return the configured limits of sections that a rank has opened, and of which no full line tells yet.

    A learned limit that is longer may be in force; the next full line tells of it.
    """
    untold = life.sections.keys() - life.durations.keys()
    return {
        section_kind(name): LimitInForce(seconds, CONFIGURED)
        for name, seconds in launch.section_limits.items()
        if name in untold
    }


def _is_limit(seconds: float) -> bool:
    """Return whether that can be a limit; damage has made others of it, against which there is no room."""
    return 0 < seconds < _LONGEST_SECONDS


def _with(before: _Seen, rank: int, longest_ns: int, samples: int, close_calls: int, most_ns: int) -> _Seen:
    longest, who = max((before.longest_ns, before.rank), (longest_ns, rank), key=lambda pair: pair[0])
    most_ns = max(before.most_ns, most_ns)
    return _Seen(longest, who, before.samples + samples, before.close_calls + close_calls, most_ns)


def _may_be_longer(seen: _Seen, in_force: Iterable[LimitInForce]) -> bool:
    """Return whether the longest duration may have been longer, by more than a little of the limit."""
    least = min((limit.seconds for limit in in_force), default=0.0)
    return seen.most_ns - seen.longest_ns > _LITTLE * least * NS_PER_SECOND


def _row(
    kind: str,
    seen: _Seen,
    in_force: Mapping[int, LimitInForce],
    spread: Spread,
    missed: int,
    *,
    is_told: bool,
) -> Limit:
    least = min((limit.seconds for limit in in_force.values()), default=None)
    longest = seen.longest_ns / NS_PER_SECOND if seen.samples else None
    typical_ns = spread.typical_ns(seen.longest_ns)
    return Limit(
        kind=kind,
        seconds=least,
        seconds_most=max((limit.seconds for limit in in_force.values()), default=None),
        source=next((limit.source for limit in in_force.values() if limit.seconds == least), None),
        longest=longest,
        longest_rank=seen.rank if seen.samples else None,
        typical=typical_ns / NS_PER_SECOND if typical_ns is not None else None,
        room=(least - longest) / least if least and longest is not None else None,
        close_calls=seen.close_calls,
        near_misses=missed,
        samples=seen.samples,
        option=option_for(kind),
        is_known=is_told or bool(in_force) or section_name(kind) is None,
        is_typical_about=typical_ns is not None,
    )
