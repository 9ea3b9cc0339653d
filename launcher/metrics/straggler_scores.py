"""The newest straggler report that rank 0 has written."""

from __future__ import annotations

import json

from straggler.reporting.report_records import check_record

__all__ = ["StragglerScores"]

_MOST_RANKS = 1024
"""Of a larger job the slowest are served: each is one more series on the node of rank 0."""


class StragglerScores:
    """Takes the lines of a log of reports, and keeps what the last one says."""

    def __init__(self) -> None:
        self.slowdowns: dict[int, float] = {}
        """By rank: 1 is as fast as its peers; ranks of which nothing is known are missing."""
        self.reports = 0
        """That were taken so far."""

    def take(self, line: str) -> None:
        """Take the next line.

        Raises:
            ValueError: It is no report of a known version.
        """
        record = check_record(json.loads(line))
        per_mille = record["ranks"]
        if not isinstance(per_mille, list):
            raise ValueError("has no ranks")
        known = [(value, rank) for rank, value in enumerate(per_mille) if type(value) is int and value >= 0]
        slowest = sorted(known, reverse=True)[:_MOST_RANKS]
        self.slowdowns = {rank: value / 1000 for value, rank in sorted(slowest, key=lambda each: each[1])}
        self.reports += 1
