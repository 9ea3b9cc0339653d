"""What workers have started and left: adopted by the launcher, or found by its marks. Standard library only.

Sessions reach most of what a worker has started (``launcher.processes.handles``), but not processes that have made a
session of their own: daemons, servers, commands started with ``start_new_session``. Four ways to find those were
compared:

* *The tree below each worker, read before it is killed*: what has lost its parent already is not in it, and it costs
  a file per thread of every worker, in each restart.
* *Adoption*: the launcher is a child subreaper (prctl(2)), so whatever loses its parent below it becomes its child.
  Once the workers are dead, all that they have left are children of the launcher, or below one; killed layer by
  layer, the list is empty in the end. One file to read where nothing was left. This is what the launcher does.
* *Marks*, for when the launcher itself was killed and cannot adopt: :mod:`launcher.processes.process_marks`. The
  monitor looks for them.
* *A cgroup*: rejected, for the reasons given there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection

from launcher.processes.handles import end_processes
from launcher.processes.proc import all_pids, child_pids, process_name, process_status
from launcher.processes.process_marks import carries_limit, is_marked

__all__ = ["Orphans", "end_carriers", "end_marked"]

_GO_BY_THEMSELVES = ("ft_monitor", "ft_fence", "ft_metrics", "ft_parked", "ft_zygote")
"""Processes that end by themselves when their launcher dies, this one or one that a rank has started."""


class Orphans:
    """What this process has adopted. Only for one that has called :func:`launcher.processes.handles.become_subreaper`.

    Where the launcher is the first process of a container, it adopts others as well, such as what a shell in the
    container has left; there only a marked process counts as a rank's.

    Args:
        marks: The run folders of this job, as of now.
    """

    def __init__(self, marks: Callable[[], Collection[str]]) -> None:
        self._marks = marks
        self._given_up: set[int] = set()

    def give_up(self, pids: Collection[int]) -> None:
        """Wait no more for processes that were killed and are not gone; they are collected when they end."""
        self._given_up |= set(pids)

    def reap(self, own: Collection[int]) -> None:
        """Collect those that have ended.

        Args:
            own: Children that somebody waits for.
        """
        for pid in self._adopted(own):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def sessions(self, own: Collection[int]) -> set[int]:
        """Return the sessions of live processes that a rank has left."""
        found = set()
        self._given_up = {pid for pid in self._given_up if process_status(pid) is not None}
        for pid in self._adopted({*own, *self._given_up}):
            status = process_status(pid)
            if status is None or status.has_ended or process_name(pid) in _GO_BY_THEMSELVES:
                continue
            if os.getpid() != 1 or is_marked(pid, self._marks()):
                found.add(status.session)
        return found

    def _adopted(self, own: Collection[int]) -> list[int]:
        # The kernel gives orphans to the first thread that lives. Other threads collect what they have started.
        children = child_pids(os.getpid(), [os.getpid()])
        session = os.getsid(0)
        # Workers are leaders of sessions, so that nothing below them can be in ours; a helper of torch's may be.
        return [
            pid
            for pid in children
            if pid not in own and (status := process_status(pid)) is not None and status.session != session
        ]


def end_marked(marks: Collection[str], timeout_seconds: float, spared: Collection[int] = ()) -> set[int]:
    """Kill whatever is marked, wherever it is, and wait until nothing is left.

    Args:
        marks: The run folders of a job.
        timeout_seconds: Give up after so long.
        spared: Processes that live on: a launcher maps the cells of its ranks, as they do.

    Returns:
        The pids that were still there when time was up.
    """
    end = time.monotonic() + timeout_seconds
    # First those that are found without reading their memory, which may never return where a process is stuck.
    left = end_carriers(marks, timeout_seconds)
    seconds = max(0.0, end - time.monotonic())
    done = {*left, *spared}
    return left | end_processes(lambda: _found(lambda pid: pid not in done and is_marked(pid, marks)), seconds)


def end_carriers(marks: Collection[str], timeout_seconds: float) -> set[int]:
    """Kill whatever carries the limit among the marks; unlike :func:`end_marked`, never wait for a stuck process.

    Args:
        marks: The run folders of a job.
        timeout_seconds: Give up after so long.

    Returns:
        The pids that were still there when time was up.
    """
    return end_processes(lambda: _found(lambda pid: carries_limit(pid, marks)), timeout_seconds)


def _found(is_wanted: Callable[[int], bool]) -> list[int]:
    return [
        pid
        for pid in all_pids()
        if pid != os.getpid() and process_name(pid) not in _GO_BY_THEMSELVES and is_wanted(pid) and _runs(pid)
    ]


def _runs(pid: int) -> bool:
    status = process_status(pid)
    return status is not None and not status.has_ended
