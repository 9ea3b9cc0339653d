"""On which node a launcher ran whose first line, which says so, is missing: from all else that tells it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from launcher.records.event_files import EVENTS
from launcher.records.figures_log import FIGURES
from launcher.reports.evidence import Evidence
from launcher.reports.launches import Launch
from launcher.reports.writers import UNKNOWN_NODE

__all__ = ["with_nodes"]

_SAME_CLOCK_SECONDS = 1.0
"""Machines are never started so close to each other, but for those of a cluster; these run at the same time."""


def with_nodes(launches: Sequence[Launch], evidence: Evidence) -> list[Launch]:
    """Return launches with the names of their nodes, as far as anything that was written tells them.

    Args:
        launches: As they were read.
        evidence: The incidents below the log folders.
    """
    named = [launch for launch in launches if launch.node != UNKNOWN_NODE]
    seen = {incident.node for found in evidence.incidents.values() for incident in found.values()}
    known = ({launch.node for launch in named} | seen) - {""}
    return [
        launch
        if launch.node != UNKNOWN_NODE
        else launch._replace(
            node=_of_incidents(launch, evidence) or _of_name(launch, known) or _of_clock(launch, named) or UNKNOWN_NODE
        )
        for launch in launches
    ]


def _of_incidents(launch: Launch, evidence: Evidence) -> str | None:
    """Return what the incidents say of which its events tell."""
    found = evidence.incidents.get(launch.folder, {})
    return _only({incident.node for name, incident in found.items() if name in launch.told_incidents})


def _of_name(launch: Launch, known: set[str]) -> str | None:
    """Return the node that is in the name of its file, where another line names it: it may have hyphens of its own."""
    name = os.path.basename(launch.file)
    pattern = rf"({EVENTS}|{FIGURES})-%s-\d+(-\d+)?\.jsonl"
    return max((n for n in known if re.fullmatch(pattern % re.escape(n), name, re.ASCII)), key=len, default=None)


def _of_clock(launch: Launch, named: Sequence[Launch]) -> str | None:
    """Return the node whose clock it has, where nobody ran there at that time."""
    same = [other for other in named if abs(other.epoch - launch.epoch) < _SAME_CLOCK_SECONDS]
    if any(other.began_ns < launch.last_ns and launch.began_ns < (other.ended_ns or other.last_ns) for other in same):
        return None
    return _only({other.node for other in same})


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None
