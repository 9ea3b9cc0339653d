"""A report for a terminal: one screen of plain text, the same in a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from launcher.records.readable import readable
from launcher.reports.formats import (
    clock,
    count,
    duration,
    limit_of,
    rank_list,
    seconds,
    share,
    signed_share,
)
from launcher.reports.model import Incident, Ledger, Report, Suspect
from launcher.reports.phrases import (
    cost_of,
    lateness_of,
    length_of,
    length_of_run,
    observed,
    outcome,
    restarts_of,
    size_of,
)

__all__ = ["lines"]

_MOST_INCIDENTS = 5
_MOST_NOTES = 8
_MOST_ROWS = 6
_MOST_CULPRITS = 3
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def lines(report: Report, width: int = 80, *, bar: str = "#", is_styled: bool = False) -> list[str]:
    """Return the lines of a report.

    Args:
        report: Which.
        width: Columns; no line is wider.
        bar: What a bar is made of.
        is_styled: Make headings bold.
    """
    width = max(width, 40)
    text = [
        *_head(report),
        *_ledger(report, width, bar),
        *_incidents(report, width),
        *_near_misses(report),
        *_limits(report),
        *_slow_ranks(report),
        *_list("RECOMMENDED", [each.text for each in report.recommendations], width),
        *_list("NOTES", report.notes, width),
    ]
    return [_fitted(line, width, is_styled=is_styled) for line in text]


def _fitted(line: str, width: int, *, is_styled: bool) -> str:
    line = readable(line).replace("\n", " ").rstrip()
    short = line if len(line) <= width else line[: width - 3] + "..."
    is_heading = is_styled and bool(short) and not short.startswith(" ") and short.split(" ")[0].isupper()
    return f"{_BOLD}{short}{_PLAIN}" if is_heading else short


def _head(report: Report) -> Iterator[str]:
    costs = report.ledger
    steps = f"; {_steps(costs)}" if costs.entries else ""
    yield f"RUN {report.title}"
    yield f"  {size_of(report)}, {_outcome(report)}, {restarts_of(report)}"
    began = f"{'~' if report.runs[0].is_begin_about else ''}{clock(report.began_at, report.began_epoch, 0.0)}"
    yield f"  {began}, {length_of(report)}{steps}"
    if len(report.runs) > 1:
        for run in report.runs:
            told = "nothing of it can be read" if run.is_unread else length_of_run(run)
            yield f"  {run.name}: {told}, {outcome(run)}"


def _steps(costs: Ledger) -> str:
    if costs.steps is None and costs.repeated is None:
        return "steps kept and done again: not known"
    about = "~" if costs.is_count_about else ""
    if costs.steps is None:
        return f"steps kept: not known, {about}{count(costs.repeated)} done again"
    return f"{about}{count(costs.steps)} steps kept, {about}{count(costs.repeated)} done again"


def _outcome(report: Report) -> str:
    return "still running" if report.is_running and not report.runs[-1].is_running else outcome(report.runs[-1])


def _ledger(report: Report, width: int, bar: str) -> Iterator[str]:
    entries = report.ledger.entries
    if not entries:
        return
    names = max(len(entry.category.name) for entry in entries)
    figures = [seconds(entry.seconds) for entry in entries]
    total = seconds(report.ledger.wall_seconds)
    most = max(map(len, (*figures, total)))
    room = width - names - most - 17
    largest = max(entry.share for entry in entries)
    yield ""
    yield "WHERE THE TIME WENT (of each rank, on average)"
    for entry, figure in zip(entries, figures, strict=True):
        length = round(room * entry.share / largest) if room > 0 else 0
        about = "~" if entry.is_about else ""
        row = f"  {entry.category.name:<{names}}  {about:1}{figure:>{most}} {about + share(entry.share):>9}"
        yield f"{row}  {bar * max(length, 1)}"
    about = "~" if report.ledger.is_wall_about else " "
    yield f"  {'together':<{names}}  {about}{total:>{most}}  {'100.0 %':>8}"


def _incidents(report: Report, width: int) -> Iterator[str]:
    found = report.incidents
    if not found:
        return
    yield ""
    left = len(found) - _MOST_INCIDENTS
    about = "~" if report.is_end_about else ""
    yield f"INCIDENTS {about}{len(found)}" + (f", the last {_MOST_INCIDENTS} of them" if left > 0 else "")
    for incident in found[max(left, 0) :]:
        cost = f", cost {told}" if (told := cost_of(incident)) is not None else ""
        said = f"{incident.number}. {duration(incident.at)} {incident.kind}{cost}: {_who(incident)}"
        yield from _wrapped(said, width, "  ", "     ", most=3)
        yield from _wrapped(f"why: {incident.why}", width, "     ", "     ", most=2)


def _wrapped(text: str, width: int, first: str, other: str, most: int) -> list[str]:
    plain = " ".join(readable(text).split())
    return textwrap.wrap(
        plain, width, initial_indent=first, subsequent_indent=other, max_lines=most, placeholder=" ..."
    )


def _who(incident: Incident) -> str:
    if incident.nodes_to_blame:
        return f"node {', '.join(incident.nodes_to_blame)}"
    if not incident.culprits:
        return "which rank is the cause cannot be told"
    shown = [_suspect(culprit) for culprit in incident.culprits[:_MOST_CULPRITS]]
    left = len(incident.culprits) - len(shown)
    return f"{'likely ' if incident.is_likely else ''}{'; '.join(shown)}" + (f"; and {left} more" if left else "")


def _suspect(culprit: Suspect) -> str:
    who = f"rank {culprit.rank}{f' on {culprit.node}' if culprit.node else ''}"
    where = f" at {culprit.line}" if culprit.line is not None else ""
    where += f", section {culprit.section}" if culprit.section else ""
    where += f", iteration {culprit.iteration}" if culprit.iteration is not None else ""
    return f"{who}{where}{f': {culprit.message}' if culprit.message else ''}"


def _near_misses(report: Report) -> Iterator[str]:
    missed, close = report.near_misses, [limit for limit in report.limits if limit.close_calls]
    if not missed and not close:
        return
    yield ""
    calls = (
        f"{'~' if any(limit.is_about for limit in report.limits) else ''}{sum(limit.close_calls for limit in close)}"
    )
    shown = f", the last {_MOST_ROWS} of them" if len(missed) > _MOST_ROWS else ""
    about = "~" if report.is_end_about else ""
    yield f"CLOSE {about}{len(missed)} verdict(s) taken back{shown}, {calls} at 80 % of a limit"
    for miss in missed[-_MOST_ROWS:]:
        late = f", {lateness_of(miss)} late" if miss.late_seconds is not None else ""
        who = f"rank {miss.rank} on {miss.node}"
        yield f"  {duration(miss.at)} {who}: {miss.kind}, limit {limit_of(miss.limit_seconds)}{late}"


def _limits(report: Report) -> Iterator[str]:
    known = [limit for limit in report.limits if limit.room is not None]
    if not known:
        return
    rows = known[:_MOST_ROWS]
    names = max(len("LIMITS"), *(len(limit.kind) for limit in rows))
    yield ""
    yield f"{'LIMITS':<{names + 2}}  {'limit':>8}  {'longest':>8}  {'observed':>9}  {'room':>6}"
    for limit in rows:
        about = "~" if limit.is_about else ""
        row = f"  {limit.kind:<{names}}  {limit_of(limit.seconds):>8}  {about + duration(limit.longest):>8}"
        short = "  short" if limit.is_close else ""
        yield f"{row}  {observed(limit):>9}  {about + signed_share(limit.room):>6}{short}"


def _slow_ranks(report: Report) -> Iterator[str]:
    if not report.slow_ranks:
        return
    yield ""
    yield f"SLOW {len(report.slow_ranks)} rank(s): {rank_list(rank.rank for rank in report.slow_ranks)}"
    for rank in report.slow_ranks[:_MOST_ROWS]:
        because = f"; {rank.because}" if rank.because else ""
        where = f" in {rank.section}" if rank.section else ""
        yield (
            f"  rank {rank.rank}{f' on {rank.node}' if rank.node else ''}: {share(rank.slowdown)} slower{where}, "
            f"{rank.reports} of {rank.of_reports} reports{because}"
        )


def _list(title: str, texts: Sequence[str], width: int) -> Iterator[str]:
    if not texts:
        return
    yield ""
    yield title
    for text in texts[:_MOST_NOTES]:
        yield from _wrapped(text, width, "  ", "    ", most=8)
    if (left := len(texts) - _MOST_NOTES) > 0:
        yield f"  and {left} more (--json FILE has all)"
