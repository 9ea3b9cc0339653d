"""Slow ranks, from the logs of the straggler detector's reports (:mod:`straggler.reporting.report_log`).

Its format is read here with the standard library alone: a report is read where numpy may not be installed.
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.reports.model import SlowRank
from launcher.reports.node_generations import seconds_or_none, text_or_none
from resilience_core.system.plain_files import only_plain
from straggler.reporting.report_records import FORMAT, VERSION, check_record

__all__ = ["find_logs", "slow_ranks"]

_OTHERS = ("events", "figures")
_SKEW_SECONDS = 1.0
"""By how much the clock of the machine that made a report may differ."""
_RANKS = 1 << 31
"""No rank has a number as high as that."""


def find_logs(folder: str) -> list[str]:
    """Return the files in a log folder that hold reports of the straggler detector."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = (os.path.join(folder, name) for name in names if name.endswith(".jsonl") and not name.startswith(_OTHERS))
    return [path for path in paths if _holds_reports(path)]


def _holds_reports(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace", opener=only_plain) as file:
            return f'"{FORMAT}"' in file.readline(1000)
    except OSError:
        return False


def slow_ranks(paths: Sequence[str], epoch: float, seconds: float, notes: list[str]) -> tuple[SlowRank, ...]:
    """Return the ranks that some reports call slow, the slowest first.

    Args:
        paths: Logs of reports; other runs may have written into them, too.
        epoch: Seconds since 1970 when the story begins.
        seconds: How long it took.
        notes: Gets what could not be read, and what is left out.
    """
    found: list[SlowRank] = []
    for path in paths:
        try:
            reports = list(_reports(path))
        except OSError as error:
            notes.append(f"{path} cannot be read, and slow ranks in it are not shown: {error.strerror}")
            continue
        if not reports:
            notes.append(f"{path} holds no report of the straggler detector of version {VERSION}")
            continue
        own = [report for report in reports if _is_between(report, epoch, epoch + seconds)]
        if left := len(reports) - len(own):
            notes.append(
                f"{path}: {left} of {len(reports)} report(s) are of another time, as of another run that has written "
                "into it, and are left out"
            )
        found += _of_log(path, own, epoch)
    return tuple(sorted(found, key=lambda rank: -rank.slowdown))


def _is_between(report: Mapping[str, Any], began: float, ended: float) -> bool:
    at = seconds_or_none(report.get("time"))
    return at is None or began - _SKEW_SECONDS <= at <= ended + _SKEW_SECONDS


def _reports(path: str) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace", opener=only_plain) as file:
        for line in file:
            try:
                yield check_record(json.loads(line))
            except (ValueError, RecursionError):  # the last line may be on its way
                continue


class _Verdict(NamedTuple):
    """What one report says of a slow rank; None for what it does not say, or what damage has made something else."""

    at: float | None
    """Seconds since 1970."""
    rank: int
    node: str | None
    slowdown: float | None
    section: str | None
    because: str | None


def _of_log(path: str, reports: Sequence[dict[str, Any]], epoch: float) -> Iterator[SlowRank]:
    slow: dict[int, list[_Verdict]] = collections.defaultdict(list)
    for report in reports:
        for verdict in _slow_in(report):
            slow[verdict.rank].append(verdict)
    for rank, verdicts in slow.items():
        worst = max(verdicts, key=lambda verdict: verdict.slowdown or 0.0)
        since = verdicts[0].at
        yield SlowRank(
            rank=rank,
            node=worst.node or "",
            slowdown=worst.slowdown or 0.0,
            section=worst.section,
            reports=len(verdicts),
            of_reports=len(reports),
            since=since - epoch if since else None,
            because=worst.because or "",
            source=path,
        )


def _slow_in(report: Mapping[str, Any]) -> Iterator[_Verdict]:
    verdicts = report.get("verdicts")
    for verdict in verdicts if isinstance(verdicts, list) else ():
        if not isinstance(verdict, dict) or verdict.get("state") != "SLOW":
            continue
        if type(rank := verdict.get("rank")) is int and 0 <= rank < _RANKS:
            yield _Verdict(
                at=seconds_or_none(report.get("time")),
                rank=rank,
                node=text_or_none(verdict.get("node")),
                slowdown=seconds_or_none(verdict.get("slowdown")),
                section=text_or_none(verdict.get("section")),
                because=text_or_none(verdict.get("because")),
            )
