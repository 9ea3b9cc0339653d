"""Probe: the interface behind which everything is measured, and the choice among probes.

A probe is asked once whether it can work here, and says why if not; the detector logs the choice once. After
that it may add a timer to each section, and at every report hands over what it has gathered: rows (samples that
become :class:`straggler.measurement.measured.Measured`) and, for device and host, their state. What it
could not measure it counts in ``dropped`` and says in ``notes``. What it raises does not reach training:
:class:`straggler.probes.guarded.GuardedProbe` is around it. A probe whose samples have to be divided exactly at the end
of a window, or that reads something of the thread that trains, is a :class:`CuttingProbe` too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import attrs
import numpy as np
import numpy.typing as npt

from straggler.measurement.measured import Measured
from straggler.measurement.section import Section

__all__ = ["Collected", "CuttingProbe", "Probe", "cut"]


@attrs.define
class Collected:
    """What a probe hands over at a report.

    Args:
        rows: Summarised samples since the last report.
        device: One value for each of ``measured.STATE_FIELDS``, NaN where the probe does not know it; None from a
            probe that knows none of them.
        dropped: Records lost since the last report.
        notes: Sentences for the report, for people.
    """

    rows: list[Measured] = attrs.field(factory=list)
    device: npt.NDArray[np.float64] | None = None
    dropped: int = 0
    notes: list[str] = attrs.field(factory=list)


class Probe(Protocol):
    """Protocol of one way of measuring."""

    name: str

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can; no side effects beyond imports."""
        ...

    def start(self) -> None:
        """Begin; called once, after ``unavailable_because`` returned ``""``."""

    def watch(self, section: Section, profile_cuda: bool) -> None:
        """Add a timer to a section that was just made, or do nothing."""

    def collect(self) -> Collected:
        """Hand over what came since the last call; called on the thread that makes reports, while training goes on."""
        ...

    def stop(self) -> None:
        """End; nothing is measured after this."""


@runtime_checkable
class CuttingProbe(Protocol):
    """Protocol of a probe whose windows end exactly where training ends them, and not a moment later."""

    def cut(self) -> Callable[[], Collected]:
        """End the window, on the thread that trains and without any work that can be done later.

        Returns:
            Called once, on the thread that makes reports, in place of ``collect``: hands over what came until now.
        """
        ...


def cut(probe: Probe) -> Callable[[], Collected]:
    """End a probe's window where it can; return the function that hands it over."""
    return probe.cut() if isinstance(probe, CuttingProbe) else probe.collect
