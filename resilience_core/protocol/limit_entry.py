"""One limit in force and where it comes from, as a typed value. Pure; the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from resilience_core.protocol.limit_kinds import CONFIGURED, DEFAULT, LEARNED

__all__ = ["LimitEntry", "LimitsDocument", "SharedOrigin"]


class SharedOrigin(NamedTuple):
    """What is told of the limit of a section without a slot of its own."""

    source: str
    basis: str | None
    seconds: float


class LimitEntry(NamedTuple):
    """One limit in force. A limit that was not learned has the first two fields only."""

    seconds: float
    source: str
    """``learned``, ``configured`` or ``default``."""
    configured: float | None = None
    """The configured limit or the default of the setting, seconds; None: no limit."""
    is_default: bool = False
    """Nobody has chosen ``configured``."""
    factor: float = 0.0
    """The safety factor of the last calculation."""
    longest: float = 0.0
    """The longest interval that the limit rests on, seconds."""
    intervals: int = 0
    """How many intervals the limit rests on."""
    floor: float = 0.0
    """The floor that applied, seconds."""
    relaxed: int = 0
    """How many verdicts the limit has led to in this job."""
    else_seconds: float | None = None
    """What the limit would be if a restart were left, seconds; None: the same."""

    def basis(self, mode: str) -> str | None:
        """Return what the limit rests on: see ``LimitOrigin.basis``.

        Args:
            mode: The configuration's ``learned_limits``.
        """
        if mode == "replace" or self.source == DEFAULT:
            return None
        if self.source == LEARNED and (self.configured is None or self.is_default):
            return LEARNED
        return CONFIGURED

    def shared_origin(self, mode: str, digits: int = 4) -> SharedOrigin:
        """Return what is told of the limit where its section has no slot of its own.

        Args:
            mode: The configuration's ``learned_limits``.
            digits: How many significant digits of the seconds are told.
        """
        return SharedOrigin(self.source, self.basis(mode), float(f"{self.seconds:.{digits}g}"))


class LimitsDocument(NamedTuple):
    """Where the limits of a rank come from."""

    mode: str
    """The configuration's ``learned_limits``."""
    state_file: str | None
    """Where learned limits are kept, for messages."""
    names_sections: bool
    """The configuration names sections, so a section without a name in it is an error."""
    limits: Mapping[str, LimitEntry]
    """By kind."""
    shared: Mapping[str, LimitEntry]
    """By kind, of the sections without a slot of their own."""
