"""The samples that a section has taken in a window."""

from __future__ import annotations

import collections

import numpy as np
import numpy.typing as npt

from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["Samples"]


class Samples:
    """The samples of a window that has ended, still as they were taken."""

    __slots__ = ("_arrivals", "_durations", "_on_core", "_own", "entries")

    def __init__(
        self,
        durations: collections.deque[int],
        arrivals: collections.deque[int],
        own: collections.deque[int],
        on_core: collections.deque[int],
        entries: int,
    ) -> None:
        self._durations, self._arrivals, self._own, self._on_core = durations, arrivals, own, on_core
        self.entries = entries
        """How often the section was entered, measured or not."""

    def durations(self) -> npt.NDArray[np.float64]:
        """Return the durations of the entries, in seconds, flat float64."""
        return _seconds(self._durations)

    def arrivals(self) -> npt.NDArray[np.float64]:
        """Return the times from the last release to each arrival, in seconds, flat float64."""
        return _seconds(self._arrivals)

    def own(self) -> npt.NDArray[np.float64]:
        """Return the durations of entries without the waits that were seen in them, in seconds, flat float64."""
        return _seconds(self._own)

    def on_core(self) -> npt.NDArray[np.float64]:
        """Return these without what the thread waited for a core; empty where the kernel does not tell that."""
        return _seconds(self._on_core)


def _seconds(nanoseconds: collections.deque[int]) -> npt.NDArray[np.float64]:
    # A copy: a thread that was inside the section when its window ended may be about to append.
    return np.array(list(nanoseconds), dtype=np.float64) / NS_PER_SECOND
