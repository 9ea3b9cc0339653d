"""The columns of the table, and a row as one line of a given width. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from launcher.top.phrases import duration, rate, size
from launcher.top.rows import Row

__all__ = ["Table"]

_GAP = "  "
_NARROWEST, _WIDEST = 14, 40
"""Of the column that takes what is left: the sections."""
_UNKNOWN = "-"


class _Column(NamedTuple):
    name: str
    width: int
    text: Callable[[Row], str]
    rank: int = 0
    """Those with the highest number go first where the terminal is narrow."""


def _restarts(row: Row) -> str:
    if row.restarts is None:
        return _UNKNOWN
    return f"{row.restarts} ({row.caused})" if row.caused else str(row.restarts)


def _left(row: Row) -> str:
    if row.left is None:
        return _UNKNOWN
    return duration(row.left) if row.left > 0 else f"-{duration(-row.left)}"


_BEHIND = (
    _Column("iteration", 9, lambda row: _UNKNOWN if row.iteration is None else str(row.iteration)),
    _Column("age", 7, lambda row: _UNKNOWN if row.age is None else duration(row.age)),
    _Column("left", 7, _left),
    _Column("steps/s", 7, lambda row: _UNKNOWN if row.steps_per_second is None else rate(row.steps_per_second), 1),
    _Column("restarts", 8, _restarts, 3),
    _Column("memory", 8, lambda row: _UNKNOWN if row.memory_bytes is None else size(row.memory_bytes), 2),
)


class Table:
    """Lays rows out for a width in columns of a terminal.

    Args:
        rows: All that are to be shown; they decide how wide some columns are.
        width: Of the terminal. A narrow one leaves columns out, and cuts lines.
        fit: Cuts or pads a text to so many columns of a terminal; by default each character takes one.
        at_least: How wide the column of sections should be, so that it need not change from one frame to the next.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        width: int,
        fit: Callable[[str, int], str] | None = None,
        at_least: int = _NARROWEST,
    ) -> None:
        rows = list(rows)
        self._fit = fit or _fit
        self._width = width
        nodes = {row.node for row in rows}
        self._node_width = min(max(map(len, nodes), default=0), 16) if len(nodes) > 1 else 0
        self._rank_width = max(4, *(len(str(row.rank)) for row in rows)) if rows else 4
        before = self._rank_width + (len(_GAP) + self._node_width if self._node_width else 0)
        columns = list(_BEHIND)
        while self._left_over(before, columns) < _NARROWEST and any(column.rank for column in columns):
            columns.remove(max(columns, key=lambda column: column.rank))
        self._columns = columns
        self.wanted = max(at_least, min(_WIDEST, max((len(_told(row)) for row in rows), default=0)))
        """How wide the column of sections should be for these rows."""
        self._section_width = max(_NARROWEST, min(self.wanted, self._left_over(before, columns)))

    def _left_over(self, before: int, columns: list[_Column]) -> int:
        return self._width - before - len(_GAP) - sum(len(_GAP) + column.width for column in columns)

    @property
    def heading(self) -> str:
        """The names of the columns."""
        cells = ["rank".rjust(self._rank_width)]
        if self._node_width:
            cells.append(self._fit("node", self._node_width))
        cells.append(self._fit("section", self._section_width))
        cells += [column.name.rjust(column.width) for column in self._columns]
        return self._fit(_GAP.join(cells), self._width)

    def line(self, row: Row) -> str:
        """Return a row, exactly as wide as the terminal."""
        cells = [("?" if row.rank is None else str(row.rank)).rjust(self._rank_width)]
        if self._node_width:
            cells.append(self._fit(row.node, self._node_width))
        told = _told(row)
        if row.remark is not None and row.iteration is None and row.age is None:  # there is nothing else to show
            return self._fit(_GAP.join([*cells, told]), self._width)
        if len(told) > self._section_width:
            told = _short(row)
        cells.append(self._fit(told, self._section_width))
        cells += [column.text(row).rjust(column.width) for column in self._columns]
        return self._fit(_GAP.join(cells), self._width)


def _told(row: Row) -> str:
    if row.rank is None and row.local_rank is not None and row.remark is not None:  # its cell could never be read
        return f"local rank {row.local_rank}: {row.remark}"
    return row.activity if row.remark is None else f"{row.activity}: {row.remark}"


def _short(row: Row) -> str:
    """Return what matters most first, where there is not room for all: what is wrong, or the innermost section."""
    if row.remark is not None:
        return f"{row.remark.removeprefix('its ').removeprefix('process ')}: {row.activity}"
    _, found, innermost = row.activity.rpartition(" > ")
    return f"> {innermost}" if found else row.activity


def _fit(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[:width]
