"""The rendezvous of a job on one node: nobody to agree with."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage] - documented
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from launcher.agent.agreement import LOOK_SECONDS, TorchAgreement
from launcher.agent.store_host import StoreHost

__all__ = ["LocalRendezvous"]


class LocalRendezvous(TorchAgreement, RendezvousHandler):
    """One node, fixed size.

    Args:
        run_id: The job.
        host: Where the ranks find the store; None for the machine's own name, as torchrun has it.
        port: A fixed port for every generation's store, or 0 for a free one each time.
        timeout_seconds: How long a rank waits for another in the store.

    Raises:
        RendezvousRefusedError: The fixed port cannot be had.
    """

    has_peers = False
    look_seconds = LOOK_SECONDS

    def __init__(self, run_id: str, host: str | None, port: int, timeout_seconds: float) -> None:
        self._run_id = run_id
        # As torch chooses it, but once: a name server that is slow must not stand in the way of each restart.
        self._host = host or socket.getfqdn()
        self._store_host = StoreHost(port, timedelta(seconds=timeout_seconds))
        self.generation = -1
        self.failures = 0

    def get_backend(self) -> str:
        """See torch."""
        return "local"

    @property
    def use_agent_store(self) -> bool:
        """Ranks meet in the store that this process hosts."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a fresh store for the next generation's ranks; the agent, which has no peers, gets one in memory."""
        self.generation += 1
        where = RendezvousStoreInfo(self._host, self._store_host.renew())
        return RendezvousInfo(HashStore(), 0, 1, where)

    def is_closed(self) -> bool:
        """See torch."""
        return False

    def set_closed(self) -> None:
        """See torch; there is nobody to tell."""

    def num_nodes_waiting(self) -> int:
        """See torch; nobody can."""
        return 0

    def get_run_id(self) -> str:
        """See torch."""
        return self._run_id

    def shutdown(self) -> bool:
        """See torch."""
        self._store_host.close()
        return True

    def ended_by_peer(self) -> str | None:
        """See :class:`.GenerationRendezvous`."""
        return None

    def end(self, why: str) -> None:
        """See :class:`.GenerationRendezvous`."""

    def prepare(self) -> None:
        """See :class:`.GenerationRendezvous`."""
        self._store_host.prepare()

    def note_failure(self, why: str) -> None:
        """See :class:`.GenerationRendezvous`."""
        self.failures += 1

    def failed_elsewhere(self) -> bool:
        """See :class:`.GenerationRendezvous`."""
        return False
