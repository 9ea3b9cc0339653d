"""Torch's ``SimpleElasticAgent`` without what costs time or waits for a store where that is not needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage] - documented
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, Worker, WorkerSpec

__all__ = ["QuietAgent"]


class QuietAgent(SimpleElasticAgent):
    """An agent that makes no event, and so asks no resolver, unless an event log was chosen.

    Where the rendezvous knows the place of this node's ranks, and when all nodes have finished, no store is asked.
    """

    @contextlib.contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Time a phase for torch's event log, unless that goes nowhere, as it does by default.

        An event asks the resolver for this machine's full name each time, which takes seconds where a name server
        does not answer, and costs a millisecond where one does.
        """
        if not self._has_event_log:
            yield
            return
        with super().record_duration(state):
            yield

    @property
    def _has_event_log(self) -> bool:
        return getattr(self._worker_group.spec, "event_log_handler", "null") != "null"

    def _assign_worker_ranks(  # pyright: ignore[reportIncompatibleVariableOverride] - torch's decorator has no types
        self, store: Store, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        place: tuple[int, int] | None = getattr(spec.rdzv_handler, "place", None)
        if place is None:
            torchs: Any = super()  # its methods have no types
            workers: list[Worker] = torchs._assign_worker_ranks(store, group_rank, group_world_size, spec)
            return workers
        first, size = place
        return [
            Worker(
                local_rank=local_rank,
                global_rank=first + local_rank,
                role_rank=first + local_rank,
                world_size=size,
                role_world_size=size,
            )
            for local_rank in range(spec.local_world_size)
        ]

    def _exit_barrier(self) -> None:
        if getattr(self._worker_group.spec.rdzv_handler, "place", None) is None:
            torchs: Any = super()
            torchs._exit_barrier()
