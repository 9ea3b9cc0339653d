"""Who has written a file of events whose first line, which says so, is missing."""

from __future__ import annotations

import contextlib
import os

from launcher.records.event_files import EVENTS, EventFile, read_event_file
from launcher.records.figures_log import FIGURES
from launcher.records.format_versions import UnknownVersionError
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["identified"]

_CLOSE_NS = 60 * NS_PER_SECOND
"""A launcher writes its last events seconds after the last figures of its ranks."""
_SAME_CLOCK_NS = 5 * NS_PER_SECOND
"""By so much a wall clock may have been set meanwhile, on one machine that has not been started again."""


def identified(file: EventFile) -> EventFile:
    """Return a file that says who wrote it: where its first line is missing, the file of figures of that name does."""
    folder, name = os.path.split(file.path)
    if file.boot != file.path or not name.startswith(EVENTS):
        return file
    with contextlib.suppress(OSError, UnknownVersionError):
        other = read_event_file(os.path.join(folder, name.replace(EVENTS, FIGURES, 1)), lambda why: None)
        if other is not None and other.boot != other.path and _overlap(file, other):
            return other._replace(path=file.path, epoch_ns=file.epoch_ns, events=file.events)
    return file


def _overlap(one: EventFile, other: EventFile) -> bool:
    """Return whether what two files tell of was at the same time; or close, if only a few lines are left of one."""
    first_ns, last_ns = min(e["t_ns"] for e in one.events), max(e["t_ns"] for e in one.events)
    if any(first_ns <= event["t_ns"] <= last_ns for event in other.events):
        return True
    is_same_clock = abs(one.epoch_ns - other.epoch_ns) < _SAME_CLOCK_NS
    return is_same_clock and any(first_ns - _CLOSE_NS <= event["t_ns"] <= last_ns + _CLOSE_NS for event in other.events)
