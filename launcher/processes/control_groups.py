"""Control groups of memory, of either version, as proc(5) and sysfs show them.

Sources: the kernel's ``admin-guide/cgroup-v2.rst`` and ``cgroup-v1/memory.rst``; cgroups(7) on ``/proc/PID/cgroup``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from resilience_core.system.proc import PF_EXITING

__all__ = ["GroupFiles", "MemoryGroup", "groups_named", "groups_of", "read_number", "read_text"]

_NO_LIMIT = 1 << 60
"""Version 1 writes the largest number of pages where there is none."""


class GroupFiles(NamedTuple):
    """How a version of control groups names what is read."""

    limit: str
    usage: str
    peak: str
    kills: str
    """A file with a line ``oom_kill N``: how many processes of the group the kernel has killed, out of memory."""
    hits: tuple[str, str]
    """What counts how often this very limit was in the way: a file, and the line in it, empty where it is the whole."""
    cached: tuple[str, ...]
    """What of ``memory.stat`` is given back under pressure."""


_VERSION_1 = GroupFiles(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    ("memory.failcnt", ""),
    ("total_inactive_file", "total_active_file", "total_slab_reclaimable"),
)
_VERSION_2 = GroupFiles(
    "memory.max",
    "memory.current",
    "memory.peak",
    "memory.events",
    ("memory.events", "oom"),
    ("inactive_file", "active_file", "slab_reclaimable"),
)


class MemoryGroup(NamedTuple):
    """One group; a file that is not there is not known."""

    folder: str
    files: GroupFiles

    @property
    def limit_bytes(self) -> int | None:
        """What its processes may use; None for no limit."""
        limit = read_number(os.path.join(self.folder, self.files.limit))
        return limit if limit is not None and limit < _NO_LIMIT else None

    @property
    def usage_bytes(self) -> int | None:
        """What they use now."""
        return read_number(os.path.join(self.folder, self.files.usage))

    @property
    def limits_swap_as_well(self) -> bool:
        """Whether it is one of version 1 in which memory and swap together have the limit of memory."""
        path = os.path.join(self.folder, "memory.memsw.limit_in_bytes")
        return self.files is _VERSION_1 and self.limit_bytes is not None and read_number(path) == self.limit_bytes

    @property
    def is_full(self) -> bool:
        """Whether its processes have used, at some time, all that they may."""
        limit, peak = self.limit_bytes, self.peak_bytes
        return limit is not None and peak is not None and peak >= limit - limit // 100

    @property
    def peak_bytes(self) -> int | None:
        """The most that they have used; version 2 tells it since Linux 5.19."""
        return read_number(os.path.join(self.folder, self.files.peak))

    @property
    def kills(self) -> int | None:
        """How many of them the kernel has killed, out of memory; in version 2 with the groups below."""
        return self._counted(self.files.kills, "oom_kill")

    @property
    def hits(self) -> int | None:
        """How often the limit of this group, in version 2 also of one below, was in the way."""
        return self._counted(*self.files.hits)

    def _counted(self, file: str, name: str) -> int | None:
        path = os.path.join(self.folder, file)
        if not name:
            return read_number(path)
        lines = (line.split() for line in read_text(path).splitlines())
        return next((int(line[1]) for line in lines if len(line) == 2 and line[0] == name and line[1].isdigit()), None)


def groups_of(pid: int | None, proc: str = "/proc", sys: str = "/sys") -> list[MemoryGroup]:
    """Return the groups that a process is in, its own first, then those above; as far as they are shown here.

    Args:
        pid: Of the process; this one when it is None. One of version 1 that has ended, or is ending, is in none any
            more: the kernel then shows the root.
        proc: Where proc(5) is mounted.
        sys: Where sysfs is.
    """
    found: list[MemoryGroup] = []
    for line in read_text(os.path.join(proc, "self" if pid is None else str(pid), "cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            found += _shown(_VERSION_2, group.removesuffix(" (deleted)"), sys)
        elif "memory" in controllers.split(",") and (
            pid is None or not _is_ending(os.path.join(proc, str(pid), "stat"))
        ):
            found += _shown(_VERSION_1, group, sys)
    return found


def _is_ending(stat: str) -> bool:
    """Return whether a process is ending, or gone; its group was read before, and is right where it is not."""
    fields = read_text(stat).rpartition(")")[2].split()
    return len(fields) < 7 or bool(int(fields[6]) & PF_EXITING)


def groups_named(name: str, sys: str = "/sys") -> list[MemoryGroup]:
    """Return the group of a name below the root of its hierarchy, of whichever version, then those above."""
    return [*_shown(_VERSION_2, name, sys), *_shown(_VERSION_1, name, sys)]


def _shown(files: GroupFiles, name: str, sys: str) -> list[MemoryGroup]:
    root = os.path.join(sys, "fs", "cgroup")
    mounts = (root, os.path.join(root, "unified")) if files is _VERSION_2 else (os.path.join(root, "memory"),)
    groups = [MemoryGroup(folder, files) for mount in mounts for folder in _up(mount, name)]
    return [each for each in groups if any(os.path.exists(os.path.join(each.folder, n)) for n in files[1:4])]


def _up(mount: str, group: str) -> Iterator[str]:
    """Yield the folders of a group and of all above it. In a container some of them are not shown."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield os.path.join(mount, *parts[:count])


def read_number(path: str) -> int | None:
    """Read a file that holds one whole number; None where it holds something else, such as ``max``, or is missing."""
    text = read_text(path).strip()
    return int(text) if text.isdigit() else None


def read_text(path: str) -> str:
    """Read a file of the kernel's; nothing where it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
