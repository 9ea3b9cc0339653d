"""One rank's window of timings, and the bytes that carry it.

Layout (little-endian, version 6): one :data:`HEADER`, then rows of :data:`ROW`, 40 bytes each, up to ``top_k`` of
each family.
No names, no pickle: a reader checks magic, version and length, and copies numbers. At the default of 32 rows per
kind a rank sends 2.8 kB a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from straggler.measurement.measured import STATE_FIELDS, Measured
from straggler.measurement.summary import Statistic
from straggler.pacing import pace, paced

__all__ = ["HEADER", "LEFT", "ROW", "Windows", "decode_all", "encode"]

MAGIC = 0x5354_5247
VERSION = 6
LEFT = b"left"
"""In place of the window of a rank that makes no more of them."""
_RANKS_AT_ONCE, _ROWS_AT_ONCE = 512, 32
"""Between two moments at which training may go on."""


HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "<u2"),
        ("rows", "<u2"),
        ("sequence", "<u8"),
        ("rank", "<i4"),
        ("world_size", "<i4"),
        ("elapsed", "<f8"),
        ("dropped", "<u8"),
        ("peer_group", "<u8"),
        ("wants_report", "<u8"),
        ("node", "S64"),
        ("device", "<f8", (len(STATE_FIELDS),)),
    ]
)

ROW = np.dtype(
    [
        ("name", "<u8"),
        ("family", "u1"),
        ("synchronous", "u1"),
        ("every", "<u2"),
        ("num", "<u4"),
        ("med", "<f8"),
        ("total", "<f8"),
        ("med_error", "<f4"),
        ("mean_error", "<f4"),
    ]
)


def encode(header: Mapping[str, Any], rows: Iterable[tuple[int, Measured]]) -> bytes:
    """Encode a window.

    Args:
        header: The fields of :data:`HEADER` except magic, version and rows.
        rows: Name hash and row.
    """
    listed = list(rows)
    body = np.zeros(len(listed), dtype=ROW)
    for place, (number, row) in enumerate(paced(listed, _ROWS_AT_ONCE)):
        summary = row.summary
        body[place] = (
            number,
            row.family,
            row.synchronous,
            row.every,
            int(summary[Statistic.NUM]),
            summary[Statistic.MED],
            summary[Statistic.AVG] * summary[Statistic.NUM],
            *row.errors,
        )
    head = np.zeros(1, dtype=HEADER)
    head["magic"], head["version"], head["rows"] = MAGIC, VERSION, len(listed)
    for field, value in header.items():
        head[field] = value
    return head.tobytes() + body.tobytes()


@attrs.frozen
class Windows:
    """The windows of several ranks.

    Args:
        ranks: Whose windows were understood, ascending.
        heads: Their headers, :data:`HEADER`, in the order of ``ranks``.
        refused: Why a window was not understood, by rank.
        joined: What they were read from, one behind the other.
        begins: Where each begins, in the order of ``ranks``.
    """

    ranks: npt.NDArray[np.int64]
    heads: npt.NDArray[Any]
    refused: dict[int, str]
    joined: bytes
    begins: npt.NDArray[np.int64]

    def rows_of(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Return the rows of some windows, :data:`ROW`, one window after the other.

        Args:
            chosen: Which, in the order of ``ranks``.
        """
        begins = self.begins[chosen] + HEADER.itemsize
        sizes = self.heads["rows"][chosen].astype(np.int64) * ROW.itemsize
        # As bytes: numpy copies an array of records field by field, which takes far longer.
        rows, place = np.empty(int(sizes.sum()), np.uint8), 0
        for first in paced(range(0, len(begins), _RANKS_AT_ONCE)):
            read = self._bytes_of(begins[first : first + _RANKS_AT_ONCE], sizes[first : first + _RANKS_AT_ONCE])
            rows[place : place + read.size] = read
            place += read.size
        return rows.view(ROW)

    def _bytes_of(self, begins: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        if (length := _distance(begins)) and (sizes == sizes[0]).all():
            shape = len(begins), int(sizes[0])
            return np.ndarray(shape, np.uint8, self.joined, int(begins[0]), (length, 1)).reshape(-1)
        read = memoryview(self.joined)
        bodies = [read[begin:end] for begin, end in zip(begins.tolist(), (begins + sizes).tolist(), strict=True)]
        return np.frombuffer(b"".join(bodies), dtype=np.uint8)


def decode_all(payloads: Sequence[bytes | None]) -> Windows:
    """Decode one window per rank, all in one go, since thousands of arrays of one window each take longer.

    Args:
        payloads: By rank; None where there is none.
    """
    size, refused = HEADER.itemsize, dict[int, str]()
    kept, windows = list[int](), list[bytes]()
    for rank, payload in enumerate(paced(payloads, _RANKS_AT_ONCE)):
        if payload is None:
            continue
        if payload == LEFT:
            refused[rank] = "it has left: its detector was shut down, or its script has ended"
            continue
        if len(payload) < size:
            refused[rank] = f"a window has at least {size} bytes, not {len(payload)}"
            continue
        kept.append(rank)
        windows.append(payload)
    pace()
    ranks, joined = np.array(kept, dtype=np.int64), b"".join(windows)
    pace()
    lengths = np.array(list(map(len, windows)), dtype=np.int64)
    begins = np.cumsum(lengths) - lengths
    pace()
    if length := _distance(begins):
        heads = np.ndarray(len(windows), HEADER, joined, 0, (length,))
    else:
        heads = np.frombuffer(b"".join([window[:size] for window in paced(windows, _RANKS_AT_ONCE)]), dtype=HEADER)
    pace()
    expected = size + heads["rows"].astype(np.int64) * ROW.itemsize
    pace()
    is_sound = (heads["magic"] == MAGIC) & (heads["version"] == VERSION) & (expected == lengths)
    pace()
    is_sound &= (heads["rank"] == ranks) & (heads["world_size"] == len(payloads))
    pace()
    for place in np.flatnonzero(~is_sound).tolist():
        refused[kept[place]] = _why_not(heads[place], kept[place], len(payloads), int(lengths[place]))
    return Windows(ranks[is_sound], heads[is_sound], refused, joined, begins[is_sound])


def _distance(begins: npt.NDArray[np.int64]) -> int:
    """Return how many bytes each window begins behind the one before, which is nearly always the same; else 0."""
    between = np.diff(begins)
    return int(between[0]) if len(between) and (between == between[0]).all() else 0


def _why_not(head: Any, rank: int, world_size: int, length: int) -> str:
    """Return what is wrong with a window that is long enough for a header."""
    if head["magic"] != MAGIC:
        return f"a window begins with {MAGIC:#x}, not {int(head['magic']):#x}"
    if head["version"] != VERSION:
        return f"window version {int(head['version'])}, and this rank reads {VERSION}: mixed installations?"
    expected = HEADER.itemsize + int(head["rows"]) * ROW.itemsize
    if length != expected:
        return f"a window of {int(head['rows'])} rows has {expected} bytes, not {length}"
    return f"a window of rank {int(head['rank'])} of {int(head['world_size'])} came as rank {rank}"
