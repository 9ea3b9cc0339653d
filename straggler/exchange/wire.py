"""One rank's window of timings, and the bytes that carry it.

Layout (little-endian, version 5): one :data:`HEADER`, then rows of :data:`ROW`, 40 bytes each, up to ``top_k`` of
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

__all__ = ["HEADER", "ROW", "Windows", "decode_all", "encode"]

MAGIC = 0x5354_5247
VERSION = 5


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
        ("spread", "<f8"),
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
    for place, (number, row) in enumerate(listed):
        summary = row.summary
        body[place] = (
            number,
            row.family,
            row.synchronous,
            row.every,
            int(summary[Statistic.NUM]),
            summary[Statistic.MED],
            summary[Statistic.AVG] * summary[Statistic.NUM],
            row.spread,
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
        payloads: What they were read from.
    """

    ranks: npt.NDArray[np.int64]
    heads: npt.NDArray[Any]
    refused: dict[int, str]
    payloads: Sequence[bytes | None]

    def rows_of(self, ranks: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the rows of these ranks, :data:`ROW`, one window after the other."""
        bodies = (memoryview(self.payloads[rank] or b"")[HEADER.itemsize :] for rank in ranks.tolist())
        return np.frombuffer(b"".join(bodies), dtype=ROW)


def decode_all(payloads: Sequence[bytes | None]) -> Windows:
    """Decode one window per rank, all in one go, since thousands of arrays of one window each take longer.

    Args:
        payloads: By rank; None where there is none.
    """
    size, refused = HEADER.itemsize, dict[int, str]()
    there = [rank for rank, payload in enumerate(payloads) if payload is not None]
    kept, joined, lengths = list[int](), list[bytes](), list[int]()
    for rank in there:
        payload = payloads[rank] or b""
        if len(payload) < size:
            refused[rank] = f"a window has at least {size} bytes, not {len(payload)}"
            continue
        kept.append(rank)
        joined.append(payload[:size])
        lengths.append(len(payload))
    ranks, heads = np.array(kept, dtype=np.int64), np.frombuffer(b"".join(joined), dtype=HEADER)
    expected = size + heads["rows"].astype(np.int64) * ROW.itemsize
    is_sound = (
        (heads["magic"] == MAGIC) & (heads["version"] == VERSION) & (expected == np.array(lengths, dtype=np.int64))
    )
    is_sound &= (heads["rank"] == ranks) & (heads["world_size"] == len(payloads))
    for place in np.flatnonzero(~is_sound).tolist():
        refused[kept[place]] = _why_not(heads[place], kept[place], len(payloads), lengths[place])
    return Windows(ranks[is_sound], heads[is_sound], refused, payloads)


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
