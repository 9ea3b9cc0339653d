"""Exchange: one window per rank to rank 0, within a time bound.

Why a store and no collective: a collective waits for every rank, so one rank that died or hangs would hang the
report of all others, and a report has to name just such a rank. Every process group has a store: each rank writes its
window there and continues. Rank 0 reads what is there when all ranks have written or when the bound has passed. A
rank that is missing is UNKNOWN, and the report states the coverage.

All of this happens on threads of its own: training only puts a window aside. So rank 0 can give a rank that is late
the whole bound, at every report, and nobody waits for it. Only :meth:`Detector.generate_report` is waited for; there a
rank that was missing last time gets a short grace, but its window of last time, which has come since, is taken.

Cost per report: a rank writes one value and adds one to a counter (O(K)), and asks once or twice for the next plan;
rank 0 reads N values (O(N)) and writes which report they were for. Two keys per rank are overwritten in turn (with the
report's number, so that an old window is recognised); only the counter is new each time, and the last ones are deleted.
When all ranks have closed their exchange, no key is left (:mod:`straggler.exchange.leaving`).

Every call to the store is made on a helper thread and waited for with a limit: the server of the store lives in
some process too, and if that process is stopped, a call never returns. Until the call returns, no other is made: one
warning is logged, and reports have this rank's own times only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from straggler.exchange.presence import same_group

__all__ = ["Exchange", "LocalExchange", "connect"]

_POLLS = 10
"""In an interval: nine of ten find the plan at the first, and then ask no more before the next report."""
_SHORTEST_POLL, _LONGEST_POLL = 0.01, 5.0


class Exchange(Protocol):
    """Carries windows to rank 0 and messages back. ``None`` always means: not in time, or not there."""

    rank: int
    world_size: int
    heard_within: float
    """Seconds in which the others learn of what is shown."""

    def post(self, sequence: int, payload: bytes) -> None:
        """Leave this rank's window for report ``sequence``."""

    def collect(self, sequence: int, is_over: Callable[[], bool] | None = None) -> list[bytes | None]:
        """Return every rank's latest window, on rank 0, in at most the bound.

        Args:
            sequence: The report's number.
            is_over: Asked again and again, where no rank waits for the report: True ends it with what is there. None:
                ranks wait for it, and so ranks that were missing last time get a short grace only.
        """
        ...

    def note_late(self, ranks: Iterable[int]) -> None:
        """Note, on rank 0, who was missing in the report just made."""

    def publish(self, sequence: int, outcomes: dict[int, bytes]) -> None:
        """Leave a message for each of these ranks, on rank 0."""

    def outcome(self, sequence: int, is_over: Callable[[], bool] | None = None) -> bytes | None:
        """Return rank 0's message to this rank, in at most twice the bound (rank 0 may spend one itself)."""

    def show(self, board: bytes) -> None:
        """Show all other ranks, on rank 0, what it has planned and proposes."""

    def look(self) -> bytes | None:
        """Return what rank 0 shows, None where that has not changed since the last call."""

    def answer(self, proposal: int, amount: int) -> None:
        """Add to the answers to a proposal of rank 0's."""

    def answers(self, proposal: int) -> int:
        """Return the sum of the answers to a proposal, on rank 0."""
        ...

    def wanted_names(self) -> list[int]:
        """Return the hashes whose names rank 0 asks everybody for."""
        ...

    def want_names(self, hashes: Iterable[int]) -> None:
        """Ask, on rank 0, for the names behind these hashes."""

    def tell_names(self, names: Mapping[int, str]) -> None:
        """Tell rank 0 the names behind these hashes, in at most the bound for all of them."""

    def names_of(self, hashes: Iterable[int]) -> dict[int, str]:
        """Return the names behind these hashes, on rank 0, as far as ranks have told them, in at most the bound."""
        ...

    def close(self) -> None:
        """Remove what nobody reads any more and stop the helper thread; nothing is sent after this."""


class LocalExchange:
    """Exchange of a single process without a group: this rank's window is all there is."""

    rank = 0
    world_size = 1
    heard_within = 0.0

    def __init__(self) -> None:
        self._payload: bytes | None = None

    def post(self, sequence: int, payload: bytes) -> None:
        """Keep this rank's window."""
        self._payload = payload

    def collect(self, sequence: int, is_over: Callable[[], bool] | None = None) -> list[bytes | None]:
        """Return this rank's window."""
        return [self._payload]

    def note_late(self, ranks: Iterable[int]) -> None:
        """Do nothing: there are no other ranks."""
        return

    def publish(self, sequence: int, outcomes: dict[int, bytes]) -> None:
        """Do nothing: there are no other ranks."""
        return

    def outcome(self, sequence: int, is_over: Callable[[], bool] | None = None) -> bytes | None:
        """Return None: there is no other rank 0."""
        return None

    def show(self, board: bytes) -> None:
        """Do nothing: there are no other ranks."""
        return

    def look(self) -> bytes | None:
        """Return None: there is no other rank 0."""
        return None

    def answer(self, proposal: int, amount: int) -> None:
        """Do nothing: there is no other rank 0."""
        return

    def answers(self, proposal: int) -> int:
        """Return the others' answers: there are none who could refuse."""
        return self.world_size - 1

    def wanted_names(self) -> list[int]:
        """Return nothing: this rank knows its names."""
        return []

    def want_names(self, hashes: Iterable[int]) -> None:
        """Do nothing: there are no other ranks."""
        return

    def tell_names(self, names: Mapping[int, str]) -> None:
        """Do nothing: there are no other ranks."""
        return

    def names_of(self, hashes: Iterable[int]) -> dict[int, str]:
        """Return nothing: there are no other ranks."""
        return {}

    def close(self) -> None:
        """Do nothing: there is no helper thread."""
        return


def connect(
    bound_seconds: float, *, interval_seconds: float = 60.0, store: Any = None, generation: int = 0
) -> Exchange:
    """Return the exchange for this process: through the default group's store, or local without a group.

    Args:
        bound_seconds: See :class:`StoreExchange`.
        interval_seconds: Between two reports.
        store: A store to use instead of the default group's own.
        generation: Restarts before this run of the job; part of every key.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return LocalExchange()
    is_expected = _always
    if store is None:
        from torch.distributed.distributed_c10d import _get_default_store

        store = _get_default_store()
        is_expected = same_group()
    from straggler.exchange.store import StoreExchange

    return StoreExchange(
        store,
        dist.get_rank(),
        dist.get_world_size(),
        bound_seconds=bound_seconds,
        heard_within=min(max(interval_seconds / _POLLS, _SHORTEST_POLL), _LONGEST_POLL),
        prefix=f"straggler/{generation}/{_instance_number()}",
        is_expected=is_expected,
    )


def _always() -> bool:
    return True


_instances = 0


def _instance_number() -> int:
    """Count the exchanges of this process, so that a second detector gets keys of its own.

    Detectors are made in the same order on every rank, as process groups are.
    """
    global _instances
    _instances += 1
    return _instances
