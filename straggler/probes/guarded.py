"""GuardedProbe: whatever a probe or a library beneath it raises, training goes on, and the loss is said once.

Every probe of a detector is behind one. An exception of a section's timer costs that sample, one of ``collect`` what
was measured since the last report; both are counted as lost records. After ``MAX_FAILURES`` of them, and after one in
``start``, the probe is stopped and never called again.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable

import numpy as np

from straggler.measurement.measured import STATE_FIELDS, Measured
from straggler.measurement.section import Section
from straggler.measurement.section_timer import ForgettingTimer, SectionTimer
from straggler.probes.probe import Collected, Probe, cut

__all__ = ["MAX_FAILURES", "GuardedProbe"]

MAX_FAILURES = 3


class GuardedProbe:
    """A probe that raises nothing.

    Attributes:
        lost_because: Why it was stopped, ``""`` while it works.

    Args:
        probe: What measures.
    """

    def __init__(self, probe: Probe) -> None:
        self.name = probe.name
        self.lost_because = ""
        self._probe = probe
        self._failures = 0
        self._dropped = 0
        self._notes: list[str] = []
        self._lock = threading.Lock()

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        try:
            return self._probe.unavailable_because()
        except Exception as error:  # noqa: BLE001 - a library may raise anything
            return _said(error)

    def start(self) -> None:
        """Begin to measure; ``lost_because`` says when that failed."""
        try:
            self._probe.start()
        except Exception as error:  # noqa: BLE001 - a library may raise anything
            self._stop(f"it did not start: {_said(error)}")

    def watch(self, section: Section, profile_cuda: bool) -> None:
        """Add the probe's timers to a new section, each behind a guard."""
        before = section.timers
        if self.lost_because:
            return
        try:
            self._probe.watch(section, profile_cuda)
        except Exception as error:  # noqa: BLE001 - a library may raise anything
            section.timers = before
            self.failed(f"section {section.name!r} has no timer", error)
            return
        section.timers = (*before, *(_GuardedTimer(timer, self) for timer in section.timers[len(before) :]))

    def collect(self) -> Collected:
        """Hand over what came since the last call; only what was lost, once the probe is."""
        return self.cut()()

    def cut(self) -> Callable[[], Collected]:
        """End the window of a probe that can; return the function that hands it over, and raises nothing either."""
        hand_over: Callable[[], Collected] | None = None
        if not self.lost_because:
            try:
                hand_over = cut(self._probe)
            except Exception as error:  # noqa: BLE001 - a library may raise anything
                self._nothing_known(error)
        return lambda: self._handed_over(hand_over)

    def _handed_over(self, hand_over: Callable[[], Collected] | None) -> Collected:
        collected = Collected()
        if hand_over is not None and not self.lost_because:
            try:
                collected = _sound(hand_over())
            except Exception as error:  # noqa: BLE001 - a library may raise anything
                self._nothing_known(error)
        with self._lock:  # a timer may fail on the thread that trains meanwhile
            collected.dropped += self._dropped
            collected.notes += self._notes
            self._dropped, self._notes = 0, []
        return collected

    def _nothing_known(self, error: Exception) -> None:
        with self._lock:
            self._notes.append(f"{self.name}: nothing is known since the last report ({_said(error)})")
        self.failed("collect", error)

    def stop(self) -> None:
        """End; nothing is measured after this."""
        self.lost_because = self.lost_because or "stopped"
        try:
            self._probe.stop()
        except Exception:  # noqa: BLE001 - nothing is measured any more, so nothing is lost
            return

    def failed(self, where: str, error: Exception) -> None:
        """Count a failure as one lost record, and stop the probe at the last one that is borne."""
        with self._lock:
            self._failures += 1
            self._dropped += 1
            is_last = self._failures >= MAX_FAILURES and not self.lost_because
        if is_last:
            self._stop(f"{self._failures} errors, the latest: {where}: {_said(error)}")

    def _stop(self, because: str) -> None:
        with self._lock:
            self.lost_because = because
            self._notes.append(f"{self.name}: no longer measured: {because}")
        self.stop()


class _GuardedTimer:
    """A section's timer that raises nothing."""

    __slots__ = ("_guard", "_timer")

    def __init__(self, timer: SectionTimer, guard: GuardedProbe) -> None:
        self._timer, self._guard = timer, guard

    def enter(self) -> None:
        if not self._guard.lost_because:
            try:
                self._timer.enter()
            except Exception as error:  # noqa: BLE001 - a library may raise anything
                self._guard.failed("at the beginning of a section", error)

    def exit(self) -> None:
        if not self._guard.lost_because:
            try:
                self._timer.exit()
            except Exception as error:  # noqa: BLE001 - a library may raise anything
                self._guard.failed("at the end of a section", error)

    def forget(self, thread: int) -> None:
        if isinstance(self._timer, ForgettingTimer) and not self._guard.lost_because:
            try:
                self._timer.forget(thread)
            except Exception as error:  # noqa: BLE001 - a library may raise anything
                self._guard.failed("where a section was left on another thread", error)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _sound(collected: Collected) -> Collected:
    """Return a copy that a report can use.

    Raises:
        TypeError: A part of it is of another type.
        ValueError: The device's state has another shape, or the number of lost records is negative.
    """
    if not isinstance(collected, Collected) or not all(isinstance(row, Measured) for row in collected.rows):
        raise TypeError(f"it returned {collected!r:.100}")
    device = None if collected.device is None else np.asarray(collected.device, dtype=np.float64)
    if device is not None and device.shape != (len(STATE_FIELDS),):
        raise ValueError(f"a device's state has {len(STATE_FIELDS)} values, not the shape {device.shape}")
    dropped = operator.index(collected.dropped)
    if dropped < 0:
        raise ValueError(f"it lost {dropped} records")
    return Collected(list(collected.rows), device, dropped, [str(note) for note in collected.notes])
