"""What is known of a rank at one moment, and when it waited for a peer. Times are ``CLOCK_MONOTONIC`` nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Sample", "Wait"]


class Sample(NamedTuple):
    """A rank at one moment."""

    t_ns: int
    iteration: int | None
    done: int | None
    inside_ns: Mapping[str, int]
    """How long it had been in each section so far, an open one included."""
    closed: Mapping[str, int]
    saving_ns: int = 0
    """How long saves had held up its steps so far; of those that were over."""
    last_sign_ns: int | None = None
    """Of the last line of a generation: nothing of what it tells was closed later than then."""


class Wait(NamedTuple):
    """A section that a rank has left because a peer had failed."""

    section: str
    since_ns: int
    """When it was opened."""
    until_ns: int
    """When it was left, which was the rank's last sign."""
