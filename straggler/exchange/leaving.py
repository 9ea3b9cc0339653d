"""WrittenKeys and :func:`leave`: nothing of a detector stays in the store after all ranks have closed it.

Rank 0 reads what the others write, so no rank may remove its windows while rank 0 may still collect them. When rank 0
leaves, it sets a mark, and removes what it has written and all that the others have. Any other rank that leaves says so
in the place of its next window. If it then finds the mark it removes what it has written; without the mark rank 0 does
so later, after its own mark. The last to leave removes the mark and the count of those that have left. So after all
ranks have left nothing is there.

Of a rank that is killed (SIGKILL, or a signal that Python does not handle) its latest keys and these two stay.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["IS_OVER", "LATE_REPORTS", "WrittenKeys", "counters", "leave"]

IS_OVER = "is-over"
"""The key that is set once rank 0 has left."""

LATE_REPORTS = 4
"""So far behind a window may come: no more of them wait to be sent."""

_NUMBERED = ("count", "answers")
"""Keys of which there is a new one again and again."""
_KEPT_NUMBERS = 8


class WrittenKeys:
    """The keys that this rank has written: of numbered ones the last few, since older ones are removed in the run."""

    def __init__(self) -> None:
        self._plain: dict[str, None] = {}
        self._numbered: dict[str, collections.deque[str]] = {
            kind: collections.deque(maxlen=_KEPT_NUMBERS) for kind in _NUMBERED
        }

    def note(self, key: str, kind: str) -> None:
        """Note that a key is written.

        Args:
            key: The whole key.
            kind: Its first part after the prefix.
        """
        if kind not in self._numbered:
            self._plain[key] = None
        elif key not in self._numbered[kind]:
            self._numbered[kind].append(key)

    def all(self) -> list[str]:
        """Return them."""
        return [*self._plain, *(key for keys in self._numbered.values() for key in keys)]


def counters(key: Callable[..., str], posted: Mapping[int, int]) -> list[str]:
    """Return the counters that other ranks may have made, or made anew, without rank 0.

    Args:
        key: Makes a key of its parts.
        posted: Number of this rank's last window, by kind of report.
    """
    numbers = [n for last in posted.values() for n in range(last - LATE_REPORTS, last + 2)]
    return [*(key("count", number) for number in numbers), key("board-epoch"), key("wanted-epoch")]


def leave(
    store: Any,
    key: Callable[..., str],
    rank: int,
    world_size: int,
    written: Callable[[], Iterable[str]],
    *,
    limit_seconds: float,
) -> None:
    """Remove from the store what nobody reads any more; see the module.

    Args:
        store: The store.
        key: Makes a key of its parts.
        rank: This rank.
        world_size: Ranks that write to the store.
        written: Returns the keys that this rank has written, on rank 0 those of the others, too. Called once the mark
            is set: who leaves without having seen it has written all that it ever will.
        limit_seconds: After this no further key is removed.
    """
    deadline = time.monotonic() + limit_seconds
    is_over, left = key(IS_OVER), key("left")
    if rank == 0:
        store.set(is_over, b"1")
    if rank == 0 or store.check([is_over]):
        for name in dict.fromkeys(written()):
            if time.monotonic() >= deadline:
                break
            store.delete_key(name)
    if store.add(left, 1) >= world_size:
        store.delete_key(is_over)
        store.delete_key(left)
