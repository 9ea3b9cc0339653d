"""Host CPU: whether a rank waited for a core, or its cgroup's quota was spent.

Read once per report, by :mod:`straggler.measurement.core_waits` and from ``cpu.stat`` of the process's own cgroup (v1
``throttled_time`` in nanoseconds, v2 ``throttled_usec``). These are reasons in a verdict and never scores: a rank
that waits for a core and a rank that computes longer are equally slow, but have different remedies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from resilience_core.system.clock import NS_PER_SECOND
from straggler.measurement.core_waits import CoreWaits
from straggler.measurement.measured import STATE_FIELDS
from straggler.measurement.section import Section
from straggler.probes.probe import Collected

__all__ = ["HostCpuProbe"]

_WAITED, _THROTTLED = STATE_FIELDS.index("cpu_waited"), STATE_FIELDS.index("cpu_throttled")


class HostCpuProbe:
    """Measures how long the thread that trains waited for a core, or its cgroup was throttled.

    Args:
        proc: Where the kernel tells of processes.
        cgroups: Where it tells of control groups.
    """

    name = "CPU waits"

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._before: dict[str, float] = {}
        self._began = 0.0

    def unavailable_because(self) -> str:
        """Return why it cannot work on this machine, ``""`` when it can."""
        return "" if self._waited() else "this kernel keeps no scheduler statistics"

    def start(self) -> None:
        """Begin to measure."""
        self._before, self._began = {**self._waited(), **self._throttled()}, time.monotonic()

    def watch(self, section: Section, profile_cuda: bool) -> None:
        """Add a timer to a new section, where this probe has one."""
        return

    def collect(self) -> Collected:
        """Hand over what came since the last call."""
        return self.cut()()

    def cut(self) -> Callable[[], Collected]:
        """Read the counters here, since they are those of the thread that reads them."""
        now, waited, throttled = time.monotonic(), self._waited(), self._throttled()
        elapsed, self._began = now - self._began, now
        state = np.full(len(STATE_FIELDS), np.nan)
        for place, counters in ((_WAITED, waited), (_THROTTLED, throttled)):
            for key, seconds in counters.items():
                # Nothing is known yet of a thread or a group that is not the one of last time.
                if key in self._before and elapsed > 0.0:
                    # A group may be throttled on several cores at once.
                    state[place] = min(max(seconds - self._before[key], 0.0) / elapsed, 1.0)
        self._before = {**waited, **throttled}
        return lambda: Collected(device=state)

    def stop(self) -> None:
        """End; nothing is measured after this."""
        return

    def _waited(self) -> dict[str, float]:
        """Return the seconds this thread has waited for a core, by thread; empty where that is not told."""
        waited = CoreWaits(self._proc).read_ns()
        return {} if waited is None else {f"thread {threading.get_native_id()}": waited / NS_PER_SECOND}

    def _throttled(self) -> dict[str, float]:
        """Return the seconds this process's cgroup has been throttled, by group; empty without a quota."""
        try:
            lines = (self._proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            return {}
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            file = self._cgroups / controllers / path.lstrip("/") / "cpu.stat"
            try:
                told = dict(entry.split(maxsplit=1) for entry in file.read_text().splitlines())
                if "throttled_usec" in told:
                    return {str(file): int(told["throttled_usec"]) * 1e-6}
                if "throttled_time" in told:
                    return {str(file): int(told["throttled_time"]) / NS_PER_SECOND}
            except (OSError, ValueError):  # a group that is not mounted here, or has no such file
                continue
        return {}
