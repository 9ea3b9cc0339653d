"""What a deliberate mistake consists of."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Mutant"]


class Mutant(NamedTuple):
    """One mistake."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """What should find it: pytest's arguments, the quick ones first."""
