"""Many keys of a ``torch.distributed`` store at once, where the store can do that; else one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["own_connection", "read_all", "write_all"]

_READ_KEYS = 1024
_WRITE_BYTES = 32 * 1024
"""Written by one request at most: torch's store reads a request from its begin whenever more of it has come."""


def own_connection(store: Any) -> Any:
    """Return another connection to the same store, or the store itself where it can make none."""
    try:
        return store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):  # older torch, or a store that cannot
        return store


def read_all(store: Any, keys: Sequence[str]) -> list[bytes]:
    """Return the values of keys that are set.

    Args:
        store: The store.
        keys: Which.
    """
    if not _has_many(store):
        return [store.get(key) for key in keys]
    found: list[bytes] = []
    for start in range(0, len(keys), _READ_KEYS):
        found += store.multi_get(list(keys[start : start + _READ_KEYS]))
    return found


def write_all(store: Any, keys: Sequence[str], values: Sequence[bytes]) -> None:
    """Set keys.

    Args:
        store: The store.
        keys: Which.
        values: One for each.
    """
    if not _has_many(store):
        for key, value in zip(keys, values, strict=True):
            store.set(key, value)
        return
    many = max(1, _WRITE_BYTES // max(map(len, values), default=1))
    for start in range(0, len(keys), many):
        store.multi_set(list(keys[start : start + many]), list(values[start : start + many]))


def _has_many(store: Any) -> bool:
    return bool(getattr(store, "has_extended_api", lambda: False)())
