"""The limits of a job against what was observed under them."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import NamedTuple

from launcher.records.figures_log import LimitInForce
from launcher.reports.doubts import is_doubtful
from launcher.reports.launches import Launch
from launcher.reports.model import Limit
from launcher.reports.rank_lives import RankLife
from launcher.reports.story import Member, Story
from resilience_core.protocol.figures import SectionFigures
from resilience_core.protocol.limit_kinds import (
    CONFIGURED,
    HEARTBEAT,
    OUT_OF_SECTION,
    option_for,
    section_kind,
    section_name,
)
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["limits"]

_LONGEST_SECONDS = 1e10


class _Seen(NamedTuple):
    longest_ns: int = 0
    rank: int | None = None
    samples: int = 0
    close_calls: int = 0


def limits(story: Story) -> tuple[Limit, ...]:
    """Return each limit with what was observed, those with the least room first."""
    seen: dict[str, _Seen] = collections.defaultdict(_Seen)
    buckets: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    in_force: dict[str, dict[int, LimitInForce]] = collections.defaultdict(dict)
    told_of = set[str]()
    for _, member in story.members:
        for rank, life in member.lives.items():
            # The sections of the last full line are those whose limits that line tells.
            told_of.update(map(section_kind, life.durations))
            for kind, limit in (_configured(story.launches[member.launch], life) | dict(life.limits)).items():
                if _is_limit(limit.seconds):
                    in_force[kind][rank] = limit
            for name, section in _ended_by_themselves(member, life).items():
                kind = section_kind(name)
                seen[kind] = _with(seen[kind], rank, section.longest_ns, section.closed, section.close_calls)
                buckets[kind].update(dict(life.durations.get(name, {})))
            for kind, longest_ns in ((OUT_OF_SECTION, life.longest_gap_ns), (HEARTBEAT, life.longest_heartbeat_gap_ns)):
                if longest_ns > 0:  # of these, only the longest of each rank is written down
                    seen[kind] = _with(seen[kind], rank, longest_ns, 1, 0)
    missed = collections.Counter(miss.kind for launch in story.launches for miss in launch.spared if miss.was_late)
    kinds = {kind for kind in (*seen, *in_force) if seen[kind].samples or section_name(kind)} | set(missed)
    is_about = is_doubtful(story)
    rows = [
        _row(kind, seen[kind], in_force[kind], buckets[kind], missed[kind], is_told=kind in told_of)._replace(
            is_about=is_about
        )
        for kind in sorted(kinds)
    ]
    return tuple(sorted(rows, key=lambda row: (row.room is None, row.room if row.room is not None else 0.0)))


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


def _with(before: _Seen, rank: int, longest_ns: int, samples: int, close_calls: int) -> _Seen:
    longest, who = max((before.longest_ns, before.rank), (longest_ns, rank), key=lambda pair: pair[0])
    return _Seen(longest, who, before.samples + samples, before.close_calls + close_calls)


def _ended_by_themselves(member: Member, life: RankLife) -> Mapping[str, SectionFigures]:
    """Return the figures of sections, without closings that came of the end of a generation that has failed.

    A rank that waits for a hung one leaves its section when that is killed: as late as the verdict, and not by itself.
    Where the last line shows a time that is longer than before and than the group stood still, the line before counts.
    """
    if member.seen_ns is None or member.last_sign_ns is None or not life.is_over or not _may_be_let_go(member, life):
        return life.sections
    signs = (other.last_sign_ns(member.seen_ns) for other in member.lives.values())
    still_ns = member.seen_ns - max(member.last_sign_ns, *(sign for sign in signs if sign is not None), 0)
    return {
        name: life.sections_before[name]
        if name in life.sections_before and section.longest_ns > max(still_ns, life.sections_before[name].longest_ns)
        else section
        for name, section in life.sections.items()
    }


def _may_be_let_go(member: Member, life: RankLife) -> bool:
    """Return whether a rank may have closed a section since another one was killed."""
    own = member.own
    if own.kind == "failure" and life.rank in own.culprits:
        return False
    if (own.nodes or 1) > 1:  # who was killed may have been on another node, and no clock tells when
        return True
    return not life.signs_ns or member.seen_ns is None or life.signs_ns[-1] > member.seen_ns


def _row(
    kind: str,
    seen: _Seen,
    in_force: Mapping[int, LimitInForce],
    buckets: Mapping[int, int],
    missed: int,
    *,
    is_told: bool,
) -> Limit:
    least = min((limit.seconds for limit in in_force.values()), default=None)
    longest = seen.longest_ns / NS_PER_SECOND if seen.samples else None
    return Limit(
        kind=kind,
        seconds=least,
        seconds_most=max((limit.seconds for limit in in_force.values()), default=None),
        source=next((limit.source for limit in in_force.values() if limit.seconds == least), None),
        longest=longest,
        longest_rank=seen.rank if seen.samples else None,
        typical=_typical(buckets, longest),
        room=(least - longest) / least if least and longest is not None else None,
        close_calls=seen.close_calls,
        near_misses=missed,
        samples=seen.samples,
        option=option_for(kind),
        is_known=is_told or bool(in_force) or section_name(kind) is None,
    )


def _typical(buckets: Mapping[int, int], longest: float | None) -> float | None:
    """Return the median as far as buckets tell it, which is never above the longest."""
    median = _median(buckets)
    return median if median is None or longest is None else min(median, longest)


def _median(buckets: Mapping[int, int]) -> float | None:
    """Return the middle of the bucket that holds the median, in seconds; None without any."""
    half = sum(buckets.values()) / 2
    for bits in sorted(buckets):
        half -= buckets[bits]
        if half <= 0:
            return 0.75 * float(1 << bits) / NS_PER_SECOND  # half of 2**(bits - 1) and 2**bits
    return None
