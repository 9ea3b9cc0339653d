"""What a client keeps of one section name."""

from __future__ import annotations

from resilience_core.protocol.cell_layout import FIRST_CLOSED, FIRST_SECTION, NO_LIMIT, NOT_COUNTED, NOT_SHOWN
from resilience_core.protocol.figures import (
    BUCKETS,
    CLOSE_CALL,
    CLOSE_CALLS,
    LEFT,
    LEFT_AT,
    LEFT_OPENED,
    LEFT_TOOK,
    LONGEST,
    TOOK,
)

__all__ = ["FigureRow", "Section", "plausible"]


_LARGEST = 1 << 61
"""No count and no total of ours comes near it; more than that would be refused by a word at some time."""


def plausible(word: int) -> int:
    """Return what an earlier process has counted, 0 where that is damaged."""
    return word if 0 <= word < _LARGEST else 0


class FigureRow:
    """The figures of one row; sections whose names find no row of their own share the last one.

    The numbers are kept here, too: to load a word of shared memory takes longer than an attribute.

    Args:
        number: Of the row.
        figures: The client's, in which an earlier process or client may have left something.
    """

    __slots__ = (
        "buckets",
        "buckets_word",
        "close_calls",
        "close_calls_word",
        "left",
        "left_at_word",
        "left_ns",
        "left_opened_word",
        "left_took_word",
        "left_word",
        "longest_word",
        "took_ns",
        "took_word",
    )

    def __init__(self, number: int, figures: memoryview) -> None:
        self.took_word, self.buckets_word = TOOK + number, BUCKETS + 64 * number
        self.longest_word, self.close_calls_word = LONGEST + number, CLOSE_CALLS + number
        self.left_word, self.left_took_word = LEFT + number, LEFT_TOOK + number
        self.left_opened_word, self.left_at_word = LEFT_OPENED + number, LEFT_AT + number
        words = [figures[word] for word in (self.took_word, self.close_calls_word, self.left_word, self.left_took_word)]
        words += figures[self.buckets_word : self.buckets_word + 64].tolist()
        self.took_ns, self.close_calls, self.left, self.left_ns, *self.buckets = map(plausible, words)


class Section:
    """What the client keeps of one section name."""

    __slots__ = (
        "closed_word",
        "count",
        "deadline_word",
        "due",
        "handled",
        "limit_ns",
        "longest_ns",
        "name",
        "notable_ns",
        "opened_ns",
        "opened_word",
        "row",
    )

    def __init__(self, name: str, deadline_word: int, row: FigureRow) -> None:
        self.name = name
        self.row = row
        self.deadline_word = deadline_word
        self.opened_word = deadline_word + 1
        is_shared = deadline_word == NOT_SHOWN
        self.closed_word = NOT_COUNTED if is_shared else FIRST_CLOSED + (deadline_word - FIRST_SECTION) // 2
        self.limit_ns: int | None = None
        self.due: tuple[int, int] = (0, NO_LIMIT)
        """Of one that shares its slot: when it was last opened, and by when it had to be closed then."""
        self.opened_ns = 0
        self.handled = 0
        """The ``id`` of the exception that was handled when it was opened, 0 where there was none."""
        self.longest_ns = 0
        self.notable_ns = 0
        """A duration above this is the longest so far, or near the limit: one comparison for both figures."""
        self.count = 0

    def note_long(self, took_ns: int, figures: memoryview) -> None:
        """Note a duration that is longer than any before it, or close to the limit.

        Args:
            took_ns: The duration.
            figures: The client's.
        """
        row, close_ns = self.row, NO_LIMIT if self.limit_ns is None else int(self.limit_ns * CLOSE_CALL)
        if took_ns >= close_ns:
            row.close_calls += 1
            figures[row.close_calls_word] = row.close_calls
        longest_ns = max(figures[row.longest_word], took_ns)
        figures[row.longest_word] = longest_ns
        self.notable_ns = min(longest_ns, close_ns - 1)

    def note_left(self, now: int, beside_ns: int, figures: memoryview) -> None:
        """Note that an exception has left the section, in place of its duration.

        Args:
            now: The time.
            beside_ns: For how long steps went on meanwhile.
            figures: The client's.
        """
        row = self.row
        row.left, row.left_ns = row.left + 1, row.left_ns + now - self.opened_ns - beside_ns
        figures[row.left_word], figures[row.left_took_word] = row.left, row.left_ns
        figures[row.left_opened_word], figures[row.left_at_word] = self.opened_ns, now
