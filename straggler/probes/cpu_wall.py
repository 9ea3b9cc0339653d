"""CPU wall time of sections, available on every machine. The sections hold the samples; the probe collects them."""

from __future__ import annotations

from collections.abc import Callable

from straggler.measurement.measured import Family, measured
from straggler.measurement.section import Samples, Section
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
        return self.cut()()

    def cut(self) -> Callable[[], Collected]:
        """End the window; return the function that summarises it."""
        windows = [(section.name, section.synchronous, section.drain()) for section in self._sections]
        return lambda: _summarised(windows)

    def stop(self) -> None:
        """End; nothing is measured after this."""
        self._sections.clear()


def _summarised(windows: list[tuple[str, bool, Samples]]) -> Collected:
    collected = Collected()
    for name, is_synchronous, samples in windows:
        row = measured(Family.SECTION, name, samples.durations(), synchronous=is_synchronous)
        if row is not None:
            collected.rows.append(row)
        gap = measured(Family.ARRIVAL, name, samples.arrivals())
        if gap is not None and is_synchronous:
            collected.rows.append(gap)
    return collected
