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

__all__ = ["RowMatrix", "GatheredWindows", "assemble"]


@attrs.frozen
class RowMatrix:
    """All rows of one family.

    Args:
        names: Name hashes, uint64, shape ``(rows,)``, ascending.
        med: Median seconds, float64, shape ``(rows, ranks)``; NaN where a rank has no such row.
        total: Seconds spent, those of entries that were not measured included, same shape; 0 where missing.
        num: Samples, same shape; 0 where missing.
        spread: Robust standard deviation of the samples in seconds, same shape; 0 where missing.
        synchronous: Most ranks that have the row met a collective in it; bool, shape ``(rows,)``.
        mean: Mean seconds of a sample, same shape as ``med``; NaN where missing.
    """

    names: npt.NDArray[np.uint64]
    med: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]
    num: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]
    synchronous: npt.NDArray[np.bool_]
    mean: npt.NDArray[np.float64]


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
    numbers = windows.heads["sequence"].astype(np.int64)
    counts = numbers == sequence
    if heard is not None:
        counts |= (numbers == sequence - 1) & (heard[windows.ranks] < numbers)
    owners, heads = windows.ranks[counts], windows.heads[counts]
    present = np.zeros(ranks, dtype=bool)
    present[owners] = True
    nodes = list(known_nodes) if known_nodes is not None else [""] * ranks
    sent: list[bytes] = heads["node"].tolist()
    names = {name: name.decode("utf-8", "replace") for name in set(sent)}
    for rank, name in zip(owners.tolist(), sent, strict=True):
        nodes[rank] = names[name]
    device = np.full((ranks, len(STATE_FIELDS)), np.nan)
    device[owners] = heads["device"]
    elapsed = np.full(ranks, np.nan)
    elapsed[owners] = heads["elapsed"]
    groups = np.zeros(ranks, dtype=np.int64)
    groups[owners] = np.unique(heads["peer_group"], return_inverse=True)[1]
    numbered = np.full(ranks, -1, dtype=np.int64)
    numbered[owners] = numbers[counts]
    all_rows = windows.rows_of(owners)
    owner = np.repeat(owners, heads["rows"])
    families = {family: _block(all_rows, owner, family, ranks) for family in Family}
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
    )


def _block(rows: npt.NDArray[Any], owner: npt.NDArray[np.int64], family: Family, ranks: int) -> RowMatrix:
    chosen = rows["family"] == family
    rows, owner = rows[chosen], owner[chosen]
    # A rank that sends NaN, infinity or a negative time has not measured: the cell stays missing.
    sound = np.isfinite(rows["med"]) & (rows["med"] > 0.0) & np.isfinite(rows["total"]) & (rows["num"] > 0)
    rows, owner = rows[sound], owner[sound]
    names, column = np.unique(rows["name"], return_inverse=True)
    shape = (len(names), ranks)
    med, mean, total = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape)
    num, spread = np.zeros(shape), np.zeros(shape)
    med[column, owner] = rows["med"]
    total[column, owner] = rows["total"] * np.maximum(rows["every"], 1)
    mean[column, owner] = rows["total"] / rows["num"]
    num[column, owner] = rows["num"]
    spread[column, owner] = np.nan_to_num(rows["spread"], nan=0.0, posinf=0.0, neginf=0.0)
    votes = np.zeros(len(names))
    np.add.at(votes, column, rows["synchronous"].astype(np.float64))
    have = np.maximum((num > 0).sum(axis=1), 1)
    return RowMatrix(names, med, total, num, spread, (votes > 0) & (2.0 * votes >= have), mean)
