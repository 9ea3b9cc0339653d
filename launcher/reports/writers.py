"""Who has written a file of events or figures whose first line, which says so, is missing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from launcher.records.event_files import EVENTS, EventFile, read_event_file
from launcher.records.figures_log import FIGURES
from launcher.records.format_versions import UnknownVersionError
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["UNKNOWN_NODE", "identified", "is_of_another_launcher"]

UNKNOWN_NODE = "an unknown node"
"""What stands in a report for the name of a node that nothing tells."""

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


def is_of_another_launcher(figures: EventFile, files: Sequence[EventFile]) -> bool:
    """Return whether a launcher has written a file of figures of which no event is left.

    Where the first line is missing, the names tell: a launcher's two files have the same number. Where they do not,
    since somebody has removed one, a launcher without figures may have written it that ran at that time.

    Args:
        figures: The file.
        files: Those of events in its folder of which a line can be read.
    """
    if any(map(figures.is_by_writer_of, files)):
        return False
    if figures.launcher is not None or not files:
        return True
    return figures.boot == figures.path and not any(_may_have_written(file, figures) for file in files)


def _may_have_written(file: EventFile, figures: EventFile) -> bool:
    folder, name = os.path.split(file.path)
    own = os.path.join(folder, name.replace(EVENTS, FIGURES, 1))
    return _overlap(file, figures) and (own == figures.path or not os.path.exists(own))


def _overlap(one: EventFile, other: EventFile) -> bool:
    """Return whether what two files tell of was at the same time; or close, if only a few lines are left of one."""
    first_ns, last_ns = min(e["t_ns"] for e in one.events), max(e["t_ns"] for e in one.events)
    if any(first_ns <= event["t_ns"] <= last_ns for event in other.events):
        return True
    is_same_clock = abs(one.epoch_ns - other.epoch_ns) < _SAME_CLOCK_NS
    return is_same_clock and any(first_ns - _CLOSE_NS <= event["t_ns"] <= last_ns + _CLOSE_NS for event in other.events)
