"""Gathered windows: from one window per rank to one matrix per kind of time.

Only rank 0 does this, once a report: O(ranks x rows), in numpy. A cell that a rank did not report is NaN
here; scores leave such a rank out, and its verdict is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from straggler.exchange.wire import decode_all
from straggler.measurement.measured import STATE_FIELDS, Family
from straggler.pacing import pace

__all__ = ["RowMatrix", "GatheredWindows", "assemble"]


@attrs.frozen
class RowMatrix:
    """All rows of one family.

    Args:
        names: Name hashes, uint64, shape ``(rows,)``, ascending.
        med: Median seconds, float64, shape ``(rows, ranks)``; NaN where a rank has no such row.
        total: Seconds spent, those of entries that were not measured included, same shape; 0 where missing.
        num: Samples, same shape; 0 where missing.
        synchronous: Most ranks that have the row met a collective in it; bool, shape ``(rows,)``.
        mean: Mean seconds of a sample, same shape as ``med``; NaN where missing.
        med_error: Standard error of the median as a share of it, same shape; NaN where missing.
        mean_error: The same of the mean.
    """

    names: npt.NDArray[np.uint64]
    med: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]
    num: npt.NDArray[np.float64]
    synchronous: npt.NDArray[np.bool_]
    mean: npt.NDArray[np.float64]
    med_error: npt.NDArray[np.float64]
    mean_error: npt.NDArray[np.float64]


@attrs.frozen
class GatheredWindows:
    """What all ranks sent for one report.

    Args:
        world_size: Ranks in the job.
        present: Who answered in time, bool, shape ``(ranks,)``.
        nodes: Node name of each rank, ``""`` while unknown.
        peer_groups: Group number of each rank, int, 0 while unknown.
        device: Shape ``(ranks, len(STATE_FIELDS))``, NaN while unknown.
        elapsed: Seconds since the rank's last report, shape ``(ranks,)``, NaN while unknown.
        dropped: Records that probes lost, summed over ranks.
        blocks: One per family.
        refused: Why a window was not understood, by rank.
        numbers: Number of the report that each rank's window was made for, shape ``(ranks,)``, -1 where there is none.
        wanting: Ranks among those present that expect a report of their own.
    """

    world_size: int
    present: npt.NDArray[np.bool_]
    nodes: list[str]
    peer_groups: npt.NDArray[np.int64]
    device: npt.NDArray[np.float64]
    elapsed: npt.NDArray[np.float64]
    dropped: int
    blocks: dict[Family, RowMatrix]
    refused: dict[int, str]
    numbers: npt.NDArray[np.int64]
    wanting: frozenset[int] = frozenset()


def assemble(
    payloads: Sequence[bytes | None],
    sequence: int,
    known_nodes: Sequence[str] | None = None,
    *,
    heard: npt.NDArray[np.int64] | None = None,
) -> GatheredWindows:
    """Build the matrices of one report.

    Args:
        payloads: One window per rank, None where there is none.
        sequence: The report's number; a window of another one is out of date and counts as missing.
        known_nodes: Node names from earlier reports, for ranks that are missing now.
        heard: Number of the latest window of each rank that was in a report. The window before this report's counts
            where it is newer than that: it came too late, and a rank that is always late would never be heard. None:
            only windows of this report count.
    """
    ranks = len(payloads)
    windows = decode_all(payloads)
    pace()
    numbers = windows.heads["sequence"].astype(np.int64)
    counts = numbers == sequence
    if heard is not None:
        counts |= (numbers == sequence - 1) & (heard[windows.ranks] < numbers)
    owners, heads = windows.ranks[counts], windows.heads[counts]
    pace()
    present = np.zeros(ranks, dtype=bool)
    present[owners] = True
    nodes = list(known_nodes) if known_nodes is not None else [""] * ranks
    sent: list[bytes] = heads["node"].tolist()
    names = {name: name.decode("utf-8", "replace") for name in set(sent)}
    pace()
    for rank, name in zip(owners.tolist(), sent, strict=True):
        nodes[rank] = names[name]
    pace()
    device = np.full((ranks, len(STATE_FIELDS)), np.nan)
    device[owners] = heads["device"]
    elapsed = np.full(ranks, np.nan)
    elapsed[owners] = heads["elapsed"]
    groups = np.zeros(ranks, dtype=np.int64)
    groups[owners] = np.unique(heads["peer_group"], return_inverse=True)[1]
    pace()
    numbered = np.full(ranks, -1, dtype=np.int64)
    numbered[owners] = numbers[counts]
    pace()
    all_rows = windows.rows_of(counts)
    pace()
    owner = np.repeat(owners, heads["rows"])
    pace()
    # A rank that sends NaN, infinity or a negative time has not measured: the cell stays missing.
    is_time = np.isfinite(all_rows["med"])
    pace()
    is_time &= all_rows["med"] > 0.0
    pace()
    is_time &= np.isfinite(all_rows["total"])
    pace()
    kinds = np.where(is_time & (all_rows["num"] > 0), all_rows["family"], _NO_FAMILY)
    pace()
    families = {family: _block(all_rows, owner, kinds == family, ranks) for family in Family}
    return GatheredWindows(
        ranks,
        present,
        nodes,
        groups,
        device,
        elapsed,
        int(heads["dropped"].sum()),
        families,
        windows.refused,
        numbered,
        frozenset(owners[heads["wants_report"] != 0].tolist()),
    )


def _block(
    rows: npt.NDArray[Any], owner: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_], ranks: int
) -> RowMatrix:
    which = slice(None) if chosen.all() else np.flatnonzero(chosen)
    kept = {field: rows[field][which] for field in _NUMBERS}  # copies of whole rows take longer than all the rest
    pace()
    place = _places(rows["name"][which], owner[which])
    shape = (len(place.names), ranks)

    def matrix(values: npt.NDArray[Any], missing: float = 0.0) -> npt.NDArray[np.float64]:
        pace()
        made = np.full(shape, missing)
        place.fill(made, values)
        return made

    total, num = kept["total"], kept["num"]
    mean = total / num
    counts = matrix(num)
    votes = matrix(kept["synchronous"]).sum(axis=1)
    have = np.maximum((counts > 0).sum(axis=1), 1)
    return RowMatrix(
        names=place.names,
        med=matrix(kept["med"], np.nan),
        total=matrix(total * np.maximum(kept["every"], 1)),
        num=counts,
        synchronous=(votes > 0) & (2.0 * votes >= have),
        mean=matrix(mean, np.nan),
        med_error=matrix(_error(kept["med_error"], kept["med"]), np.nan),
        mean_error=matrix(_error(kept["mean_error"], mean), np.nan),
    )


_NO_FAMILY = 255
_NUMBERS = ("synchronous", "every", "num", "med", "total", "med_error", "mean_error")
_LARGEST_ERROR = 10.0
"""As a share; more says nothing else. What is damaged does not reach the scores."""


def _error(seconds: npt.NDArray[np.float32], of: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    pace()
    share = np.nan_to_num(seconds.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0) / of
    return np.clip(share, 0.0, _LARGEST_ERROR)


class _Places:
    """Where each value belongs: its row's place among the names, and its rank.

    Args:
        names: Ascending.
        column: Place of each value's name.
        owner: Rank of each value.
        width: So many values per rank, which have the same names in the same order; 0 where ranks differ.
    """

    def __init__(
        self,
        names: npt.NDArray[np.uint64],
        column: npt.NDArray[np.intp],
        owner: npt.NDArray[np.int64],
        width: int = 0,
    ) -> None:
        self.names, self._column, self._owner, self._width = names, column, owner, width
        is_everybody = owner.size and owner[0] == 0 and owner[-1] == owner.size - 1  # they ascend
        self._ranks = slice(0, owner.size) if width and is_everybody else owner

    def fill(self, matrix: npt.NDArray[np.float64], values: npt.NDArray[Any]) -> None:
        """Put values into a matrix of shape ``(names, ranks)``."""
        if not self._width:
            matrix[self._column, self._owner] = values
            return
        by_row = values.reshape(-1, self._width).T
        for place, row in zip(self._column.tolist(), by_row, strict=True):
            matrix[place, self._ranks] = row


def _places(names: npt.NDArray[np.uint64], owner: npt.NDArray[np.int64]) -> _Places:
    # Nearly always all ranks report the same rows in the same order: sorting all their names takes far longer.
    width = int((owner == owner[0]).sum()) if owner.size else 0
    if width and owner.size % width == 0:
        by_rank, owners = names.reshape(-1, width), owner.reshape(-1, width)
        first, column = np.unique(by_rank[0], return_inverse=True)
        is_alike = bool((by_rank == by_rank[0]).all()) and bool((owners == owners[:, :1]).all())
        if is_alike and len(first) == width:
            return _Places(first, column, owners[:, 0], width)
    unique, column = np.unique(names, return_inverse=True)
    return _Places(unique, column, owner)
