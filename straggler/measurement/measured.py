"""Measured: the summary of one row's samples, before it is sent."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import attrs
import numpy as np
import numpy.typing as npt

from straggler.measurement.standard_errors import standard_errors
from straggler.measurement.summary import Statistic, Summary, summarise

__all__ = [
    "BATCHES_OF_WORKERS",
    "Family",
    "IGNORED_KERNELS",
    "OWN_WORK_OF_AN_ITERATION",
    "Measured",
    "STATE_FIELDS",
    "is_ignored_kernel",
    "measured",
    "top_k",
]

OWN_WORK_OF_AN_ITERATION = "own work of each iteration"
BATCHES_OF_WORKERS = "batches made by data loader workers"

_MOST_ENTRIES_A_SAMPLE = 0xFFFF

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
    "loader_waited",
)
"""What a rank tells of its device and its host beside its timings; NaN where it does not know."""


class Family(IntEnum):
    """The kind of time that a row holds."""

    SECTION = 0
    """CPU wall time of a section; a wait, when ``synchronous``."""
    ARRIVAL = 1
    """From the last release to the arrival at a synchronous section: a rank's own work. Scored."""
    KERNEL = 2
    """A GPU kernel, in the sampled entries of sections."""
    WAIT = 3
    """Collective kernels on the GPU, all together: they last as long as the last rank takes to come."""
    GPU_SECTION = 4
    """The GPU time of a section, in every measured entry. It holds the time of the kernels, too, so that a rank is
    scored by these rows or by those of its kernels, and never by both."""
    OWN_WORK = 5
    """An iteration, or a section that contains a collective, without the waits for other ranks. Scored. Of an iteration
    it is ``synchronous`` where collectives were made and no wait was seen: it then holds the waits, too. A row of this
    family is also what the workers of data loaders take for a batch."""
    ON_CORE = 6
    """The same samples without what the thread waited for a core or for workers of a data loader. It tells why own work
    is long."""


@attrs.frozen
class Measured:
    """The samples of one row, summarised.

    Args:
        family: What kind of time.
        name: Section or kernel.
        summary: The statistics, in seconds.
        errors: Standard errors of the median and of the mean, in seconds.
        synchronous: The section contains a collective.
        entries: How many entries there were, where not every one is measured; 0: as many as samples.
    """

    family: Family
    name: str
    summary: Summary
    errors: tuple[float, float] = (0.0, 0.0)
    synchronous: bool = False
    entries: int = 0

    @property
    def every(self) -> int:
        """Return how many entries there were for each sample, at least 1."""
        return min(max(round(self.entries / self.summary[Statistic.NUM]), 1), _MOST_ENTRIES_A_SAMPLE)

    @property
    def total(self) -> float:
        """Return the seconds spent, those of entries that were not measured included."""
        return self.summary[Statistic.AVG] * self.summary[Statistic.NUM] * self.every


def measured(
    family: Family, name: str, seconds: npt.NDArray[np.float64], *, synchronous: bool = False, entries: int = 0
) -> Measured | None:
    """Summarise samples, or return None when there are none, so that an empty window has no row at all."""
    if seconds.size == 0:
        return None
    of_median, of_mean = standard_errors(seconds)
    return Measured(family, name, summarise(seconds), (float(of_median), float(of_mean)), synchronous, entries)


def top_k(rows: Iterable[Measured], k: int) -> list[Measured]:
    """Return the ``k`` rows of each family on which most time was spent, in the order of name.

    The order of name breaks ties, so that ranks with equal times choose equal rows.
    """
    by_family: dict[Family, list[Measured]] = {}
    for row in rows:
        by_family.setdefault(row.family, []).append(row)
    chosen: list[Measured] = []
    for family_rows in by_family.values():
        family_rows.sort(key=lambda row: (-row.total, row.name))
        chosen += sorted(family_rows[:k], key=lambda row: row.name)
    return chosen


IGNORED_KERNELS = ("ncclDev",)


def is_ignored_kernel(name: str) -> bool:
    """Return whether a kernel is a collective, whose duration says nothing about this rank."""
    return any(part in name for part in IGNORED_KERNELS)
