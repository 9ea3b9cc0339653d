"""Slow ranks, from the logs of the straggler detector's reports (:mod:`straggler.reporting.report_log`).

Its format is read here with the standard library alone: a report is read where numpy may not be installed.
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from launcher.reports.model import SlowRank
from resilience_core.system.plain_files import only_plain

__all__ = ["find_logs", "slow_ranks"]

_FORMAT = "straggler-report"
_VERSION = 1
_OTHERS = ("events", "figures")


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
            return f'"{_FORMAT}"' in file.readline(1000)
    except OSError:
        return False


def slow_ranks(paths: Sequence[str], epoch: float, notes: list[str]) -> tuple[SlowRank, ...]:
    """Return the ranks that some reports call slow, the slowest first.

    Args:
        paths: Logs of reports.
        epoch: Seconds since 1970 when the story begins.
        notes: Gets what could not be read.
    """
    found: list[SlowRank] = []
    for path in paths:
        try:
            reports = list(_reports(path))
        except OSError as error:
            notes.append(f"{path} cannot be read, and slow ranks in it are not shown: {error.strerror}")
            continue
        if not reports:
            notes.append(f"{path} holds no report of the straggler detector of version {_VERSION}")
            continue
        found += _of_log(path, reports, epoch)
    return tuple(sorted(found, key=lambda rank: -rank.slowdown))


def _reports(path: str) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace", opener=only_plain) as file:
        for line in file:
            try:
                report = json.loads(line)
            except ValueError:  # the last line may be on its way
                continue
            if isinstance(report, dict) and report.get("format") == _FORMAT and report.get("version") == _VERSION:
                yield report


def _of_log(path: str, reports: Sequence[dict[str, Any]], epoch: float) -> Iterator[SlowRank]:
    slow: dict[int, list[tuple[float, dict[str, Any]]]] = collections.defaultdict(list)
    for report in reports:
        at = report.get("time")
        for verdict in report.get("verdicts", []):
            if verdict.get("state") == "SLOW" and type(verdict.get("rank")) is int:
                slow[verdict["rank"]].append((float(at) if isinstance(at, (int, float)) else 0.0, verdict))
    for rank, verdicts in slow.items():
        _, worst = max(verdicts, key=lambda pair: pair[1].get("slowdown") or 0.0)
        yield SlowRank(
            rank=rank,
            node=str(worst.get("node") or ""),
            slowdown=float(worst.get("slowdown") or 0.0),
            section=worst.get("section") or None,
            reports=len(verdicts),
            of_reports=len(reports),
            since=verdicts[0][0] - epoch if verdicts[0][0] else None,
            because=str(worst.get("because") or ""),
            source=path,
        )
