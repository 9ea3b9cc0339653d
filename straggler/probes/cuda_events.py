"""CUDA events around a section: its GPU time, without any profiler.

Two events are recorded per measured entry on the current stream. The report asks which of them are complete, so that
no code waits for the GPU; pairs that are not complete stay for the next window. Events are reused. At most
``MAX_PENDING`` pairs per section are kept; further ones are counted as dropped.

There is one row per section, called ``cuda:<section>``. Of a rank whose kernels are not known, these rows are what the
GPU score is made of; with kernels, they are only reported: they hold the time of the kernels a second time, and of all
entries instead of the sampled ones. Sections that contain a collective are left out: their GPU time is a wait too.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

import numpy as np

from straggler.measurement.measured import Family, measured
from straggler.measurement.section import Section
from straggler.probes.probe import Collected

__all__ = ["MAX_PENDING", "CudaEventsProbe", "Event", "EventBackend"]

MAX_PENDING = 4096


class Event(Protocol):
    """The part of ``torch.cuda.Event`` that is used."""

    def record(self) -> None:
        """Record the event on the current stream."""

    def query(self) -> bool:
        """Return whether the stream has reached the event."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return the milliseconds from this event to another."""
        ...


class EventBackend(Protocol):
    """Makes CUDA events."""

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        ...

    def event(self) -> Event:
        """Make an event."""
        ...

    def use_device(self) -> None:
        """Make the device of the events this thread's own, before they are read."""


class _TorchEvents:
    """Makes the CUDA events of torch."""

    def __init__(self) -> None:
        self._device: int | None = None

    def unavailable_because(self) -> str:
        import torch

        if not torch.cuda.is_available():
            return "torch sees no CUDA device"
        return ""

    def event(self) -> Event:
        import torch

        self._device = torch.cuda.current_device()
        made: Event = torch.cuda.Event(enable_timing=True)
        return made

    def use_device(self) -> None:
        if self._device is not None:
            import torch

            # A thread begins on device 0, where its first call would make a context that takes memory there.
            torch.cuda.set_device(self._device)


class _Timer:
    """One section's pairs of events."""

    def __init__(self, section: Section, make: Callable[[], Event]) -> None:
        self.section = section
        self._dropped = 0
        self._unreadable = 0
        self._told = 0
        self.pending: collections.deque[tuple[Event, Event]] = collections.deque()
        self._make = make
        self._free: list[tuple[Event, Event]] = []
        self._open: tuple[Event, Event] | None = None
        self._opened_by = 0

    def enter(self) -> None:
        if self._open is not None or len(self.pending) >= MAX_PENDING:
            # Entered by a second thread, or nobody collects: one stream order cannot tell two entries apart.
            self._dropped += 1
            return
        pair = self._free.pop() if self._free else (self._make(), self._make())
        pair[0].record()
        self._open, self._opened_by = pair, get_ident()

    def exit(self) -> None:
        if self._open is None or self._opened_by != get_ident():  # of an entry that was dropped
            return
        pair, self._open = self._open, None
        pair[1].record()
        self.pending.append(pair)

    def forget(self, thread: int) -> None:
        if self._open is not None and self._opened_by == thread:
            self._free.append(self._open)
            self._open = None
            self._dropped += 1

    def take(self, errors: list[Exception]) -> list[float]:
        """Return the seconds of those pairs that are over; drop those that cannot be read, and add why to ``errors``.

        An event that was recorded while a CUDA graph was captured is one of these.
        """
        seconds: list[float] = []
        while self.pending:
            pair = self.pending[0]
            try:
                if not pair[1].query():
                    break
                milliseconds = float(pair[0].elapsed_time(pair[1]))
                if not 0.0 <= milliseconds < math.inf:
                    raise ValueError(f"two events are {milliseconds} ms apart")
                seconds.append(milliseconds * 1e-3)
                self._free.append(pair)
            except Exception as error:  # noqa: BLE001 - whatever CUDA makes of it, the others are still good
                errors.append(error)
                self._unreadable += 1
            self.pending.popleft()
        return seconds

    def newly_dropped(self) -> int:
        """Return how many entries were lost since the last call; each count is of one thread only."""
        dropped = self._dropped + self._unreadable
        told, self._told = self._told, dropped
        return dropped - told


class CudaEventsProbe:
    """Measures the GPU time of sections."""

    name = "CUDA events"

    def __init__(self, backend: EventBackend | None = None) -> None:
        self._backend: EventBackend = backend or _TorchEvents()
        self._timers: list[_Timer] = []

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        return self._backend.unavailable_because()

    def start(self) -> None:
        """Begin to measure."""
        return

    def watch(self, section: Section, profile_cuda: bool) -> None:
        """Add a timer to a new section, where this probe has one."""
        if profile_cuda:
            timer = _Timer(section, self._backend.event)
            self._timers.append(timer)
            section.add_timer(timer)

    def collect(self) -> Collected:
        """Hand over what came since the last call."""
        collected = Collected()
        errors: list[Exception] = []
        taken = 0
        self._backend.use_device()
        for timer in self._timers:
            seconds = np.array(timer.take(errors), dtype=np.float64)
            taken += seconds.size
            collected.dropped += timer.newly_dropped()
            if timer.section.synchronous:
                continue
            row = measured(Family.GPU_SECTION, f"cuda:{timer.section.name}", seconds[seconds > 0.0])
            if row is not None:
                collected.rows.append(row)
        if errors and not taken:
            raise errors[-1]  # not one event can be read: its guard says so, and stops the probe if it lasts
        return collected

    def stop(self) -> None:
        """End; nothing is measured after this."""
        self._timers.clear()
