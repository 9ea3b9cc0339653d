"""Time axis of the pictures: which reports share a column, where reports are missing, and the ticks.

A column is a report, or several where there are more reports than columns. Where the time between two reports is long,
as after the job was stopped, columns without reports come between them, so that a picture does not join what was hours
apart. The gap is narrower than it was long, and its label says how long that is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["MAX_COLUMNS", "TimeAxis", "duration", "moment"]

MAX_COLUMNS = 1500
_MOST_GAPS = 20
_LONG = 5.0
"""A gap is so many times as long as the usual time between two reports."""
_TICKS = 8
_LETTERS = 135
"""So many letters fill the axis; ticks are so far apart that their labels do not touch."""
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
_OLDEST = 1e9
"""Seconds. Times before that are no time of day, but begin at 0."""


@attrs.frozen
class TimeAxis:
    """Columns of a picture.

    Args:
        column_of: Column of each report.
        columns: How many there are.
        gaps: First column, columns, and seconds without a report.
        times: Of the reports, in seconds since 1970.
    """

    column_of: npt.NDArray[np.int64]
    columns: int
    gaps: list[tuple[int, int, float]]
    times: list[float]

    @classmethod
    def of(cls, times: Sequence[float], most: int = MAX_COLUMNS) -> TimeAxis:
        """Arrange reports.

        Args:
            times: Of the reports, in order.
            most: At most about so many columns.
        """
        count = len(times)
        per_column = max(1, -(-count // most))
        apart = np.diff(np.asarray(times, dtype=np.float64))
        usual = float(np.median(apart)) if count > 2 else np.inf
        long = [int(i) for i in np.argsort(-apart)[:_MOST_GAPS] if apart[i] > _LONG * max(usual, 1e-3)]
        width = max(1, -(-count // per_column) // 60)
        column_of, gaps = np.zeros(count, dtype=np.int64), []
        column, in_column = 0, 0
        for index in range(1, count):
            in_column += 1
            if index - 1 in long:
                gaps.append((column + 1, width, float(apart[index - 1])))
                column, in_column = column + 1 + width, 0
            elif in_column == per_column:
                column, in_column = column + 1, 0
            column_of[index] = column
        return cls(column_of, column + 1, gaps, list(times))

    def spread(self, cells: npt.NDArray[np.uint8], starts_at: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return cells of the columns that have reports with the empty columns between them, shape ``(rows, columns)``.

        Args:
            cells: Shape ``(rows, columns with reports)``.
            starts_at: The first report of each of these.
        """
        full = np.zeros((cells.shape[0], self.columns), dtype=np.uint8)
        full[:, self.column_of[starts_at]] = cells
        return full

    def starts(self) -> npt.NDArray[np.int64]:
        """Return the first report of each column that has reports."""
        return np.unique(self.column_of, return_index=True)[1].astype(np.int64)

    @property
    def has_time_of_day(self) -> bool:
        """Whether the times are those of a clock; those of a played job may begin at 0."""
        return self.times[0] >= _OLDEST

    def ticks(self) -> list[tuple[float, str]]:
        """Return where in the columns a tick is, and the time of day (UTC) or else since the first report."""
        times = np.asarray(self.times)
        first, covered = self.times[0], self.times[-1] - self.times[0] - sum(gap for _, _, gap in self.gaps)
        step = next((step for step in _STEPS if covered / step <= _TICKS), float(np.ceil(covered / _TICKS)))
        passed = np.floor((times if self.has_time_of_day else times - first) / step)
        empty = {column + width for column, width, _ in self.gaps}
        found: list[tuple[float, str]] = []
        day = ""
        for index in [0, *(np.flatnonzero(np.diff(passed)) + 1).tolist()]:
            column = int(self.column_of[index])
            # What has passed in a gap is at no place of it. The first report after it tells its own time.
            at = self.times[index] if index == 0 or column in empty else float(times[index] // step * step)
            if not self.has_time_of_day:
                at = first + passed[index] * step if column not in empty else self.times[index]
            text, of_day = duration(at - first), time.strftime("%b %d", time.gmtime(at))
            if self.has_time_of_day:
                text = _clock(at, step) if of_day == day else f"{of_day} {_clock(at, step)}"
            letters = (len(text) + len(found[-1][1])) / 2 if found else 0.0
            if found and column + 0.5 - found[-1][0] < self.columns * letters / _LETTERS:
                continue
            day = of_day
            found.append((column + 0.5, text))
        return found


def _clock(at: float, step: float) -> str:
    return time.strftime("%H:%M:%S" if step < 60 else "%H:%M", time.gmtime(at))


def moment(at: float) -> str:
    """Return a time as people write it, in UTC."""
    return time.strftime("%b %d %H:%M:%S", time.gmtime(at)) if at >= _OLDEST else f"{at:.0f} s"


def duration(seconds: float) -> str:
    """Return a time span with at most two units."""
    whole = round(seconds)
    for size, name, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{whole} s"
