"""What tells one deadline of one rank from every other, and when its limit passes that runs anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from launcher.monitor.lost_time import Freeze, moved_by_ns
from launcher.monitor.verdict import Deadline
from resilience_core.protocol.cell_view import CellView

__all__ = ["Key", "key_of", "passes_ns", "word"]

R = TypeVar("R")
Word = tuple[str, int, int]
Key = tuple[R, tuple[int, int], Word]


def word(deadline: Deadline) -> Word:
    """Return what tells a deadline from one that was set later in the same place."""
    return deadline.cause, deadline.slot, deadline.at_ns


def key_of(rank: R, view: CellView, deadline: Deadline) -> Key[R]:
    """Return what tells a deadline from all others, those of a successor in the same cell included."""
    return rank, (view.pid, view.start_time), word(deadline)


def passes_ns(deadline: Deadline, anew_ns: int, freezes: Sequence[Freeze]) -> int:
    """Return when a limit that runs anew from then on has passed, lost time included."""
    at_ns = anew_ns + deadline.at_ns - deadline.since_ns
    return at_ns + moved_by_ns(anew_ns, at_ns, freezes)
