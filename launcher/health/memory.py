"""Whether memory is left: of the machine, and of every control group that this process is in.

Sources: proc(5) on ``MemAvailable``; the kernel's ``admin-guide/cgroup-v2.rst`` and ``cgroup-v1/memory.rst``. What a
group uses includes files in the page cache, which are given back under pressure and so count as available here; shared
memory does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from launcher.health.check import Context, Machine
from launcher.health.sizes import shown

__all__ = ["LEAST_MEMORY_BYTES", "MemoryCheck"]

LEAST_MEMORY_BYTES = 256 << 20


class _Files(NamedTuple):
    """How a version of control groups names what is read."""

    limit: str
    usage: str
    cached: tuple[str, ...]


_VERSION_1 = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file", "total_slab_reclaimable"),
)
_VERSION_2 = _Files("memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable"))


class MemoryCheck:
    """Memory that a new process could have without swapping.

    Args:
        bound_seconds: How long an answer may take.
        least_bytes: How much there must be.
    """

    name = "memory"

    def __init__(self, bound_seconds: float, least_bytes: int = LEAST_MEMORY_BYTES) -> None:
        self.bound_seconds, self._least_bytes = bound_seconds, least_bytes

    def check(self, context: Context) -> str | None:
        """Compare machine and groups with what there must be; the least is told."""
        rooms = [*_of_machine(context.machine), *_of_groups(context.machine)]
        if not rooms:
            return (
                f"memory cannot be told: {context.machine.proc}/meminfo has no MemAvailable; mount proc(5) there, or "
                "leave 'memory' out of health_checks"
            )
        available, where = min(rooms)
        if available >= self._least_bytes:
            return None
        return (
            f"{shown(max(0, available))} of memory are available ({where}), and {shown(self._least_bytes)} must be; "
            "see what uses it (ps, /dev/shm), raise the limit, or ask for less in health_checks"
        )


def _of_machine(machine: Machine) -> Iterator[tuple[int, str]]:
    path = os.path.join(machine.proc, "meminfo")
    for line in _text(path).splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            yield int(value.split()[0]) * 1024, f"MemAvailable in {path}"


def _of_groups(machine: Machine) -> Iterator[tuple[int, str]]:
    root = os.path.join(machine.sys, "fs", "cgroup")
    for line in _text(os.path.join(machine.proc, "self", "cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            mounts: tuple[str, ...] = (root, os.path.join(root, "unified"))
            files = _VERSION_2
        elif "memory" in controllers.split(","):
            mounts, files = (os.path.join(root, "memory"),), _VERSION_1
        else:
            continue
        for mount in mounts:
            for folder in _up(mount, group):
                yield from _of_group(folder, files)


def _up(mount: str, group: str) -> Iterator[str]:
    """Yield the folders of a group and of all above it. In a container some of them are not shown."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield os.path.join(mount, *parts[:count])


def _of_group(folder: str, files: _Files) -> Iterator[tuple[int, str]]:
    limit = _text(os.path.join(folder, files.limit)).strip()
    usage = _text(os.path.join(folder, files.usage)).strip()
    if not limit.isdigit() or not usage.isdigit():  # 'max': no limit; or nothing there
        return
    lines = (line.split() for line in _text(os.path.join(folder, "memory.stat")).splitlines())
    cached = sum(int(line[1]) for line in lines if len(line) == 2 and line[0] in files.cached)
    yield int(limit) - int(usage) + cached, f"{files.limit} of {folder} is {limit}"


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
