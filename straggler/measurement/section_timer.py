"""What a probe adds to a section."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["ForgettingTimer", "SectionTimer"]


class SectionTimer(Protocol):
    """Protocol of what a probe adds to a section; called only on measured entries, on the section's thread."""

    def enter(self) -> None:
        """Begin to time an entry."""

    def exit(self) -> None:
        """End the timing of an entry."""


@runtime_checkable
class ForgettingTimer(Protocol):
    """Protocol of a timer that notes which thread has entered."""

    def forget(self, thread: int) -> None:
        """Give up what this thread has entered: it was left on another one, at any time since."""
