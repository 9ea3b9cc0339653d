"""The rows of the table: ranks of this machine, and of others where their metrics are read, in the order of lateness.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from launcher.live.live_run import NodeLook, RunLook
from launcher.live.rank_look import ENDED, RankLook
from launcher.top.phrases import one_line

__all__ = ["Row", "all_rows", "in_order", "late_ones", "local_rows"]

_AT_EASE = 0.25
"""Ranks that have used less of their limit than this keep their places: all of them are fine."""
_STEPS = 20
"""Into how many steps a limit is divided for the order, so that rows do not change places without a reason."""


class Row(NamedTuple):
    """One rank, as it is shown. Durations in seconds; None for what is unknown."""

    rank: int | None
    local_rank: int | None
    node: str
    generation: int | None
    activity: str
    """Its open sections, or what it is in instead."""
    remark: str | None
    """What is wrong with it: stopped, ended, its cell removed or damaged."""
    iteration: int | None
    age: float | None
    """Since its last sign of life."""
    left: float | None
    """To its nearest deadline; negative once that has passed."""
    used: float
    """The part of its limit that is used, 1 and more when it is late."""
    steps_per_second: float | None
    restarts: int | None
    """How often it was started again: all ranks are, together. Not all of that is charged to the restart budget."""
    caused: int | None
    """How many failures it was to blame for."""
    memory_bytes: int | None

    @property
    def is_late(self) -> bool:
        """Whether its nearest deadline has passed."""
        return self.left is not None and self.left <= 0

    @property
    def is_bad(self) -> bool:
        """Whether somebody should look: it is late, or something is wrong with it."""
        return self.is_late or self.remark is not None


def local_rows(look: RunLook) -> list[Row]:
    """Return a row for each rank of this machine."""
    return [_row(node, rank) for node in look.nodes for rank in node.ranks]


def all_rows(look: RunLook, others: Iterable[Row]) -> list[Row]:
    """Return the rows of this machine, and those of others that are not among them.

    Args:
        look: What is known of this machine.
        others: Ranks that metrics tell of, those of this machine perhaps included.
    """
    rows = local_rows(look)
    known = {row.rank for row in rows if row.rank is not None}
    return rows + [row for row in others if row.rank not in known]


def in_order(rows: Iterable[Row], *, by_rank: bool = False) -> list[Row]:
    """Return the rows with those first that are late or nearest to it; of equal ones the lower iteration, then rank.

    Ranks at ease keep the order of their numbers.
    """
    return sorted(rows, key=_by_rank if by_rank else _by_lateness)


def late_ones(rows: Iterable[Row]) -> int:
    """Return how many of the rows are late, or have something wrong with them."""
    return sum(row.is_bad for row in rows)


def _by_rank(row: Row) -> tuple[float, ...]:
    return (row.rank if row.rank is not None else -1, row.local_rank or 0)


def _by_lateness(row: Row) -> tuple[float, ...]:
    used = 0 if row.used < _AT_EASE else int(row.used * _STEPS)
    behind = (row.iteration if row.iteration is not None else -1) if used or row.is_bad else 0
    return (not row.is_late, not row.is_bad, -used, behind, *_by_rank(row))


def _row(node: NodeLook, look: RankLook) -> Row:
    log = node.log
    return Row(
        rank=look.rank,
        local_rank=look.local_rank,
        node=one_line(log.node or ""),
        generation=look.generation,
        activity=one_line(look.activity),
        remark=_remark(look),
        iteration=look.iteration,
        age=look.age_seconds,
        left=look.seconds_left,
        used=look.used,
        steps_per_second=look.steps_per_second,
        restarts=log.generation,
        caused=log.caused(look.rank) if look.rank is not None else None,
        memory_bytes=look.process.resident_bytes if look.process is not None else None,
    )


def _remark(look: RankLook) -> str | None:
    if look.problem is not None:
        return one_line(look.problem)
    if look.has_ended and look.activity != ENDED:
        return "its process has ended"
    if look.process is not None and look.process.is_stopped:
        return "its process is stopped"
    return None
