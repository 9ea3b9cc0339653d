"""Numbers of reports: those that are made on schedule and those that the script asks for are counted apart.

A rank may have ended its window of a scheduled report, and another not yet, when both ask for a report of their own.
"""

from __future__ import annotations

__all__ = ["asked", "kind_of", "place_of"]

_ASKED = 1 << 32


def asked(place: int) -> int:
    """Return the number of the report that the script asks for in this place, from 0."""
    return _ASKED + place


def kind_of(sequence: int) -> int:
    """Return 0 for a report on schedule, 1 for one that the script has asked for."""
    return sequence // _ASKED


def place_of(sequence: int) -> int:
    """Return which of its kind a report is, from 0."""
    return sequence % _ASKED
