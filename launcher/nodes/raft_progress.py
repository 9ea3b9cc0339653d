"""What a leader knows of those that it replicates to."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Progress", "reached_by_majority"]


class Progress:
    """One follower or learner, as its leader sees it.

    Args:
        next_index: Of the entry to send next.
    """

    def __init__(self, next_index: int) -> None:
        self.next_index = next_index
        self.match_index = 0
        self.acknowledged_ns: int | None = None
        """The leader's clock when it sent what was answered last."""
        self.installing_ns: int | None = None
        """When a snapshot was sent that is not answered yet."""

    def answered(self, stamp_ns: int) -> None:
        """Note an answer to what was sent at ``stamp_ns``."""
        self.acknowledged_ns = max(stamp_ns, self.acknowledged_ns or stamp_ns)


def reached_by_majority(values: Sequence[int]) -> int:
    """Return the largest value that a majority has reached, of one value for each voter."""
    return sorted(values, reverse=True)[len(values) // 2]
