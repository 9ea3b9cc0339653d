"""Whether memory is left: of the machine, and of every control group that this process is in.

Sources: proc(5) on ``MemAvailable``, and those of :mod:`launcher.processes.control_groups`. What a
group uses includes files in the page cache, which are given back under pressure and so count as available here; shared
memory does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from launcher.health.check import Context, Machine
from launcher.health.sizes import shown
from launcher.processes.control_groups import groups_of, read_number, read_text

__all__ = ["LEAST_MEMORY_BYTES", "MemoryCheck"]

LEAST_MEMORY_BYTES = 256 << 20


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
    for line in read_text(path).splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            yield int(value.split()[0]) * 1024, f"MemAvailable in {path}"


def _of_groups(machine: Machine) -> Iterator[tuple[int, str]]:
    for group in groups_of(None, machine.proc, machine.sys):
        limit, usage = read_number(os.path.join(group.folder, group.files.limit)), group.usage_bytes
        if limit is None or usage is None:  # 'max': no limit; or nothing there
            continue
        lines = (line.split() for line in read_text(os.path.join(group.folder, "memory.stat")).splitlines())
        cached = sum(int(line[1]) for line in lines if len(line) == 2 and line[0] in group.files.cached)
        yield limit - usage + cached, f"{group.files.limit} of {group.folder} is {limit}"
