"""How long a thread has been ready to run and waited for a core.

From ``/proc/thread-self/schedstat`` (second number: nanoseconds, Documentation/scheduler/sched-stats). A thread that
reads its own number is running, so the number is up to date. A reading takes 1 to 2 microseconds.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["CoreWaits"]

_LONGEST_LINE = 128


class CoreWaits:
    """Reads how long the thread that makes it has waited for a core.

    Args:
        proc: Where the kernel tells of processes.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(proc / "thread-self" / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
        if self.read_ns() is None:
            self.close()

    def read_ns(self) -> int | None:
        """Return the nanoseconds so far; None where the kernel does not tell."""
        if self._descriptor is None:
            return None
        try:
            return int(os.pread(self._descriptor, _LONGEST_LINE, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Read no more."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()
