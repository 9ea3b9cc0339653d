"""One rank's window of timings, and the bytes that carry it.

Layout (little-endian, version 4): one :data:`HEADER`, then rows of :data:`ROW`, 40 bytes each, up to ``top_k`` of
each family.
No names, no pickle: a reader checks magic, version and length, and copies numbers. At the default of 32 rows per
kind a rank sends 2.8 kB a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from straggler.errors import WireError
from straggler.measurement.measured import STATE_FIELDS, Measured
from straggler.measurement.summary import Statistic

__all__ = ["HEADER", "ROW", "decode", "encode"]

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


def decode(payload: bytes) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Decode a window.

    Returns:
        The header (one :data:`HEADER` record) and the rows (flat :data:`ROW`), views of ``payload``.

    Raises:
        WireError: It is too short, of another version, or not a window at all.
    """
    if len(payload) < HEADER.itemsize:
        raise WireError(f"a window has at least {HEADER.itemsize} bytes, not {len(payload)}")
    head = np.frombuffer(payload, dtype=HEADER, count=1)[0]
    if head["magic"] != MAGIC:
        raise WireError(f"a window begins with {MAGIC:#x}, not {int(head['magic']):#x}")
    if head["version"] != VERSION:
        raise WireError(f"window version {int(head['version'])}, and this rank reads {VERSION}: mixed installations?")
    expected = HEADER.itemsize + int(head["rows"]) * ROW.itemsize
    if len(payload) != expected:
        raise WireError(f"a window of {int(head['rows'])} rows has {expected} bytes, not {len(payload)}")
    return head, np.frombuffer(payload, dtype=ROW, offset=HEADER.itemsize)
