"""Have the ranks of one generation watched, and look after those that nobody watches."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import cast

from torch.distributed.elastic.agent.server.api import WorkerGroup

from launcher.agent.after_shutdown import AfterShutdown, Leaving, Overstayed
from launcher.agent.job_limits import spared, unmonitored
from launcher.agent.resources import AgentResources
from launcher.agent.script_inspection import names_the_client, script_of
from launcher.agent.worker_cells import Cells
from launcher.monitor.messages import WatchOrder
from launcher.workers.worker_processes import WorkerProcesses
from resilience_core.protocol.cell_layout import SHUT_DOWN
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["RankWatch"]

_EVIDENCE_SECONDS = 0.25
"""How often is looked whether a rank has initialised monitoring, where a startup limit waits for that."""


class RankWatch:
    """The orders that the monitor was given for one generation; the constructor gives them.

    Args:
        number: Of the generation.
        group: Torch's worker group.
        resources: What to work with.
        cells: The generation's.
        processes: Its workers, started.
        started_ns: ``CLOCK_MONOTONIC`` when they were.
        is_last: No restart is left.
    """

    def __init__(
        self,
        number: int,
        group: WorkerGroup,
        resources: AgentResources,
        cells: Cells,
        processes: WorkerProcesses,
        started_ns: int,
        is_last: bool,
    ) -> None:
        self._number = number
        self._group = group
        self._resources = resources
        self._cells = cells
        self._processes = processes
        self._started_ns = started_ns
        self._is_last = is_last
        self._orders: dict[int, WatchOrder] = {}
        self._has_spared = False
        self._after_shutdown = AfterShutdown(resources.config, self._leaving, resources.monitor.freezes)
        self._have_them_watched()

    def repeat(self, local_ranks: Collection[int]) -> None:
        """Give the orders for these ranks once more: their cells were made anew."""
        for local_rank in local_ranks:
            order = self._orders[local_rank]
            self._resources.monitor.watch(order, self._cells[local_rank], is_session_leader=True)

    def note_starts(self) -> None:
        """Note how long each rank took to initialise monitoring, from which startup limits are learned."""
        self._resources.limits.note_starts(self._started_ns, self._initialised_ns())

    def look_after_the_unmonitored(self) -> list[str]:
        """Hold ranks to a startup limit as soon as that may count; say once whom nobody watches.

        Returns:
            What to say, most often nothing.
        """
        resources, config, now_ns = self._resources, self._resources.config, time.monotonic_ns()
        knew = resources.limits.has_used_the_client
        self.note_starts()
        if resources.limits.has_used_the_client != knew and config.rank_startup_timeout is not None:
            self._have_them_watched(from_ns=now_ns)
        running = {worker.local_rank for worker in self._processes.running}
        unseen = running - self._monitored() - set(self._held())
        ranks = {worker.global_rank for worker in self._group.workers if worker.local_rank in unseen}
        elapsed = (now_ns - self._started_ns) / NS_PER_SECOND
        said: list[str] = []
        startup = config.rank_startup_timeout
        if ranks and startup is not None and not self._has_spared and elapsed >= startup:
            self._has_spared = True
            said.append(spared(ranks, startup, script_of(self._command)[0] or "the command"))
        after = config.unmonitored_notice_after
        if after is not None and elapsed >= after and not resources.limits.has_noted_the_unmonitored:
            resources.limits.has_noted_the_unmonitored = True
            if ranks:
                said += unmonitored(ranks, not any(self._initialised_ns().values()), after)
        said += self._after_shutdown.look(now_ns)
        if (
            not resources.limits.has_noted_the_leaving
            and (notice := self._after_shutdown.unlimited(now_ns)) is not None
        ):
            resources.limits.has_noted_the_leaving = True
            said.append(notice)
        return said

    def _leaving(self) -> dict[int, Leaving]:
        views, ranks = self._cells.views(), {worker.local_rank: worker.global_rank for worker in self._group.workers}
        return {
            worker.local_rank: Leaving(ranks[worker.local_rank], worker.pid, worker.pidfd)
            for worker in self._processes.running
            if worker.local_rank in views and views[worker.local_rank].state == SHUT_DOWN
        }

    @property
    def overstayed(self) -> Mapping[int, Overstayed]:
        """Local ranks that were killed since their processes went on after they had shut monitoring down."""
        return self._after_shutdown.killed

    def next_look_seconds(self) -> float | None:
        """Return when :meth:`look_after_the_unmonitored` has something to do next; None when it never will."""
        if len(self._monitored()) == len(self._cells):
            return self._after_shutdown.due_seconds
        config, elapsed = self._resources.config, (time.monotonic_ns() - self._started_ns) / NS_PER_SECOND
        due = [] if (seconds := self._after_shutdown.due_seconds) is None else [seconds]
        if config.unmonitored_notice_after is not None and not self._resources.limits.has_noted_the_unmonitored:
            due.append(max(0.0, config.unmonitored_notice_after - elapsed))
        if config.rank_startup_timeout is not None and not self._has_spared:
            due.append(max(0.0, config.rank_startup_timeout - elapsed))
        if config.rank_startup_timeout is not None and not self._resources.limits.has_used_the_client:
            due.append(_EVIDENCE_SECONDS)
        return min(due, default=None)

    def _initialised_ns(self) -> dict[int, int | None]:
        return {local_rank: stamps["initialised_ns"] for local_rank, stamps in self._cells.stamps().items()}

    def _monitored(self) -> set[int]:
        return {local_rank for local_rank, at_ns in self._initialised_ns().items() if at_ns is not None}

    def _have_them_watched(self, from_ns: int | None = None) -> None:
        """Give the monitor its orders; once more, later, for ranks that are held to a startup limit from then on."""
        uses_client = False
        if self._resources.config.rank_startup_timeout is not None:
            uses_client = names_the_client(self._command)
        for worker in self._group.workers:
            limit = self._resources.limits.startup(worker.local_rank, uses_client, self._is_last)
            since_ns = self._started_ns
            if from_ns is not None:
                if limit is None or worker.local_rank in self._monitored() | set(self._held()):
                    continue
                if since_ns + limit.seconds * NS_PER_SECOND < from_ns:
                    since_ns = from_ns
            order = WatchOrder(
                generation=self._number,
                local_rank=worker.local_rank,
                rank=worker.global_rank,
                cell=self._cells[worker.local_rank].path,
                pid=self._processes.workers[worker.local_rank].pid,
                startup_at_ns=0 if limit is None else since_ns + int(limit.seconds * NS_PER_SECOND),
                started_ns=since_ns,
                has_others=(self._group.group_world_size or 1) > 1,
                startup_origin=limit.origin if limit is not None else None,
                startup_advice=limit.advice if limit is not None else None,
                startup_is_learned=limit is not None and limit.is_learned,
            )
            self._orders[worker.local_rank] = order
            self._resources.monitor.watch(order, self._cells[worker.local_rank], is_session_leader=True)

    @property
    def _command(self) -> tuple[str, ...]:
        return (cast(str, self._group.spec.entrypoint), *map(str, self._group.spec.args))

    def _held(self) -> list[int]:
        return [local_rank for local_rank, order in self._orders.items() if order.startup_at_ns]
