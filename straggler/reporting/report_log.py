"""Log of reports: JSON lines, one per report, versioned, appended by rank 0.

Scores are written as slowdown in per mille (1000 is as fast as the peers, null unknown), which keeps 10,000 ranks
in 50 kB a report and is finer than any timing. Version 1::

    {"format": "straggler-report", "version": 1, "sequence": 3, "time": 1700000000.0, "elapsed": 60.0,
     "world_size": 4, "ranks": [1001, 998, null, 1210], "nodes": [["node-a", 4]],
     "sections": {"forward": {"median": 1000, "p90": 1010, "worst": 1210, "worst_rank": 3, "slow": 1}},
     "verdicts": [{"rank": 3, "node": "node-a", "state": "SLOW", "slowdown": 0.21, ...}],
     "waited": {"median": 0.17, "most": 0.18}}

``ranks`` holds each rank's slowdown in the row where it loses most time, ``waited`` the shares of their time that the
ranks wait that are not slow (null unknown; missing in logs of older releases). A reader leaves out what it cannot read
(lines that were cut off, zero bytes, versions that it does not know) and says how many lines that are; a file in which
it can read nothing is refused.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from straggler.errors import ReportLogError
from straggler.pacing import pace
from straggler.reporting.background_lines import BackgroundLines
from straggler.reporting.own_files import begins_as
from straggler.reporting.report_records import FORMAT, VERSION, check_fields
from straggler.reporting.verdict import MATERIAL_SHARE, State
from straggler.reporting.waiting import waiting
from straggler.scoring.robust_scores import SLOW, RobustScores
from straggler.scoring.scorer import GPU_ROW

if TYPE_CHECKING:
    from straggler.reporting.report import Report

__all__ = ["FORMAT", "VERSION", "ReportLog", "as_record", "read", "records"]

logger = logging.getLogger(__name__)

_CLOCK_SECONDS = 2.0
"""So far a clock may be set back."""

_MOST_WAITING = 64


class ReportLog:
    """Appends reports to a file; a file system that fails or hangs never stops training.

    Args:
        path: The file; it and its folder are made with the first report. One that holds something else stays as it
            is, and no report is written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lines = BackgroundLines(self.path, "reports", _MOST_WAITING, lambda head: begins_as(head, FORMAT))

    def append(self, report: Report) -> None:
        """Hand over a report; a thread writes its line."""
        record = as_record(report)
        pace()
        self._lines.append(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")

    @property
    def lost_because(self) -> str:
        """Why a report was not written, the first one; ``""`` where all were."""
        return self._lines.lost_because

    def flush(self, limit_seconds: float) -> bool:
        """Wait until every report is written, at most for so many seconds; return whether that is so."""
        return self._lines.flush(limit_seconds)

    def close(self) -> None:
        """Write what waits, within 2 seconds, and end the thread."""
        self._lines.close()


def as_record(report: Report) -> dict[str, Any]:
    """Return one report as JSON values."""
    nodes = [[node, len(list(run))] for node, run in groupby(report.gathered.nodes)]
    pace()
    verdicts = report.verdicts()
    slow = [v.rank for v in verdicts if v.state is State.SLOW]
    pace()
    lost = waiting(report.scores, report.gathered, slow)
    pace()
    ranks = _per_mille(rank_slowdowns(report))
    pace()
    return {
        "format": FORMAT,
        "version": VERSION,
        "sequence": report.sequence,
        "time": report.wall_time,
        "elapsed": report.generate_report_elapsed_time,
        "world_size": report.world_size,
        "coverage": report.coverage,
        "ranks": ranks,
        "nodes": nodes,
        "sections": _sections(report),
        "verdicts": [
            {
                "rank": v.rank,
                "node": v.node,
                "state": v.state.value,
                "slowdown": v.slowdown if np.isfinite(v.slowdown) else None,
                "section": v.section,
                "since_report": v.since_report,
                "confidence": v.confidence,
                "because": v.because,
                "beside": v.beside,
            }
            for v in verdicts[:1000]
        ],
        "waited": None if lost is None else {"median": round(lost.median, 3), "most": round(lost.most, 3)},
        "notes": list(report.notes),
    }


def rank_slowdowns(report: Report) -> npt.NDArray[np.float64]:
    """Return each rank's excess in the row where it loses most time; NaN unknown. Shape ``(ranks,)``."""
    scores = report.scores
    if scores.against_peers is None:
        if scores.relative is None or not len(scores.names):
            return np.full(report.world_size, np.nan)
        return np.asarray(1.0 / np.fmin.reduce(scores.relative, axis=0) - 1.0)
    excess = _latest(scores.against_peers).astype(np.float64)
    if not excess.shape[0]:
        return np.full(report.world_size, np.nan)
    known = ~np.isnan(excess)
    # What takes microseconds may take five times as long on a healthy rank.
    counts = known & (scores.seconds >= MATERIAL_SHARE * scores.measured)
    counts |= known & (scores.against_peers.names == np.uint64(GPU_ROW))[:, None]
    lost = np.where(np.where(counts.any(axis=0), counts, known), excess * scores.seconds, -np.inf)
    row = np.argmax(lost, axis=0)
    ranks = np.arange(excess.shape[1])
    return np.where(known.any(axis=0), excess[row, ranks], np.nan)


def _latest(window: RobustScores) -> npt.NDArray[np.float32]:
    """Return the excess in this window alone, not the average of the last: a picture has an axis of time."""
    return window.recent[-1]


def _per_mille(excess: npt.NDArray[np.float64]) -> list[int | None]:
    known = ~np.isnan(excess)
    found: list[int | None] = np.where(known, np.minimum(np.rint(1e3 * (1.0 + excess)), 1e6), 0.0).astype(int).tolist()
    for rank in np.flatnonzero(~known).tolist():
        found[rank] = None
    return found


def _sections(report: Report) -> dict[str, dict[str, Any]]:
    window = report.scores.against_peers
    if window is None:
        return {}
    found: dict[str, dict[str, Any]] = {}
    latest = _latest(window)
    for row, number in enumerate(window.names.tolist()):
        pace()
        excess = latest[row]
        known = excess[~np.isnan(excess)]
        if not known.size:
            continue
        worst = int(np.nanargmax(excess))
        middle, high = np.quantile(known, [0.5, 0.9])
        found[report.row_name(number)] = {
            "median": round(1000.0 * (1.0 + float(middle))),
            "p90": round(1000.0 * (1.0 + float(high))),
            "worst": min(round(1000.0 * (1.0 + float(excess[worst]))), 10**6),
            "worst_rank": worst,
            "slow": int((window.state[row] == SLOW).sum()),
        }
    return found


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read all reports of a file, in order. Those of a day of a large job take much memory, see :func:`records`.

    Raises:
        ReportLogError: The file is missing or empty, or no line of it is a report of a known version.
    """
    return list(records(path))


def records(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Read the reports of a file one after the other, in order; log, after the last, what was left out.

    Raises:
        ReportLogError: The file is missing or empty, or no line of it is a report of a known version.
    """
    count = left_out = older = first_older = 0
    first, last = "", (-1, 0.0)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    record = _record(line)
                    if (now := (record["sequence"], record["time"])) == last:
                        raise ValueError("is that of the line before once more")
                except ValueError as error:
                    left_out += 1
                    first = first or f"line {number} {error}"
                    continue
                if count and now[1] < last[1] - _CLOCK_SECONDS:
                    older, first_older = older + 1, first_older or number
                count, last = count + 1, now
                yield record
    except OSError as error:
        raise ReportLogError(f"reports cannot be read from {path}: {error.strerror or error}") from error
    if not count:
        why = f": {first}" if first else "; it is written by Detector.initialize(log_path=...) on rank 0"
        raise ReportLogError(f"{path} holds no report{why}")
    if left_out:
        logger.warning("%s: left out %d line(s) that cannot be read; the first: %s", path, left_out, first)
    if older:
        told = "%s: %d line(s) are older than the line before, the first is line %d: is it put together from several?"
        logger.warning(told, path, older, first_older)


def _record(line: str) -> dict[str, Any]:
    """Read one line.

    Raises:
        ValueError: It is no report of a known version; the message goes on after the name of the line.
    """
    try:
        record = json.loads(line)
        if "\\ud" in line:  # a half of a surrogate pair is text for Python, and for no file or picture
            record = json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        if not line.endswith("\n"):  # the last one
            raise ValueError("ends in mid-line, as if its writer was killed") from None
        if not line.strip("\0\n"):
            raise ValueError("holds zero bytes only, as after a loss of power") from None
        if line.startswith('{"format"'):
            raise ValueError("was cut off, as by a full disk or a loss of power") from None
        raise ValueError(f"is not JSON: {error}") from None
    return check_fields(record)
