"""Sections: the CPU wall time of marked code. Entering and leaving one is this package's hot path.

One :class:`Section` object per name is the context manager itself, reused at every entry, so that entering and
leaving costs two clock readings, one dictionary entry per open thread and one append; nothing is allocated per
entry but the integer.

**Waiting.** In a synchronous job the other ranks wait for a slow rank inside a collective, so a section that
contains a collective is long on the fast ranks. The section finds out by itself whether it contains one: on the
first entries, and on every 64th after that, it reads the sequence number of the process group before and after.
If the number changed in most of them (in one is not enough: some frameworks communicate in their second forward
only), the section is *synchronous*: its duration is a wait and is not scored. The *arrival* is scored instead: the
time from the last release (the end of any synchronous section, which all ranks leave together) to the next
arrival. One rank's clock measures both ends, so clocks need not agree. The rank with the longest gap arrives last,
and the others wait for it. What such a section takes without the waits that were seen in it is scored, too (see
:mod:`straggler.measurement.waits`). ``kind="wait"`` or ``kind="work"`` sets this by hand.

**Threads.** A section may be open on several threads at once, each with its own start. An entry that is left on another
thread, as by a generator that another thread goes on with, is not a sample, which is said once. Entered again by the
thread that has it open (recursion), only the outermost entry counts. An entry that ends with an exception is not a
sample.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, TracebackType
from typing import Literal

from straggler.measurement.samples import Samples
from straggler.measurement.section_timer import ForgettingTimer, SectionTimer
from straggler.measurement.waits import WaitClock

__all__ = ["IN_EVALUATION", "KINDS", "MAX_SAMPLES", "Section", "SectionClock", "SectionKind"]

SectionKind = Literal["auto", "work", "wait"]
KINDS: tuple[SectionKind, ...] = ("auto", "work", "wait")

IN_EVALUATION = " (evaluation)"
"""What a section's name ends with in an evaluation."""

MAX_SAMPLES = 8192
"""Samples kept per section and window; of more, the newest."""

logger = logging.getLogger(__name__)

_FIRST_CHECKS = 8
_CHECK_EVERY = 64
_NEVER = 1 << 62
_LEFT_ELSEWHERE = (
    "straggler: section %r was left on a thread that had not entered it; such entries are not measured: leave it on "
    "the thread that has entered it, for example without a yield inside (said once)"
)


class SectionClock:
    """What the sections of one detector share: the collective counter, the waits and the last release."""

    def __init__(self, collectives: Callable[[], int] | None = None, waits: WaitClock | None = None) -> None:
        self.collectives = collectives
        self.waits = waits
        self.last_release_ns = 0
        self.waited_at_release_ns = 0

    @property
    def waited_ns(self) -> int:
        """Return how long the training thread has waited for other ranks so far; 0 where that is not watched."""
        return 0 if self.waits is None else self.waits.waited_ns


class Section:
    """One named stretch of code. Made by the detector; used as ``with detector.detection_section(name):``."""

    __slots__ = (
        "_apart",
        "_append",
        "_check_at",
        "_checks",
        "_clock",
        "_drained",
        "_hits",
        "_interval",
        "_is_said",
        "_nested",
        "_on_core",
        "_open",
        "_own",
        "_plain",
        "_samples",
        "_seen",
        "_timers",
        "_waited",
        "arrivals",
        "code",
        "entries",
        "kind",
        "lasti",
        "name",
        "place",
        "synchronous",
    )

    def __init__(
        self, name: str, clock: SectionClock, *, profiling_interval: int = 1, kind: SectionKind = "auto"
    ) -> None:
        self.name = name
        self.kind = kind
        self.entries = 0
        self.synchronous = kind == "wait"
        self.code: CodeType | None = None
        self.lasti = -1
        self.place: tuple[str, int] = ("", 0)
        self.arrivals: collections.deque[int] = collections.deque(maxlen=MAX_SAMPLES)
        self._clock = clock
        self._interval = profiling_interval
        self._timers: tuple[SectionTimer, ...] = ()
        self._open: dict[int, int] = {}
        self._nested: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._waited: dict[int, int] = {}
        self._apart: dict[int, tuple[int | None, int] | None] = {}
        self._own: collections.deque[int] = collections.deque(maxlen=MAX_SAMPLES)
        self._on_core: collections.deque[int] = collections.deque(maxlen=MAX_SAMPLES)
        self._checks = 0
        self._is_said = False
        self._drained = 0
        self._hits = 0
        self._samples: collections.deque[int] = collections.deque(maxlen=MAX_SAMPLES)
        self._append = self._samples.append
        self._check_at = _NEVER
        self.look_for_collectives()
        self._replan()

    def look_for_collectives(self) -> None:
        """Find out from the next entry on whether the section contains one, unless its kind was given."""
        if self.kind == "auto" and self._clock.collectives is not None:
            self._check_at = self.entries + -self.entries % self._interval

    def add_timer(self, timer: SectionTimer) -> None:
        """Let a probe measure this section, too."""
        self.timers = (*self._timers, timer)

    @property
    def timers(self) -> tuple[SectionTimer, ...]:
        """What probes measure this section with."""
        return self._timers

    @timers.setter
    def timers(self, timers: tuple[SectionTimer, ...]) -> None:
        self._timers = timers
        self._replan()

    def _replan(self) -> None:
        self._plain = not self._timers and not self.synchronous and self._interval == 1

    def __enter__(self) -> Section:
        entry = self.entries
        self.entries = entry + 1
        thread = get_ident()
        if thread in self._open:
            self._nested[thread] = self._nested.get(thread, 0) + 1
        elif self._plain and entry < self._check_at:
            self._open[thread] = perf_counter_ns()
        else:
            self._enter_with_care(entry, thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = perf_counter_ns()
        thread = get_ident()
        if self._nested and self._nested.get(thread):  # no call to a method: at the limit of recursion it would fail
            self._nested[thread] -= 1
            return
        start = self._open.pop(thread, None)
        if start is None:
            self._give_up_entry()
            return
        if self._plain and not self._seen:
            if kind is None and start:
                self._append(end - start)
        else:
            self._exit_with_care(start, end, thread, failed=kind is not None)

    def _enter_with_care(self, entry: int, thread: int) -> None:
        clock = self._clock
        if entry % self._interval:
            self._open[thread] = 0
            return
        if entry >= self._check_at and clock.collectives is not None:
            self._seen[thread] = clock.collectives()
            # Counted in measured entries, so that a coarse profiling interval still gets its checks.
            following = entry // self._interval + 1
            if self._checks >= _FIRST_CHECKS - 1:
                following += _CHECK_EVERY - following % _CHECK_EVERY
            self._check_at = following * self._interval
        for timer in self._timers:
            timer.enter()
        start = perf_counter_ns()
        if self.synchronous:
            waited = clock.waited_ns
            if clock.last_release_ns:
                self.arrivals.append(start - clock.last_release_ns - waited + clock.waited_at_release_ns)
            self._waited[thread] = waited
            self._apart[thread] = None if clock.waits is None else clock.waits.apart()
        self._open[thread] = start

    def _exit_with_care(self, start: int, end: int, thread: int, *, failed: bool) -> None:
        clock = self._clock
        before = self._seen.pop(thread, None)
        before_waits, before_apart = self._waited.pop(thread, None), self._apart.pop(thread, None)
        if before is not None and clock.collectives is not None:
            self._checks += 1
            self._hits += clock.collectives() != before
            self.synchronous = 2 * self._hits > self._checks
            self._replan()
        if not start:
            return
        for timer in self._timers:
            timer.exit()
        if failed:
            return
        self._append(end - start)
        if self.synchronous:
            clock.last_release_ns = end
            clock.waited_at_release_ns = clock.waited_ns
            if before_waits is not None and clock.waited_at_release_ns > before_waits:
                own = end - start - clock.waited_at_release_ns + before_waits
                self._own.append(own)
                apart = clock.waits.apart_since(before_apart) if clock.waits is not None and before_apart else 0
                self._on_core.append(own - apart)

    def _give_up_entry(self) -> None:
        """Forget the oldest entry, which another thread than the one that leaves it has begun."""
        opened = min(list(self._open.items()), key=lambda entry: entry[1], default=None)
        if opened is not None and self._nested.get(opened[0]):
            self._nested[opened[0]] -= 1
        elif opened is not None:
            for by_thread in (self._open, self._seen, self._waited, self._apart):
                by_thread.pop(opened[0], None)
            for timer in self._timers:
                if isinstance(timer, ForgettingTimer):
                    timer.forget(opened[0])
        if not self._is_said:
            self._is_said = True
            logger.warning(_LEFT_ELSEWHERE, self.name)

    def drain(self) -> Samples:
        """Return this window's samples and forget them: a few assignments, since training waits for this."""
        samples, self._samples = self._samples, collections.deque(maxlen=MAX_SAMPLES)
        self._append = self._samples.append
        arrivals, self.arrivals = self.arrivals, collections.deque(maxlen=MAX_SAMPLES)
        own, self._own = self._own, collections.deque(maxlen=MAX_SAMPLES)
        on_core, self._on_core = self._on_core, collections.deque(maxlen=MAX_SAMPLES)
        if self._clock.waits is None or not self._clock.waits.tells_cores:
            on_core.clear()
        entries, self._drained = self.entries - self._drained, self.entries
        return Samples(samples, arrivals, own, on_core, entries)

    @property
    def is_open(self) -> bool:
        """Return whether any thread is inside."""
        return bool(self._open)
