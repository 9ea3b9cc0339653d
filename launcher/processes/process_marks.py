"""Marks that a rank carries, and whatever it starts, so that it is found when its launcher is gone. No torch.

While the launcher lives it adopts what ranks leave (``launcher.processes.leftovers``), and needs no marks unless it is
the first process of a container. When it was killed, the monitor looks through /proc for these:

* *A variable in the environment* that names the run folder. ``env -i`` takes it away, and the environment of a fork of
  a warm worker, as /proc shows it, is that of the launcher.
* *A mapping of the rank's cell*: inherited by every fork, but not by a program.
* *A resource limit*, inherited by forks and by programs alike. ``RLIMIT_LOCKS`` limits nothing since Linux 2.4.25
  (getrlimit(2)), but is still kept for each process. Its soft limit, unlimited otherwise, becomes a number above 10^18
  that is made from the run folder's name; the hard limit stays, so that everybody may still raise it. A session that
  PAM opens (``su -``) may begin with other limits. One call per rank, 13 us [1]_, no privilege, nothing to remove
  afterwards, and prlimit(2) reads it without the locks that a process in uninterruptible sleep may hold.

Two shapes of a *cgroup* (version 2) in place of the limit were sketched, and not built:

* *The launcher moves itself into a child of its own group*, and all that it starts is in it. Launcher, monitor, zygote
  and parked workers must be told from the rest when it is emptied, and the last one to leave removes the group.
* *Only the zygote and spawned workers enter a group*: all in it may be ended by one write to ``cgroup.kill``.

Each finds what the limit finds (what leaves the one, a session of PAM, most often leaves the other), but:

* Only root and users with a delegated group may make one; in a container most often nobody.
* It hides ranks from whoever supervises the launcher. Slurm signals a step by the processes that are listed in
  ``task_N/cgroup.procs`` itself, not further down (``cgroup_p_step_get_pids`` of its cgroup/v2 plugin), and systemd
  lets nobody make groups below a unit without ``Delegate=`` (the single-writer rule).
* To enter takes a lock of the whole kernel: 13 ms in the median, 45 ms at most [1]_, which spawned workers would pay at
  each restart.
* A launcher that was killed together with its monitor leaves a folder in the cgroup tree, for ever.

.. [1] ``python -m benchmarks.costs`` on 2026-11-22: 60 times, two busy cores (load 9), Linux 6.18.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Collection

from launcher.processes.proc import environment_entries, memory_map, runs_our_program
from resilience_core.environment import PREFIX

__all__ = ["carries_limit", "is_marked", "leave_mark"]

_RLIMIT_LOCKS = 10  # on all architectures; ``resource`` has no name for it
_PRIME = 2**61 - 1
_PREFIX = PREFIX.encode()


def leave_mark(cell: str) -> None:
    """Set the limit for this process and whatever it will start.

    Do nothing where it may not be set: below a hard limit, or on a system that lets nobody set it.

    Args:
        cell: The path of the rank's cell, ``<run folder>/cells/<name>``; empty for none.
    """
    if cell:
        with contextlib.suppress(OSError, ValueError, OverflowError):
            hard = resource.getrlimit(_RLIMIT_LOCKS)[1]
            resource.setrlimit(_RLIMIT_LOCKS, (_limit(os.path.dirname(os.path.dirname(cell))), hard))


def carries_limit(pid: int, marks: Collection[str]) -> bool:
    """Return whether a process has the limit of one of these run folders; never waits."""
    try:
        return resource.prlimit(pid, _RLIMIT_LOCKS)[0] in {_limit(mark) for mark in marks}
    except OSError:  # gone, or not ours to look at
        return False


def is_marked(pid: int, marks: Collection[str]) -> bool:
    """Return whether a process is a rank of this job, or was started by one.

    Args:
        pid: The process.
        marks: The run folders of a job; variables of each rank name them, and its cell is in one.
    """
    if carries_limit(pid, marks):
        return True
    folders = {os.fsencode(path) for mark in marks for path in (mark, os.path.realpath(mark))}
    try:
        ours = [entry for entry in environment_entries(pid) if entry.startswith(_PREFIX)]
        if any(b"=" + folder + b"/" in entry for entry in ours for folder in folders):
            return True
        if not runs_our_program(pid):  # no fork of a warm worker
            return False
        maps = memory_map(pid)
        return any(b" " + folder + b"/cells/" in maps for folder in folders)
    except OSError:  # gone, a kernel thread, or not ours to look at
        return False


def _limit(folder: str) -> int:
    name = os.path.basename(folder)  # the same by whatever path it is reached, and drawn at random
    return 2**61 + int.from_bytes(os.fsencode(name), "big") % _PRIME
