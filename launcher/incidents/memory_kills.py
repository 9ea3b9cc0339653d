"""Whether the kernel has killed a rank, out of memory: nothing of the process itself tells, SIGKILL leaves no word.

A control group counts such kills, and how often its limit was in the way. Both are noted while the ranks live and
compared once one is dead. A process of version 1 that has ended is in no group any more, so its groups are looked up
ahead, too. The limit that was hit is that of the lowest group which has counted a hit; where none has, the machine had
no memory left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from launcher.health.check import Machine
from launcher.processes.control_groups import MemoryGroup, groups_named, groups_of, read_text
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["MemoryKills"]

_MIB = 1 << 20
_JUST_NOW_NS = 10 * NS_PER_SECOND
"""A kill is counted when the signal is sent; a process that holds memory of a GPU may take seconds to be gone."""
_LATELY_NS = 60 * NS_PER_SECOND


class _Counts:
    """What a group has counted, and when that was seen to grow (``CLOCK_MONOTONIC``)."""

    def __init__(self, kills: int | None, hits: int | None) -> None:
        self.kills, self.hits = kills, hits
        self.killed_ns: list[int] = []
        """When each kill was seen, the latest last, without those that a rank was found to have died of."""
        self.hit_ns: int | None = None

    def note(self, kills: int | None, hits: int | None, now_ns: int) -> None:
        """Compare with what is counted now."""
        if kills is not None and self.kills is not None and kills > self.kills:
            self.killed_ns = [*self.killed_ns, *[now_ns] * min(kills - self.kills, 64)][-64:]
        if hits is not None and self.hits is not None and hits > self.hits:
            self.hit_ns = now_ns
        self.kills, self.hits = kills, hits


class MemoryKills:
    """The counts of the groups that the ranks of one node are in.

    Args:
        proc: Where proc(5) is mounted.
        sys: Where sysfs is.
    """

    def __init__(self, proc: str = Machine().proc, sys: str = Machine().sys) -> None:
        self._proc, self._sys = proc, sys
        self._own = groups_of(None, proc, sys)
        self._groups: dict[int, list[MemoryGroup]] = {}
        self._counts: dict[str, _Counts] = {}
        self._note(self._own, time.monotonic_ns())

    def watch(self, pids: Mapping[int, int]) -> None:
        """Note in which groups ranks are, and what these count.

        Args:
            pids: Local rank to process; of ranks that live.
        """
        for local_rank, pid in pids.items():
            if groups := groups_of(pid, self._proc, self._sys):
                self._groups[local_rank] = groups
        now_ns = time.monotonic_ns()
        groups_by_folder = {group.folder: group for groups in (self._own, *self._groups.values()) for group in groups}
        self._note(list(groups_by_folder.values()), now_ns)

    def of(self, local_rank: int, *, was_killed: bool, is_named: bool = False) -> str | None:
        """Return what has happened where the kernel has killed a process in a rank's group.

        In version 1 only the group of the killed process counts, so only a rank's own group is asked. A rank that was
        never looked at while it lived is taken to be in the launcher's.

        Args:
            local_rank: Of a rank that has just failed.
            was_killed: By SIGKILL, and not by us, so that a kill of the last seconds may have been its own; each is
                that of one rank. Of any other rank the kernel may have killed a process that it needed, up to a minute
                ago.
            is_named: The kernel itself has said so, which holds however long the process took to be gone.
        """
        groups = self._groups.get(local_rank, self._own)
        now_ns = time.monotonic_ns()
        self._note(groups, now_ns)
        counts = self._counts.get(groups[0].folder) if groups else None
        if counts is None or not counts.killed_ns:
            return None
        if now_ns - counts.killed_ns[-1] > (_JUST_NOW_NS if was_killed and not is_named else _LATELY_NS):
            return None
        if was_killed:
            counts.killed_ns.pop()
        return self._limit_hit(groups, now_ns) or self._of_machine()

    def of_group(self, name: str) -> str:
        """Return what has happened where the kernel itself has named the group whose limit was hit.

        Args:
            name: Below the root of its hierarchy; empty where the machine had no memory left.
        """
        if not name:
            return self._of_machine()
        groups = [group for group in groups_named(name, self._sys) if group.limit_bytes is not None]
        return _shown(groups[0]) if groups else f"out of memory of the control group {name}"

    def begin_anew(self) -> None:
        """Forget the ranks of a generation that is over, and what has happened to them."""
        self._groups.clear()
        self._counts.clear()
        self._note(self._own, time.monotonic_ns())

    def _note(self, groups: list[MemoryGroup], now_ns: int) -> None:
        for group in groups:
            kills, hits = group.kills, group.hits
            self._counts.setdefault(group.folder, _Counts(kills, hits)).note(kills, hits, now_ns)

    def _limit_hit(self, groups: list[MemoryGroup], now_ns: int) -> str | None:
        for group in groups:
            hit_ns = self._counts[group.folder].hit_ns
            if hit_ns is not None and now_ns - hit_ns <= _LATELY_NS and group.limit_bytes is not None:
                return _shown(group)
        # Version 1 counts no hit where memory and swap together have the same limit.
        return next((_shown(group) for group in groups if group.limits_swap_as_well and group.is_full), None)

    def _of_machine(self) -> str:
        lines = (line.split() for line in read_text(os.path.join(self._proc, "meminfo")).splitlines())
        sizes = {line[0]: int(line[1]) // 1024 for line in lines if len(line) >= 2 and line[1].isdigit()}
        total = sizes.get("MemTotal:")
        return f"out of memory of the machine{f', which has {total} MiB' if total is not None else ''}"


def _shown(group: MemoryGroup) -> str:
    limit, peak = group.limit_bytes or 0, group.peak_bytes
    used = f"{min(peak, limit) // _MIB} of {limit // _MIB} MiB" if peak is not None else f"limit {limit // _MIB} MiB"
    return f"out of memory, {used} ({group.files.limit} of {group.folder})"
