"""What a process is and has, by one look, for whoever looks at many processes each second."""

from __future__ import annotations

import os
from typing import NamedTuple

from resilience_core.system.proc import ENDED_STATES, STOPPED_STATES, stat_fields

__all__ = ["ProcessUsage", "process_usage"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUsage(NamedTuple):
    """What a process is and has, by one look at proc(5)."""

    state: str
    """As in :class:`launcher.processes.proc.ProcessStatus`."""
    start_time: int
    """Clock ticks since boot, by which a reused pid is told apart."""
    resident_bytes: int | None
    """Memory that it occupies, shared memory included; None of one that is ending, which has given it back."""

    @property
    def is_stopped(self) -> bool:
        """Stopped by a signal or by a tracer."""
        return self.state in STOPPED_STATES

    @property
    def has_ended(self) -> bool:
        """A zombie, or dead."""
        return self.state in ENDED_STATES


def process_usage(pid: int) -> ProcessUsage | None:
    """Read state and memory of a process; None when there is none, or it may not be looked at."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    try:
        return ProcessUsage(fields[0].decode(), int(fields[19]), max(0, int(fields[21])) * _PAGE_BYTES or None)
    except (ValueError, IndexError):
        return None
