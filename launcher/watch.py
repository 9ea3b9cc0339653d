"""One rank as its monitor sees it: the cell, the process, and time that was given back to its deadlines."""

from __future__ import annotations

import os
from typing import NamedTuple

from launcher.processes import has_exited, open_pidfd, process_status
from launcher.verdict import STARTUP, Deadline, Verdict, deadlines_in_force, judge
from resilience_core.cell import ERROR_TEXT, NO_LIMIT, SHUT_DOWN, Cell, CellView, process_start_time
from resilience_core.error_record import ErrorRecord, parse_error

__all__ = ["FRESH_MONITOR_DOUBT_NS", "RankMonitor", "WatchOrder"]

FRESH_MONITOR_DOUBT_NS = 1_000_000_000
"""A deadline that passed before this monitor began to watch is believed only after watching for so long."""


class WatchOrder(NamedTuple):
    """What a monitor must know to watch one rank; travels as JSON from the launcher."""

    generation: int
    local_rank: int
    rank: int
    cell: str
    pid: int = 0
    """The worker process; 0 where somebody else starts it and the cell will tell."""
    startup_at_ns: int = 0
    """By when the rank must have initialised monitoring; 0 is no limit."""
    started_ns: int = 0
    has_others: bool = False
    """The job has ranks on other nodes."""

    @property
    def startup(self) -> Deadline | None:
        """The startup limit as a deadline."""
        if not self.startup_at_ns:
            return None
        return Deadline(STARTUP, None, -1, self.startup_at_ns, self.started_ns)


class RankMonitor:
    """Watches one local rank."""

    def __init__(self, order: WatchOrder, worker_pidfd: int | None, now_ns: int) -> None:
        self.order = order
        self.kill_at_ns: int | None = None
        self._condemned: tuple[int, int] | None = None  # pid and start time
        self._cell = Cell(order.cell)
        self._since_ns = now_ns
        self._given_back: dict[Deadline, int] = {}
        self._worker_pidfd = worker_pidfd
        self._owner: tuple[int, int, int | None] = (0, 0, None)  # pid, start time, pidfd

    def view(self) -> CellView:
        """What the rank says now."""
        return self._cell.view()

    def is_condemned(self, view: CellView) -> bool:
        """Whether this very process has been condemned; its successor, if it has one, is watched anew."""
        return self._condemned == (view.pid, view.start_time)

    def condemn(self, view: CellView) -> None:
        """Expect nothing more from this process than its end."""
        self._condemned = (view.pid, view.start_time)

    def verdict(self, view: CellView, now_ns: int) -> Verdict | None:
        """What follows from it."""
        return judge(view, now_ns, self._extra_ns, self.order.startup)

    def next_deadline_ns(self, view: CellView) -> int:
        """When this rank will next be late if it says nothing; ``NO_LIMIT`` when nothing runs."""
        return min((d.at_ns + self._extra_ns(d) for d in self._running(view)), default=NO_LIMIT)

    def give_back(self, lost_ns: int) -> None:
        """Move every running deadline by time in which nobody could run; a deadline set later is not touched."""
        running = self._running(self.view())
        self._given_back = {d: self._given_back.get(d, 0) + lost_ns for d in running}

    def pidfd(self, view: CellView) -> int | None:
        """The process to terminate: the one that initialised monitoring, else the worker that was started.

        They differ where the worker is a wrapper (a shell, numactl) around the training. None when it is gone.
        """
        if view.pid == 0:
            return self._worker_pidfd
        pid, start_time, pidfd = self._owner
        if (pid, start_time) != (view.pid, view.start_time):
            self._release_owner()
            pidfd = open_pidfd(view.pid)
            if pidfd is not None and process_start_time(view.pid) != view.start_time:
                os.close(pidfd)
                pidfd = None
            self._owner = (view.pid, view.start_time, pidfd)
        return pidfd

    def is_gone(self, view: CellView) -> bool:
        """Whether there is nobody left to terminate."""
        if self._worker_pidfd is not None and has_exited(self._worker_pidfd):
            return True
        pidfd = self.pidfd(view)
        if pidfd is None:
            return view.pid != 0
        return has_exited(pidfd)

    def pid(self, view: CellView) -> int:
        """The number of that process, for people; 0 when it is not known yet."""
        return view.pid or self.order.pid

    def is_stopped(self, view: CellView) -> bool:
        """Whether that process is stopped by a signal."""
        status = process_status(self.pid(view)) if self.pid(view) else None
        return status is not None and status.is_stopped

    def error(self) -> ErrorRecord | None:
        """The exception that it has put on record, if any."""
        return parse_error(self._cell.read_text(ERROR_TEXT))

    @property
    def stack_file(self) -> str:
        """Where the rank's own faulthandler writes when asked."""
        return self.order.cell + ".stack"

    def close(self) -> None:
        """Let go of cell and descriptors."""
        self._release_owner()
        if self._worker_pidfd is not None:
            os.close(self._worker_pidfd)
            self._worker_pidfd = None
        self._cell.close()

    def _release_owner(self) -> None:
        if self._owner[2] is not None:
            os.close(self._owner[2])
        self._owner = (0, 0, None)

    def _running(self, view: CellView) -> list[Deadline]:
        running = deadlines_in_force(view)
        if self.order.startup is not None and view.pid == 0 and view.state != SHUT_DOWN:
            running.append(self.order.startup)
        return running

    def _extra_ns(self, deadline: Deadline) -> int:
        extra = self._given_back.get(deadline, 0)
        if deadline.at_ns < self._since_ns:
            extra = max(extra, self._since_ns + FRESH_MONITOR_DOUBT_NS - deadline.at_ns)
        return extra
