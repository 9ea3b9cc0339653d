"""Start workers from parked processes that a zygote has forked ahead, and spawn those that are not ready in time.

A worker that is lost, stopped or late costs at most a second when a generation starts, and is spawned. The parked ones
are kept by :class:`launcher.workers.warm_pool.WarmPool`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping

from launcher.workers.parked import ParkedWorker, Stage, wait_for_any
from launcher.workers.spawn import Launch
from launcher.workers.starters import spawn_all
from launcher.workers.warm_pool import PATIENCE_SECONDS, WarmPool
from launcher.workers.zygote_handle import STARVED_SECONDS
from launcher.zygote.protocol import WorkerOrder

__all__ = ["WarmStarter"]


class WarmStarter:
    """Starts generations from a pool of parked workers.

    Args:
        pool: Where parked workers come from; the starter closes it.
        announce: Told why a worker was spawned instead.
        clock: Monotonic seconds.
    """

    def __init__(
        self, pool: WarmPool, announce: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._announce = announce
        self._clock = clock

    def start_all(self, launches: Mapping[int, Launch]) -> dict[int, int]:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        around = dict(os.environ)
        orders = {n: order for n, launch in launches.items() if (order := _order(launch, around)) is not None}
        if len(orders) < len(launches):
            self._pool.switch_off("the workers are not started with this launcher's own Python")
            return spawn_all(launches, {})
        self._pool.gather(len(orders), next(iter(orders.values())).environment)
        handed = {}
        for local_rank, order in orders.items():
            parked = self._pool.hand_over(order)
            if parked is not None:
                handed[local_rank] = parked
        pids = spawn_all(launches, {local_rank: parked.pid for local_rank, parked in handed.items()})
        late = self._await_first_lines(handed)
        if late:
            for local_rank in late:
                handed[local_rank].discard()
                del pids[local_rank]
            for why in sorted(set(late.values())):
                ranks = ", ".join(str(local_rank) for local_rank in sorted(late) if late[local_rank] == why)
                self._announce(f"local rank(s) {ranks}: the parked worker {why}; spawned instead")
            pids = spawn_all(launches, pids)
        return pids

    def ensure_ready(self, count: int) -> None:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        self._pool.ensure_ready(count)

    def descriptors(self) -> list[int]:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        return self._pool.descriptors()

    def due_seconds(self) -> float | None:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        return self._pool.due_seconds()

    def maintain(self) -> None:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        self._pool.maintain()

    def children(self) -> set[int]:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        return self._pool.children()

    def close(self) -> None:
        """See :class:`launcher.workers.starters.WorkerStarter`."""
        self._pool.close()

    def _await_first_lines(self, handed: Mapping[int, ParkedWorker]) -> dict[int, str]:
        """Wait for all at once.

        Returns:
            Those that will not get there, by local rank: dead, stopped, or too late, in words.
        """
        begin = self._clock()
        pending = dict(handed)
        late = {}
        while pending:
            for local_rank, parked in list(pending.items()):
                parked.receive()
                if parked.stage is Stage.STARTED:
                    self._pool.let_run(parked)
                    del pending[local_rank]
                elif (why := self._why_lost(parked, self._clock() - begin)) is not None:
                    late[local_rank] = why
                    del pending[local_rank]
            if pending:
                wait_for_any([d for parked in pending.values() for d in parked.descriptors()], 0.1)
        return late

    def _why_lost(self, parked: ParkedWorker, seconds: float) -> str | None:
        why = parked.why_lost
        if why is not None:
            why = f"{why} before the script began"
        elif seconds > (limit := STARVED_SECONDS if parked.is_runnable else PATIENCE_SECONDS):
            why = f"did not start within {limit:g} s"
        return why if why is not None and parked.refuse() else None


def _order(launch: Launch, around: Mapping[str, str]) -> WorkerOrder | None:
    """Return the launch as an order in the environment ``around``, None where only exec will do."""
    program, *arguments = launch.command
    if program != sys.executable or arguments[:1] != ["-u"] or launch.numa_options is not None:
        return None
    is_module = arguments[1] == "-m"
    argv = tuple(arguments[2:] if is_module else arguments[1:])
    if not argv or argv[0].startswith("-"):
        return None
    environment = {**around, **launch.environment}
    return WorkerOrder(argv, is_module, environment, launch.stdout, launch.stderr)
