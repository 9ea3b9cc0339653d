"""Which durations of sections ended by themselves, in a generation that has failed.

A rank that waits for a failed one leaves its section because of that: by an exception when the other's process ends, or
when it is killed. So long a duration says nothing of a limit. Everything that it closed before the failure does, also
since the line of figures before the last one.

Where the client knows of the exception, it does not count that closing (``left``), and nothing is to be taken off: what
the rank opens and closes afterwards, as a save while it handles the exception, ends by itself. What follows is for code
that closes its sections itself on the way out, and for lines of earlier releases.

Which closing that was is told by when its section was opened, as the incident or a line of figures shows it, and by
when the rank gave its last sign. What its longest duration was without that lies between the line before and what the
powers of two of all durations leave open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.reports.members import Member
from launcher.reports.rank_lives import RankLife
from resilience_core.protocol.figures import CLOSE_CALL
from resilience_core.protocol.figures_read import SectionFigures

__all__ = ["Ended", "ended_by_themselves"]

_APART_NS = 1_000_000
"""Stamps of one moment may differ by that much."""


class Ended(NamedTuple):
    """The closings of one section, by one rank, that ended by themselves."""

    figures: SectionFigures
    most_ns: int
    """The longest of them was at most that."""


class _Wait(NamedTuple):
    """What is known of the closing of a section that came of a failure."""

    opened_ns: int | None
    """When it was opened; None where nothing shows it."""
    least_ns: int
    """It was closed no sooner than then."""


def ended_by_themselves(member: Member, life: RankLife, limits_ns: Mapping[str, float]) -> dict[str, Ended]:
    """Return the sections of a rank, without closings that came of the end of a generation that has failed.

    Args:
        member: Its node's part in the generation.
        life: The rank.
        limits_ns: The limits of sections, by their names.
    """
    sections = {
        name: section._replace(durations=dict(life.durations.get(name, {}))) for name, section in life.sections.items()
    }
    whole = {name: Ended(section, section.longest_ns) for name, section in sections.items()}
    own, sign_ns = member.own, life.signs_ns[-1] if life.signs_ns else life.last_ns
    if member.seen_ns is None or not life.is_over or (own.kind == "failure" and life.rank in own.culprits):
        return whole
    failed_ns = _failed_ns(member)
    if (failed_ns is not None and sign_ns <= failed_ns) or _was_left_uncounted(member, life):
        return whole
    waits = _waits(member, life, failed_ns)
    since_ns = _may_have_opened_ns(member, life, waits, failed_ns, sign_ns)
    for name, section in sections.items():
        before = life.sections_before.get(name, SectionFigures(0, 0, 0, 0, {}))
        if section.closed == before.closed or life.times_left(name):
            continue
        wait = waits.get(name)
        is_let_go = _is_longest_let_go(life, name, section, wait, failed_ns, since_ns, sign_ns)
        if is_let_go is not False:
            ended = _without_the_longest(section, before, limits_ns.get(name))
            whole[name] = ended if is_let_go else ended._replace(most_ns=section.longest_ns)
        elif wait is not None:
            took_ns = sign_ns - wait.opened_ns if wait.opened_ns is not None else None
            whole[name] = Ended(_less_one(section, took_ns, limits_ns.get(name)), section.longest_ns)
    return {name: ended for name, ended in whole.items() if ended.figures.closed or not sections[name].closed}


def _was_left_uncounted(member: Member, life: RankLife) -> bool:
    """Return whether the closing that came of the failure is none of those that the client has counted."""
    report = member.reports.get(life.rank)
    error = report.error if report is not None else None
    return error is not None and error.is_consequence and life.left_opened_ns(error.section, error.at_ns) is not None


def _failed_ns(member: Member) -> int | None:
    """Return when the failure began that others were let go by; None where nothing on this node's clock tells."""
    if member.own.kind == "hang":
        return member.seen_ns  # whoever waits for a rank that hangs does so until that is killed
    failed = [rank for rank in member.reports.values() if rank.is_culprit or rank.exit_code not in (None, 0)]
    known = [rank.error.at_ns for rank in failed if rank.error is not None and not rank.error.is_consequence]
    known += [rank.evidence.ended_ns for rank in failed if rank.evidence is not None]
    # Its connections close before its process is seen to have ended: by the time of such an exception it had failed.
    errors = [rank.error for rank in member.reports.values() if rank.error is not None]
    known += [error.at_ns for error in errors if error.is_consequence]
    if member.own.kind != "failure" or not any(rank.is_culprit for rank in failed) or member.seen_ns is None:
        return None
    return min([member.seen_ns, *(at_ns for at_ns in known if at_ns >= member.own.started_ns)])


def _waits(member: Member, life: RankLife, failed_ns: int | None) -> dict[str, _Wait]:
    """Return the sections that a rank has left because of a failure, as the incident tells."""
    report, looked_ns = member.reports.get(life.rank), member.looked_ns
    if report is None or looked_ns is None:
        return {}
    error, found = report.error, dict[str, _Wait]()
    if error is not None and (error.is_consequence or (failed_ns is not None and error.at_ns >= failed_ns)):
        # One that is open in the last line was never closed: the rank was killed before that.
        if error.section in life.sections and life.open.get(error.section, error.at_ns + 1) > error.at_ns:
            found[error.section] = _Wait(life.shown_open_ns(error.section), error.at_ns)
        return found
    for name in report.evidence.open_sections if report.evidence is not None else ():
        found[name] = _Wait(life.shown_open_ns(name), looked_ns)
    if report.section is not None and report.open_seconds is not None:
        found[report.section] = _Wait(looked_ns - round(report.open_seconds * 1e9), looked_ns)
    return {
        name: wait
        for name, wait in found.items()
        if name in life.sections
        and (name not in life.open or (wait.opened_ns is not None and life.open[name] > wait.opened_ns + _APART_NS))
    }


def _may_have_opened_ns(
    member: Member, life: RankLife, waits: Mapping[str, _Wait], failed_ns: int | None, sign_ns: int
) -> int | None:
    """Return since when a rank may have opened sections that waited for who was gone by then; None for at no time."""
    report, looked_ns = member.reports.get(life.rank), member.looked_ns
    if report is None or looked_ns is None:
        return member.own.started_ns
    for name, wait in waits.items():
        if wait.opened_ns is not None and wait.opened_ns + life.sections[name].longest_ns >= sign_ns - _APART_NS:
            return None  # it was in that section to the end
    if failed_ns is None:
        return None
    known = report.evidence.last_sign_ns if report.evidence is not None else 0
    return looked_ns if 0 < known <= failed_ns else failed_ns


def _is_longest_let_go(
    life: RankLife,
    name: str,
    section: SectionFigures,
    wait: _Wait | None,
    failed_ns: int | None,
    since_ns: int | None,
    sign_ns: int,
) -> bool | None:
    """Return whether the longest duration of a section is that of a closing which came of a failure; None for maybe."""
    if name in life.sections_before and section.longest_ns <= life.sections_before[name].longest_ns:
        return False
    shown_ns = wait.opened_ns if wait is not None else life.shown_open_ns(name)
    least_ns = wait.least_ns if wait is not None else failed_ns
    if shown_ns is not None and least_ns is not None:
        return least_ns - _APART_NS <= shown_ns + section.longest_ns <= sign_ns + _APART_NS
    if wait is not None:
        return True if _is_one_alone(section, wait, failed_ns) else None
    return None if since_ns is not None and section.longest_ns <= sign_ns - since_ns else False


def _is_one_alone(section: SectionFigures, wait: _Wait, failed_ns: int | None) -> bool:
    """Return whether a single closing took so long as one at least that was let go by a failure."""
    least_ns = wait.least_ns - failed_ns if failed_ns is not None else 0
    return sum(count for bits, count in section.durations.items() if (1 << bits) > least_ns) == 1


def _without_the_longest(section: SectionFigures, before: SectionFigures, limit_ns: float | None) -> Ended:
    """Return the figures of a section without its longest duration, which was none of those of the line before."""
    rest = _less_one(section, section.longest_ns, limit_ns)
    since, took_ns = rest.closed - before.closed, rest.took_ns - before.took_ns
    if since <= 1:
        longest_ns = max(before.longest_ns, took_ns if since else 0)
        return Ended(rest._replace(longest_ns=longest_ns), longest_ns)
    bits = max(rest.durations, default=0)
    least_ns = max(before.longest_ns, took_ns // since, 1 << (bits - 1) if bits else 0)
    most_ns = min((1 << bits) - 1 if bits else section.longest_ns, section.longest_ns, max(before.longest_ns, took_ns))
    if limit_ns is not None and rest.close_calls == before.close_calls:
        most_ns = min(most_ns, max(before.longest_ns, int(CLOSE_CALL * limit_ns)))
    return Ended(rest._replace(longest_ns=least_ns), max(least_ns, most_ns))


def _less_one(section: SectionFigures, took_ns: int | None, limit_ns: float | None) -> SectionFigures:
    """Return the figures of a section without one of its durations; None for one that is not known."""
    if took_ns is None:
        return section._replace(closed=section.closed - 1)
    durations, bits = dict(section.durations), took_ns.bit_length()
    if bits in durations:
        durations[bits] -= 1
    was_close = limit_ns is not None and took_ns >= CLOSE_CALL * limit_ns
    return SectionFigures(
        section.closed - 1,
        section.took_ns - took_ns,
        section.longest_ns,
        max(0, section.close_calls - was_close),
        {each: count for each, count in durations.items() if count},
    )
