"""CPU wall time of sections, available on every machine. The sections hold the samples; the probe collects them."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from straggler.measurement.measured import Family, measured
from straggler.measurement.samples import Samples
from straggler.measurement.section import Section
from straggler.probes.probe import Collected

__all__ = ["CpuWallProbe"]

_LEAST_SHARE = 0.05
"""Of the time of a window: what a section that only communicates does beside that is noise, and matters to nobody."""


class CpuWallProbe:
    """Makes the rows of sections and arrivals."""

    name = "CPU wall time"

    def __init__(self) -> None:
        self._sections: list[Section] = []
        self._cut = time.monotonic()

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
        windows = [(s.name, s.synchronous, s.is_open, s.drain()) for s in self._sections]
        now = time.monotonic()
        elapsed, self._cut = now - self._cut, now
        return lambda: _summarised(windows, elapsed)

    def stop(self) -> None:
        """End; nothing is measured after this."""
        self._sections.clear()


def _summarised(windows: list[tuple[str, bool, bool, Samples]], elapsed: float) -> Collected:
    collected = Collected()
    for name, is_synchronous, is_open, samples in windows:
        entries = samples.entries
        row = measured(Family.SECTION, name, samples.durations(), synchronous=is_synchronous, entries=entries)
        if row is not None:
            collected.rows.append(row)
        elif is_open and entries > 1:
            collected.notes.append(
                f"section {name!r} was entered {entries} times while it was open, so nothing was measured: "
                "if there is a yield inside, leave the section before it"
            )
        gap = measured(Family.ARRIVAL, name, samples.arrivals(), entries=entries)
        if gap is not None and is_synchronous:
            collected.rows.append(gap)
        seconds = samples.own()
        if is_synchronous and seconds.sum() >= _LEAST_SHARE * elapsed:
            for family, own in ((Family.OWN_WORK, seconds), (Family.ON_CORE, samples.on_core())):
                row = measured(family, f"own work in {name}", np.maximum(own, 0.0), entries=entries)
                collected.rows += [] if row is None else [row]
    return collected
