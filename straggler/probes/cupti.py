"""CUPTI kernels: what ran on the GPU, by name, through ``cupti-python`` (extra ``gpu``).

The binding makes one Python object per record, so it samples: kernel activity is on during one measured entry in
``sample_every`` of each section, and off otherwise. Records arrive on a thread of CUPTI's own; they are only
appended there, and summarised at the report. Records that CUPTI drops are counted and reported.

CUPTI knows one subscriber per process. Another one (a profiler) is detected when activity is first switched on,
and while ``torch.profiler`` runs this probe records nothing; the report notes both. A session of ``torch.profiler``
registers callbacks of its own and leaves them behind, so that no record reaches this probe any more (seen with torch
2.11 and CUPTI 13.0). It registers its own again after a session that it has seen, and when sampled entries that had
kernels before have none. After ``MAX_FAILURES`` errors the probe switches itself off, so that it does not slow the job.

Collective kernels (``nccl*``) last as long as the last rank takes to come. They are left out of scores and summed
into one row of waiting, which shows the ranks that wait.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable
from threading import get_ident

import numpy as np

from resilience_core.system.clock import NS_PER_SECOND
from straggler.measurement.measured import Family, is_ignored_kernel, measured
from straggler.measurement.section import Section
from straggler.probes.cupti_backend import CuptiBackend, CuptiPython, KernelRecord
from straggler.probes.probe import Collected

__all__ = ["MAX_FAILURES", "CuptiProbe"]

MAX_FAILURES = 3
MAX_RECORDS = 200_000


def _torch_profiler_runs() -> bool:
    import torch

    return bool(torch.autograd._profiler_enabled())  # pyright: ignore[reportPrivateImportUsage] - torch has no other


class _Sampler:
    """One section's share in the sampling."""

    def __init__(self, probe: CuptiProbe) -> None:
        self._probe = probe
        self._entries = 0
        self._on: set[int] = set()
        """Threads whose entries are sampled now: each switches off what it has switched on."""

    def enter(self) -> None:
        due = self._entries % self._probe.sample_every == 0
        self._entries += 1
        if due and self._probe.switch_on():
            self._on.add(get_ident())

    def exit(self) -> None:
        if self._on:
            self.forget(get_ident())

    def forget(self, thread: int) -> None:
        if thread in self._on:
            self._on.remove(thread)
            self._probe.switch_off()


class CuptiProbe:
    """Measures kernel times by name.

    Args:
        backend: Instead of the real CUPTI.
        sample_every: One measured entry in so many has its kernels recorded.
        other_profiler: Whether another user of CUPTI is at work now.
    """

    name = "CUPTI kernels"

    def __init__(
        self,
        backend: CuptiBackend | None = None,
        *,
        sample_every: int = 8,
        other_profiler: Callable[[], bool] = _torch_profiler_runs,
    ) -> None:
        self.sample_every = sample_every
        self._backend: CuptiBackend = backend or CuptiPython()
        self._other_profiler = other_profiler
        self._records: collections.deque[KernelRecord] = collections.deque(maxlen=MAX_RECORDS)
        self._delivered = 0
        self._lock = threading.Lock()
        self._open = 0
        self._failures = 0
        self._off_because = ""
        self._notes: list[str] = []
        self._kept_still = 0
        self._sampled = 0
        self._has_delivered = False
        self._empty_entries = 0
        self._is_said = False
        self._is_displaced = False
        self._is_left_on = False

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        return self._backend.unavailable_because()

    def start(self) -> None:
        """Begin to measure."""
        # Callbacks that could not be registered now are registered when kernels are first recorded.
        self._is_displaced = not self._guarded(lambda: self._backend.register(self._deliver))

    def watch(self, section: Section, profile_cuda: bool) -> None:
        """Add a timer to a new section, where this probe has one."""
        if profile_cuda:
            section.add_timer(_Sampler(self))

    def _deliver(self, records: Iterable[KernelRecord]) -> None:
        for record in records:
            self._delivered += 1
            self._records.append(record)

    def switch_on(self) -> bool:
        """Record kernels until as many :meth:`switch_off`; return False when they cannot be now."""
        if self._off_because:
            return False
        if self._profiler_runs(unless_known=True):
            self._kept_still += 1
            self._is_displaced = True
            return False
        with self._lock:
            self._open += 1
            # A section around this one may be open since before the callbacks were lost.
            if (self._open == 1 or self._is_displaced) and not self._guarded(self._enable):
                self._open -= 1
                return False
            self._sampled += 1
        return True

    def _enable(self) -> None:
        if self._is_displaced:
            if self._open > 1:
                self._backend.disable()
            self._backend.register(self._deliver)
            self._is_displaced = False
        self._backend.enable()

    def switch_off(self) -> None:
        """Cease to record kernels, once every :meth:`switch_on` was followed by this."""
        with self._lock:
            self._open = max(self._open - 1, 0)
            if self._open == 0:
                self._disable()

    def _disable(self) -> None:
        self._is_left_on = self._profiler_runs(unless_known=False)
        if self._is_left_on:  # it began inside the section, and may lose its kernels; collect() disables them later
            self._is_displaced = True
        else:
            self._guarded(self._backend.disable)

    def _profiler_runs(self, *, unless_known: bool) -> bool:
        answers = [unless_known]
        self._guarded(lambda: answers.append(self._other_profiler()))
        return answers[-1]

    def _guarded(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a backend may raise anything, and training goes on
            self._failures += 1
            if self._off_because:
                return False
            if "MULTIPLE_SUBSCRIBERS" in str(error):
                self._off_because = f"another CUPTI subscriber is in this process ({error})"
            elif self._failures >= MAX_FAILURES:
                self._off_because = f"CUPTI failed {self._failures} times ({error})"
            if self._off_because:
                self._notes.append(f"kernels are not measured: {self._off_because}")
            return False
        return True

    def collect(self) -> Collected:
        """Hand over what came since the last call."""
        collected = Collected()
        with self._lock:
            if self._is_left_on and not self._open:
                self._disable()
        if not self._off_because:
            self._guarded(self._backend.flush)
        lost: list[int] = []
        if not self._off_because:
            self._guarded(lambda: lost.append(self._backend.dropped()))
        # A copy: CUPTI's thread may be about to append to this deque, which would end an iteration over it.
        full, self._records = self._records, collections.deque(maxlen=MAX_RECORDS)
        records = list(full)
        delivered, self._delivered = self._delivered, 0
        with self._lock:
            self._look_whether_displaced(delivered)
        collected.dropped = sum(lost) + max(delivered - len(records), 0)
        seconds: dict[str, list[float]] = collections.defaultdict(list)
        waits: list[float] = []
        for name, start, end in records:
            if end > start:
                (waits if is_ignored_kernel(name) else seconds[name]).append((end - start) / NS_PER_SECOND)
        for name, durations in seconds.items():
            row = measured(Family.KERNEL, name, np.array(durations))
            if row is not None:
                collected.rows.append(row)
        row = measured(Family.WAIT, "collective kernels", np.array(waits))
        if row is not None:
            collected.rows.append(row)
        collected.notes, self._notes = self._notes, []
        if self._kept_still:
            collected.notes.append(f"kernels were not sampled {self._kept_still} times: torch.profiler was running")
            self._kept_still = 0
        return collected

    def _look_whether_displaced(self, delivered: int) -> None:
        sampled, self._sampled = self._sampled, 0
        if delivered:
            if self._empty_entries and not self._has_delivered and not self._is_said:
                self._say_empty(self._empty_entries, "CUPTI has kernels only now, and had none")
            self._has_delivered, self._is_said, self._empty_entries = True, False, 0
        elif sampled and not self._off_because:
            # Callbacks may have been taken before anything came, too: registering them again costs a millisecond.
            self._is_displaced = True
            self._empty_entries += sampled
            if self._has_delivered:
                self._say_empty(sampled, "CUPTI delivered no kernel")
                self._is_said = True
            self._has_delivered = False

    def _say_empty(self, entries: int, what: str) -> None:
        self._notes.append(
            f"{what} from {entries} sampled entries: they ran none, or a profiler took the records; the callbacks were "
            "registered again, or are at the next sample"
        )

    def stop(self) -> None:
        """End; nothing is measured after this."""
        if self._open or self._is_left_on:
            self._disable()
        self._open = 0
        self._off_because = self._off_because or "stopped"
