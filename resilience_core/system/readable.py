"""Wait for a descriptor, whatever its number: ``select.select`` refuses those from 1,024 on."""

from __future__ import annotations

import math
import select

__all__ = ["wait_until_readable"]


def wait_until_readable(descriptor: int, seconds: float | None) -> bool:
    """Wait until something can be read, or the other end is closed; return whether that is so.

    Args:
        descriptor: What to read from.
        seconds: For how long at most; None: for as long as it takes.
    """
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(None if seconds is None else math.ceil(max(0.0, seconds) * 1000)))
