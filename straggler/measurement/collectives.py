"""The number of collectives that this rank has begun, in all of its process groups."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from straggler.measurement.waits import WaitClock

__all__ = ["collective_counter"]


def collective_counter(waits: WaitClock | None = None) -> Callable[[], int] | None:
    """Return a reader of the sum of all groups' sequence numbers, None where this torch cannot tell one.

    Args:
        waits: Its waits are added, since not every backend numbers what goes from one rank to another.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    from torch.distributed.distributed_c10d import _world

    try:
        dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):  # a backend without sequence numbers
        return None
    groups: dict[Any, Any] = _world.pg_map

    def count() -> int:
        total = 0 if waits is None else waits.seen
        for group in list(groups):
            with contextlib.suppress(AttributeError, RuntimeError):  # a group of a backend without them
                total += group._get_sequence_number_for_group()
        return total

    return count
