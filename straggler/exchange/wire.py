"""One rank's window of timings, and the bytes that carry it.

Layout (little-endian, version 2): one :data:`HEADER`, then up to ``2 * top_k`` rows of :data:`ROW`, 40 bytes each.
No names, no pickle: a reader checks magic, version and length, and copies numbers. At the default of 32 rows per
kind a rank sends 2.8 kB a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from straggler.errors import WireError
from straggler.measurement.summary import Statistic, Summary, robust_spread, summarise

__all__ = ["HEADER", "ROW", "STATE_FIELDS", "Family", "Measured", "decode", "encode", "measured", "top_k"]

MAGIC = 0x5354_5247
VERSION = 2

STATE_FIELDS = (
    "sm_clock_mhz",
    "max_sm_clock_mhz",
    "throttle_reasons",
    "temperature_c",
    "ecc_uncorrected",
    "pcie_width",
    "max_pcie_width",
    "power_w",
    "cpu_waited",
    "cpu_throttled",
)
"""What a rank tells of its device and its host beside its timings; NaN where it does not know."""

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
        ("reserved", "<u2"),
        ("num", "<u4"),
        ("med", "<f8"),
        ("total", "<f8"),
        ("spread", "<f8"),
    ]
)


class Family(IntEnum):
    """What kind of time a row holds."""

    SECTION = 0
    """CPU wall time of a section; a wait, when ``synchronous``."""
    ARRIVAL = 1
    """From the last release to the arrival at a synchronous section: a rank's own work. Scored."""
    KERNEL = 2
    """A GPU kernel, or the GPU time of a section where kernels cannot be seen."""
    WAIT = 3
    """Collective kernels on the GPU, all together: they last as long as the last rank takes to come."""


@attrs.frozen
class Measured:
    """The samples of one row, summarised.

    Args:
        family: What kind of time.
        name: Section or kernel.
        summary: The statistics, in seconds.
        spread: Robust standard deviation of the samples, in seconds.
        synchronous: The section contains a collective.
    """

    family: Family
    name: str
    summary: Summary
    spread: float = 0.0
    synchronous: bool = False


def measured(
    family: Family, name: str, seconds: npt.NDArray[np.float64], *, synchronous: bool = False
) -> Measured | None:
    """Summarise samples; None when there are none, so that an empty window has no row at all."""
    if seconds.size == 0:
        return None
    return Measured(family, name, summarise(seconds), robust_spread(seconds), synchronous)


def top_k(rows: Iterable[Measured], k: int) -> list[Measured]:
    """The ``k`` rows of each family on which most time was spent, in the order of name.

    The order of name breaks ties, so that ranks with equal times choose equal rows.
    """
    by_family: dict[Family, list[Measured]] = {}
    for row in rows:
        by_family.setdefault(row.family, []).append(row)
    chosen: list[Measured] = []
    for family_rows in by_family.values():
        family_rows.sort(key=lambda row: (-row.summary[Statistic.AVG] * row.summary[Statistic.NUM], row.name))
        chosen += sorted(family_rows[:k], key=lambda row: row.name)
    return chosen


def encode(header: Mapping[str, Any], rows: Iterable[tuple[int, Measured]]) -> bytes:
    """Write a window.

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
            0,
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
    """Read a window.

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
