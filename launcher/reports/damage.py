"""What is said of a file in which lines are damaged: of each of the first few, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["note_left_out"]

_MOST_LINES = 5


def note_left_out(path: str, left_out: Sequence[str], notes: list[str]) -> None:
    """Note what was left out of a file.

    Args:
        path: Of the file.
        left_out: A text for each line.
        notes: Gets the notes.
    """
    notes += left_out[:_MOST_LINES]
    if (left := len(left_out) - _MOST_LINES) > 0:
        notes.append(f"{path}: {left:,} more line(s) are left out")
