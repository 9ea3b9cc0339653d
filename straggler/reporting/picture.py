"""What both pictures show, put together from a log that is read one report after the other.

A report is kept as one byte per rank (see :mod:`straggler.reporting.cells`), so that a day of 4,096 ranks takes 6 MB,
and not the 300 MB of its parsed lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from straggler.errors import ReportLogError
from straggler.reporting import cells
from straggler.reporting.named_slow import Entry, Episode, Episodes, entries
from straggler.reporting.rank_lists import ranges
from straggler.reporting.rows import Row, rows_of
from straggler.reporting.time_axis import TimeAxis, duration

__all__ = ["Picture", "Strip", "picture_of"]

Bytes = npt.NDArray[np.uint8]

MAX_NAMED = 120
"""Ranks with a row of their own; of further ones the table tells."""
MAX_SECTIONS = 16
_HISTOGRAM = 1000


@attrs.frozen
class Strip:
    """The slowest rank of a section.

    Args:
        name: Of the section.
        cells: One per column.
        worst: The rank, one per column, -1 unknown.
    """

    name: str
    cells: Bytes
    worst: list[int]


@attrs.frozen
class Picture:
    """The data of both pictures. All cells have a column per column of ``axis``.

    Args:
        title: One line.
        scale: What the cells mean.
        axis: Of time.
        sequences: Number of each report.
        rows: What each row of ``overview`` stands for.
        overview: Cells of all ranks.
        named: Who was named, a rank or a node per entry.
        episodes: The same, per rank.
        named_ranks: Ranks that have a row of their own.
        named_cells: Their cells.
        sections: The sections in which ranks are slowest.
        waited: Median and largest share of time that ranks wait for the last, per cent, shape ``(2, columns)``, NaN
            unknown; None where the log does not say.
    """

    title: str
    scale: cells.Scale
    axis: TimeAxis
    sequences: list[int]
    rows: list[Row]
    overview: Bytes
    named: list[Entry]
    episodes: list[Episode]
    named_ranks: list[int]
    named_cells: Bytes
    sections: list[Strip]
    waited: npt.NDArray[np.float64] | None


class _Builder:
    """Takes the records one by one."""

    def __init__(self) -> None:
        self.windows: list[Bytes] = []
        self.times: list[float] = []
        self.sequences: list[int] = []
        self.node_of: dict[int, str] = {}
        self.episodes = Episodes()
        self.sections: dict[str, list[tuple[int, Bytes, int]]] = {}
        self.waited: list[tuple[float, float]] = []
        self.histogram = np.zeros(_HISTOGRAM + 1, dtype=np.int64)
        self._nodes: list[list[Any]] = []

    def add(self, record: Mapping[str, Any]) -> None:
        index = len(self.times)
        self.times.append(float(record["time"]))
        self.sequences.append(int(record["sequence"]))
        slowdown = np.array(record["ranks"], dtype=np.float64) / 1000.0 - 1.0  # None becomes NaN
        named = np.zeros(len(slowdown), dtype=bool)
        named[[v["rank"] for v in record["verdicts"] if v["state"] == "SLOW" and v["rank"] < len(slowdown)]] = True
        self.windows.append(cells.codes(slowdown, named))
        unnamed = slowdown[~named & ~np.isnan(slowdown)]
        distance = np.minimum(np.round(1000.0 * np.abs(unnamed)), _HISTOGRAM).astype(np.int64)
        self.histogram += np.bincount(distance, minlength=_HISTOGRAM + 1)
        self.episodes.add(index, self.sequences[-1], record["verdicts"])
        self._take_nodes(record["nodes"])
        for name, numbers in record["sections"].items():
            worst = np.array([numbers["worst"] / 1000.0 - 1.0])
            cell = cells.codes(worst, np.array([numbers["slow"] > 0]))
            self.sections.setdefault(name, []).append((index, cell, int(numbers["worst_rank"])))
        share = record.get("waited") or {}
        self.waited.append((share.get("median", np.nan), share.get("most", np.nan)))

    def _take_nodes(self, nodes: list[list[Any]]) -> None:
        if nodes == self._nodes:
            return
        self._nodes, rank = nodes, 0
        for node, count in nodes:
            for each in range(rank, rank + count):
                if node:  # the latest name that is known
                    self.node_of[each] = node
            rank += count


def picture_of(records: Iterable[Mapping[str, Any]]) -> Picture:
    """Arrange the records of a report log; ranks that a report does not know are missing in it.

    Args:
        records: In order. They are read once and not kept.

    Raises:
        ReportLogError: There are no records.
    """
    builder = _Builder()
    for record in records:
        builder.add(record)
    if not builder.times:
        raise ReportLogError("there is no report to draw")
    ranks = max(map(len, builder.windows))
    matrix = np.full((len(builder.times), ranks), cells.MISSING, dtype=np.uint8)
    for index, window in enumerate(builder.windows):
        matrix[index, : len(window)] = window
    builder.windows.clear()
    axis = TimeAxis.of(builder.times)
    scale = cells.Scale(cells.neutral_range(builder.histogram))
    starts = axis.starts()
    rows = rows_of(ranks, builder.node_of)
    by_row = np.concatenate([np.array(row.ranks, dtype=np.int64) for row in rows])
    begins = np.cumsum([0, *(len(row.ranks) for row in rows[:-1])]).astype(np.int64)
    together = scale.over(matrix[:, by_row], begins, 1, ranks=True)
    named_ranks = _named_ranks(builder.episodes.found)
    own = matrix[:, np.array(named_ranks, dtype=np.int64)]
    sizes = Counter(builder.node_of.values())
    named = entries(builder.episodes.found, sizes)
    return Picture(
        title=_title(ranks, builder, sizes),
        scale=scale,
        axis=axis,
        sequences=builder.sequences,
        rows=rows,
        overview=axis.spread(scale.over(together, starts, 0).T, starts),
        named=named,
        episodes=builder.episodes.found,
        named_ranks=named_ranks,
        named_cells=axis.spread(scale.over(own, starts, 0).T, starts),
        sections=_strips(builder, scale, axis),
        waited=_waited(builder, axis),
    )


def _named_ranks(episodes: list[Episode]) -> list[int]:
    """Return the ranks to be shown in rows of their own, in order; where they are too many, the slowest of them."""
    largest: dict[int, float] = {}
    for episode in episodes:
        largest[episode.rank] = max(episode.slowdowns[1], largest.get(episode.rank, 0.0))
    return sorted(sorted(largest, key=lambda rank: -largest[rank])[:MAX_NAMED])


def _title(ranks: int, builder: _Builder, sizes: Mapping[str, int]) -> str:
    at_end = {e.rank for e in builder.episodes.found if e.until == len(builder.times) - 1}
    ever = {e.rank for e in builder.episodes.found}
    nodes = f" on {len(sizes)} node{'s' * (len(sizes) > 1)}" if sizes else ""
    count = len(builder.times)
    span = f"{count} report{'s' * (count > 1)} over {duration(builder.times[-1] - builder.times[0])}"
    slow = f"{len(at_end)} slow at the end ({ranges(at_end)})" if at_end else "nobody is slow at the end"
    before = f", {len(ever - at_end)} slow before" if ever - at_end else ""
    return f"{ranks} ranks{nodes}, {span}: {slow if ever else 'nobody was slow'}{before}"


def _strips(builder: _Builder, scale: cells.Scale, axis: TimeAxis) -> list[Strip]:
    starts, order = axis.starts(), scale.importance()
    found = []
    for name, known in builder.sections.items():
        row = np.zeros((1, len(builder.times)), dtype=np.uint8)
        worst = [-1] * axis.columns
        best = [-1] * axis.columns
        for index, cell, rank in known:
            row[0, index] = cell[0]
            column = int(axis.column_of[index])
            if order[cell[0]] > best[column]:
                best[column], worst[column] = int(order[cell[0]]), rank
        found.append((max(best), Strip(name, axis.spread(scale.over(row, starts, 1), starts)[0], worst)))
    return [strip for _, strip in sorted(found, key=lambda each: (-each[0], each[1].name))[:MAX_SECTIONS]]


def _waited(builder: _Builder, axis: TimeAxis) -> npt.NDArray[np.float64] | None:
    shares = 100.0 * np.array(builder.waited, dtype=np.float64).T
    if np.isnan(shares).all():
        return None
    starts = axis.starts()
    full = np.full((2, axis.columns), np.nan)
    full[:, axis.column_of[starts]] = np.fmax.reduceat(shares, starts, axis=1)
    return full
