"""Which process owns a cell, also where it is known by another number in another PID namespace."""

from __future__ import annotations

import os
from typing import NamedTuple

from launcher.processes.handles import open_pidfd
from launcher.processes.proc import all_pids, status_of
from resilience_core.protocol.cell_view import CellView
from resilience_core.system.proc import own_pid_namespace, process_start_time

__all__ = ["CellOwner", "find_owner"]


class CellOwner(NamedTuple):
    """The process that has claimed the cell, as it is found from here."""

    name: tuple[int, int, int] = (0, 0, 0)
    """As the cell says: pid, start time, PID namespace."""
    pid: int = 0
    pidfd: int | None = None


def find_owner(view: CellView) -> tuple[int, int | None]:
    """Return the owner's pid here, which differs where it runs in a PID namespace of its own, and its pidfd."""
    candidates = [view.pid]
    if view.pid_namespace not in (0, own_pid_namespace()):
        candidates = _known_elsewhere_as(view.pid)
    for pid in candidates:
        pidfd = open_pidfd(pid)
        if pidfd is not None:
            if process_start_time(pid) == view.start_time:
                return pid, pidfd
            os.close(pidfd)
    return view.pid, None


def _known_elsewhere_as(number: int) -> list[int]:
    """Return the processes that have this number in a PID namespace below ours (proc(5), NSpid)."""
    numbers = ((pid, status_of(pid).get("NSpid", "").split()) for pid in all_pids())
    return [pid for pid, names in numbers if len(names) > 1 and int(names[-1]) == number]
