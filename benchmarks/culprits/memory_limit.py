"""A cgroup with a limit of memory, of version 1 or 2, made for one try and removed with it."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

__all__ = ["MemoryLimit"]

_HOMES = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")


class MemoryLimit:
    """A cgroup that nobody else uses.

    Args:
        limit_bytes: More than its processes may use.

    Raises:
        OSError: None can be made: no right, or no controller of memory.
    """

    def __init__(self, limit_bytes: int) -> None:
        home = next((home for home in _HOMES if _has_memory(home)), None)
        if home is None:
            raise OSError("no cgroup hierarchy with a controller of memory")
        self.path = os.path.join(home, f"culprits-{uuid.uuid4().hex[:12]}")
        os.mkdir(self.path)
        is_first_version = os.path.exists(os.path.join(self.path, "memory.limit_in_bytes"))
        name = "memory.limit_in_bytes" if is_first_version else "memory.max"
        Path(self.path, name).write_text(str(limit_bytes))

    def remove(self) -> None:
        """Remove it, once its last process is gone; within a bound."""
        for _ in range(100):
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
                return
            time.sleep(0.05)  # the kernel has no event for a process that is leaving


def _has_memory(home: str) -> bool:
    try:
        controllers = Path(home, "cgroup.controllers").read_text().split()
    except OSError:
        return os.path.exists(os.path.join(home, "memory.limit_in_bytes"))
    return "memory" in controllers
