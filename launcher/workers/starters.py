"""Where workers come from, as the agent sees it; see :mod:`launcher.workers.warm_starter` for the fast way."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Protocol

from launcher.workers.spawn import Launch, spawn_worker

__all__ = ["SpawnStarter", "WorkerStarter", "spawn_all"]


class WorkerStarter(Protocol):
    """Starts workers; each is the leader of its own session and a child of this process.

    No method blocks for longer than starting a process takes, or a second, whatever state the processes behind it
    are in; only the start of the first generation may wait for slow imports.
    """

    def start_all(self, launches: Mapping[int, Launch]) -> dict[int, int]:
        """Start the workers of one generation, all or none; their pids, by local rank."""
        ...

    def ensure_ready(self, count: int) -> None:
        """Have so many ready for the next generation."""

    def descriptors(self) -> list[int]:
        """Return what becomes readable when :meth:`maintain` has something to do."""
        ...

    def due_seconds(self) -> float | None:
        """In how many seconds :meth:`maintain` has something to do that no descriptor tells of; None for never."""

    def maintain(self) -> None:
        """Replace what was lost."""

    def children(self) -> set[int]:
        """Pids that are this starter's to collect."""
        ...

    def close(self) -> None:
        """End processes that wait for an order."""


class SpawnStarter:
    """A new interpreter for every worker."""

    def start_all(self, launches: Mapping[int, Launch]) -> dict[int, int]:
        """See :class:`WorkerStarter`."""
        return spawn_all(launches, {})

    def ensure_ready(self, count: int) -> None:
        """See :class:`WorkerStarter`; nothing can be prepared."""

    def descriptors(self) -> list[int]:
        """See :class:`WorkerStarter`."""
        return []

    def due_seconds(self) -> float | None:
        """See :class:`WorkerStarter`."""
        return None

    def maintain(self) -> None:
        """See :class:`WorkerStarter`."""

    def children(self) -> set[int]:
        """See :class:`WorkerStarter`."""
        return set()

    def close(self) -> None:
        """See :class:`WorkerStarter`."""


def spawn_all(launches: Mapping[int, Launch], started: Mapping[int, int]) -> dict[int, int]:
    """Spawn whoever is not started yet.

    Args:
        launches: The whole generation.
        started: Pids of those that run already; they are killed when another cannot be started.

    Returns:
        All pids, by local rank.
    """
    pids = dict(started)
    try:
        for local_rank, launch in launches.items():
            if local_rank not in pids:
                pids[local_rank] = spawn_worker(launch)
    except BaseException:
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # children of ours that nobody has collected: the numbers are theirs
        raise
    return {local_rank: pids[local_rank] for local_rank in launches}
