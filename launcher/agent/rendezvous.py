"""Who belongs to the next generation, and through which store its ranks meet.

Two handlers, one promise: every generation gets a store of its own. torch hands out one store for all rounds, and
a restarted generation then reads its dead predecessors' addresses from it (pytorch issues 135712 and 167288); a
store that nobody has written to cannot lie.

*LocalRendezvous*: one node of fixed size has nobody to agree with, so it answers by itself, at once.
*FreshStoreRendezvous*: wraps torch's own handler, which finds the nodes; over its per-round store the nodes agree
on the generation's number and on how many failures there have been, so that a restart budget is one budget for
the whole job, whoever failed and whoever joined late. (Agents that count by themselves, as torch's do, disagree
after the first membership change.)

With one node a port that the user named (``--master-port``, the endpoint of the static backend) is MASTER_PORT in
every generation. With several nodes it is where the agents meet, for as long as the job runs, and the ranks' stores
are on free ports of the first node: the agents' server has to live on while the ranks' is replaced, and one port
cannot be both. No firewall that lets ranks train forbids that, since gloo and NCCL connect ranks through ports from
the same range (net.ipv4.ip_local_port_range) and offer no way to name them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

# These are documented; torch exports them without saying so.
# pyright: reportPrivateImportUsage=false
from torch.distributed import DistNetworkError, PrefixStore, Store
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from launcher.agent.agreement import LOOK_SECONDS, TorchAgreement
from launcher.agent.store_exchange import NEWS, SUSPICIONS, StoreExchange, StoreRound
from launcher.agent.store_host import StoreHost

__all__ = ["FreshStoreRendezvous"]


_LOOKS_PER_SECOND = 1000
"""At most, of all nodes together: one process hosts the store that they ask."""
_LONGEST_FAREWELL_SECONDS = 1.0


class FreshStoreRendezvous(TorchAgreement, RendezvousHandler):
    """Torch's handler for the nodes, a fresh store and an agreed count for each generation.

    Args:
        inner: Made by torch's registry, for any backend.
        local_addr: As in torchrun's ``--local-addr``.
        timeout_seconds: How long a rank waits for another in the store.
    """

    has_peers = True

    def __init__(self, inner: RendezvousHandler, local_addr: str | None, timeout_seconds: float) -> None:
        self._inner = inner
        self._local_addr = local_addr
        self._store_host = StoreHost(0, timedelta(seconds=timeout_seconds))
        self._round: Store | None = None
        self._of_failures: Store | None = None
        self._names: tuple[str, ...] = ()
        """Of the nodes, by group rank; known to the first one."""
        self._attempt = -1
        self._peers = 0
        self._hosts = False
        self._has_ended = False
        self._exchange = StoreExchange()
        self.exchange = self._exchange
        self.generation = -1
        self.failures = 0

    @property
    def look_seconds(self) -> float:
        """How often to ask: ten times a second, with more than a hundred nodes less often."""
        return max(LOOK_SECONDS, (self._peers + 1) / _LOOKS_PER_SECOND)

    def get_backend(self) -> str:
        """See torch."""
        return self._inner.get_backend()

    @property
    def use_agent_store(self) -> bool:
        """Ranks meet in the store that an agent hosts."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the nodes as torch does, then agree."""
        if self._round is not None and self._is_static:
            with contextlib.suppress(RuntimeError):
                self._round.set(f"ft/restart/{self._attempt + 1}", "1")
        with _unshared_store():
            info = self._inner.next_rendezvous()
        self._attempt += 1
        # torch's dynamic store begins anew each round; the static one does not, so there its attempt is the key.
        store = PrefixStore(f"ft/{self._attempt if self._is_static else 0}", info.store)
        agreed = self._agree(store, info)
        self.generation, self.failures = agreed["generation"], agreed["failures"]
        self._round = info.store
        # torch's dynamic store begins anew each round, and counts of attempts differ between its nodes.
        self._of_failures = PrefixStore(f"ft/failure/{self._attempt if self._is_static else 0}", info.store)
        self._exchange.began(
            StoreRound(self.generation, self._of_failures, info.store, info.rank, info.world_size, self._names)
        )
        self._peers = info.world_size - 1
        where = RendezvousStoreInfo(agreed["host"], agreed["port"])
        return RendezvousInfo(PrefixStore("agents", store), info.rank, info.world_size, where)

    def _agree(self, store: Store, info: RendezvousInfo) -> dict[str, Any]:
        store.set(f"node/{info.rank}", json.dumps([self.generation, self.failures, os.uname().nodename]))
        self._hosts = info.rank == 0
        if self._hosts:
            counts = [json.loads(raw) for raw in store.multi_get([f"node/{n}" for n in range(info.world_size)])]
            self._names = tuple(name for _, _, name in counts)
            agreed = {
                "generation": max(generation for generation, _, _ in counts) + 1,
                "failures": max(failures for _, failures, _ in counts),
                "host": self._host(info),
                "port": self._store_host.renew(),
            }
            store.set("agreed", json.dumps(agreed))
        return cast("dict[str, Any]", json.loads(store.get("agreed")))

    def _host(self, info: RendezvousInfo) -> str:
        """Return where ranks find the first node: at the address that the user gave, or as torch chooses it."""
        if self._is_static and info.bootstrap_store_info is not None:
            return info.bootstrap_store_info.master_addr
        return self._local_addr or socket.getfqdn()

    @property
    def _is_static(self) -> bool:
        return self._inner.get_backend() == "static"

    def is_closed(self) -> bool:
        """See torch."""
        return self._inner.is_closed()

    def set_closed(self) -> None:
        """See torch."""
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        """See torch; with the static backend, also a node that begins the next attempt."""
        if self._is_static and self._round is not None:
            return int(_has(self._round, f"ft/restart/{self._attempt + 1}"))
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        """See torch."""
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        """See torch. A node that has ended the job stays until the others have heard it, or a second has passed.

        The store may be hosted by this very process, and the others look ten times a second, or as often as they may.
        """
        end = time.monotonic() + max(_LONGEST_FAREWELL_SECONDS, 3 * self.look_seconds)
        with contextlib.suppress(RuntimeError):
            while self._has_ended and self._round is not None and time.monotonic() < end:
                if self._round.add("ft/heard", 0) >= self._peers:
                    break
                time.sleep(0.02)  # a store has no event for this
        return self._inner.shutdown()

    def ended_by_peer(self) -> str | None:
        """See :class:`.GenerationRendezvous`."""
        if self._round is None or self._has_ended or not _has(self._round, NEWS):
            return None
        if self._of_failures is not None and _has(self._of_failures, SUSPICIONS):
            self._exchange.noticed()
        if not _has(self._round, "ft/ended"):
            return None
        why = self._round.get("ft/ended").decode("utf-8")
        self._round.add("ft/heard", 1)
        return why

    def end(self, why: str) -> None:
        """See :class:`.GenerationRendezvous`."""
        if self._round is not None and not self._has_ended:
            with contextlib.suppress(RuntimeError):  # the store's host may be what failed
                if not _has(self._round, "ft/ended"):
                    self._round.set("ft/ended", why)
                    self._round.set(NEWS, "1")
                    self._has_ended = True

    def prepare(self) -> None:
        """See :class:`.GenerationRendezvous`; the first node hosts the ranks' store."""
        if self._hosts:
            self._store_host.prepare()

    def note_failure(self, why: str) -> None:
        """See :class:`.GenerationRendezvous`."""
        self.failures += 1
        if self._round is not None:
            with contextlib.suppress(RuntimeError):  # the store's host may be what failed
                self._round.set(self._failed_key, "1")

    def failed_elsewhere(self) -> bool:
        """See :class:`.GenerationRendezvous`."""
        return self._round is not None and _has(self._round, self._failed_key)

    @property
    def _failed_key(self) -> str:
        return f"ft/failed/{self._attempt if self._is_static else 0}"


@contextlib.contextmanager
def _unshared_store() -> Iterator[None]:
    """Have torch's handler host no store of its own (its documented switch, read at each round).

    It would publish the store's address in the first round only, and a node that joins later waits for it in vain.
    """
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _has(store: Store, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except DistNetworkError:
        return False
