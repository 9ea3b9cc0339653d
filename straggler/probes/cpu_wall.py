"""CPU wall time of sections, available on every machine. The sections hold the samples; the probe collects them."""

from __future__ import annotations

from straggler.measurement.measured import Family, measured
from straggler.measurement.section import Section
from straggler.probes.probe import Collected

__all__ = ["CpuWallProbe"]


class CpuWallProbe:
    """Makes the rows of sections and arrivals."""

    name = "CPU wall time"

    def __init__(self) -> None:
        self._sections: list[Section] = []

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        return ""

    def start(self) -> None:
        """Begin to measure."""
        return

    def watch(self, section: Section, profile_cuda: bool) -> None:
        """Add a timer to a new section, where this probe has one."""
        self._sections.append(section)

    def collect(self) -> Collected:
        """Hand over what came since the last call."""
        collected = Collected()
        for section in self._sections:
            seconds, arrivals = section.drain()
            row = measured(Family.SECTION, section.name, seconds, synchronous=section.synchronous)
            if row is not None:
                collected.rows.append(row)
            gap = measured(Family.ARRIVAL, section.name, arrivals)
            if gap is not None and section.synchronous:
                collected.rows.append(gap)
        return collected

    def stop(self) -> None:
        """End; nothing is measured after this."""
        self._sections.clear()
