"""Own work of each iteration: its time without the waits for other ranks, see :mod:`straggler.measurement.waits`.

This is what finds the slow rank where the script marks nothing, or a single section round all of the loop.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from resilience_core.system.clock import NS_PER_SECOND
from straggler.measurement.collectives import collective_counter
from straggler.measurement.loaders import Batches, batches_made
from straggler.measurement.measured import (
    BATCHES_OF_WORKERS,
    OWN_WORK_OF_AN_ITERATION,
    STATE_FIELDS,
    Family,
    measured,
)
from straggler.measurement.section import MAX_SAMPLES, Section
from straggler.measurement.waits import WaitClock, watch
from straggler.probes.probe import Collected

__all__ = ["OwnWorkProbe", "WatchedWaits", "has_group"]


_LOADER = STATE_FIELDS.index("loader_waited")


class OwnWorkProbe:
    """Measures the iterations of a rank that has others to wait for.

    Args:
        waits: Of the thread that trains.
        collectives: Reads how many collectives there have been; None where that cannot be told.
    """

    name = "own work"

    def __init__(self, waits: WaitClock, collectives: Callable[[], int] | None) -> None:
        self._waits = waits
        self._collectives = collectives
        self._began = 0
        self._waited = 0
        self._is_left_out = False
        self._apart: tuple[int | None, int] = (None, 0)
        self._own: collections.deque[int] = collections.deque(maxlen=MAX_SAMPLES)
        self._on_core: collections.deque[int] = collections.deque(maxlen=MAX_SAMPLES)
        self._before = (0, 0)
        self._loaded = Batches(0, 0, 0)
        self._cut = (0, 0)

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        return ""

    def start(self) -> None:
        """Begin to measure."""
        self._before, self._loaded = self._counted(), batches_made().so_far()
        self._cut = perf_counter_ns(), self._waits.loader_ns

    def watch(self, section: Section, profile_cuda: bool) -> None:
        """Do nothing: sections take their own waits out by themselves."""
        return

    def tick(self) -> None:
        """End an iteration."""
        now, waited = perf_counter_ns(), self._waits.waited_ns
        if self._began and not self._is_left_out:
            own = now - self._began - waited + self._waited
            self._own.append(own)
            self._on_core.append(own - self._waits.apart_since(self._apart))
        self._began, self._waited, self._apart, self._is_left_out = now, waited, self._waits.apart(), False

    def leave_out(self) -> None:
        """Leave the iteration out that is going on: it holds more than a step, a checkpoint for example."""
        self._is_left_out = True

    def collect(self) -> Collected:
        """Hand over what came since the last call."""
        return self.cut()()

    def cut(self) -> Callable[[], Collected]:
        """End the window; return the function that summarises it."""
        own, self._own = self._own, collections.deque(maxlen=MAX_SAMPLES)
        on_core, self._on_core = self._on_core, collections.deque(maxlen=MAX_SAMPLES)
        self._waits.end_window()
        if not self._waits.tells_cores and not self._waits.loader_ns:
            on_core.clear()
        counted = self._counted()
        begun, seen = counted[0] - self._before[0], counted[1] - self._before[1]
        self._before = counted
        loads = self._loads()
        return lambda: _summarised(own, on_core, loads, is_unseen=begun > 0 and seen == 0)

    def _loads(self) -> _Loads:
        (began, waited), self._cut = self._cut, (perf_counter_ns(), self._waits.loader_ns)
        before, self._loaded = self._loaded, batches_made().so_far()
        return _Loads((self._cut[1] - waited) / max(self._cut[0] - began, 1), self._loaded.since(before))

    def stop(self) -> None:
        """End; nothing is measured after this."""
        self._own.clear()
        self._on_core.clear()

    def _counted(self) -> tuple[int, int]:
        return (0 if self._collectives is None else self._collectives()), self._waits.seen


class _Loads(NamedTuple):
    """What is known of data loaders in a window."""

    waited: float
    """Share of the time that the thread waited for their workers."""
    batches: Batches
    """Those that these have made."""


def _summarised(
    own: collections.deque[int], on_core: collections.deque[int], loads: _Loads, *, is_unseen: bool
) -> Collected:
    collected = Collected()
    collected.device = np.full(len(STATE_FIELDS), np.nan)
    collected.device[_LOADER] = min(loads.waited, 1.0)
    for family, nanoseconds in ((Family.OWN_WORK, own), (Family.ON_CORE, on_core)):
        seconds = np.maximum(np.array(list(nanoseconds), dtype=np.float64) / NS_PER_SECOND, 0.0)
        row = measured(family, OWN_WORK_OF_AN_ITERATION, seconds, synchronous=is_unseen)
        collected.rows += [] if row is None else [row]
    made = loads.batches
    for family, took_ns in ((Family.OWN_WORK, made.took_ns), (Family.ON_CORE, made.took_ns - made.waited_ns)):
        # Only sums are shared with the workers. A mean is what counts: they work ahead.
        each = np.full(min(made.number, MAX_SAMPLES), took_ns / max(made.number, 1) / NS_PER_SECOND)
        row = measured(family, BATCHES_OF_WORKERS, each)
        collected.rows += [] if row is None else [row]
    return collected


class WatchedWaits:
    """The waits of a rank, watched where there is anybody to wait for.

    Attributes:
        clock: Adds them up; None where nobody is waited for.
        collectives: Reads how many collectives there have been; None where that cannot be told.
        own_work: Measures the iterations without them; None as ``clock``.

    Args:
        world_size: Ranks that are compared with each other; 1: nothing is watched.
    """

    def __init__(self, world_size: int) -> None:
        self.clock: WaitClock | None = None
        self.own_work: OwnWorkProbe | None = None
        self.collectives: Callable[[], int] | None = None
        self._stop: Callable[[], None] | None = None
        if world_size > 1 and has_group():
            self.clock = WaitClock()
            self.collectives = collective_counter(self.clock)
            self.own_work = OwnWorkProbe(self.clock, self.collectives)
            self._stop = watch(self.clock)

    def tick(self) -> None:
        """End an iteration."""
        if self.own_work is not None:
            self.own_work.tick()

    def leave_out(self) -> None:
        """Leave the iteration out that is going on."""
        if self.own_work is not None:
            self.own_work.leave_out()

    def stop(self) -> None:
        """Watch no longer, and put back what was replaced for it."""
        if self._stop is not None:
            self._stop()
        if self.clock is not None:
            self.clock.close()


def has_group() -> bool:
    """Return whether this process has its default process group."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()
