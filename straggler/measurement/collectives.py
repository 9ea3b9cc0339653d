"""The number of collectives that the default process group has begun."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["collective_counter"]


def collective_counter() -> Callable[[], int] | None:
    """Return a reader of the default group's collective sequence number, None where this torch cannot tell it."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    read: Callable[[], int] | None = getattr(dist.group.WORLD, "_get_sequence_number_for_group", None)
    try:
        if read is not None:
            read()
    except RuntimeError:  # a backend without sequence numbers
        return None
    return read
