"""Words for people about single facts: a stack in a few lines, how a process has ended."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Sequence

from launcher.stacks import OURS, Frame

__all__ = ["SHORT_STACK", "exit_phrase", "shortened"]

SHORT_STACK = 8
"""How many lines a stack takes on a terminal, at most."""


def shortened(frames: Sequence[Frame]) -> list[Frame | int]:
    """The innermost frames and the user's own innermost line; a number stands for so many left out.

    Our own frames are shown only where the stack ends in them: there it stands, and elsewhere they tell nothing.
    """
    innermost = list(itertools.takewhile(lambda frame: frame.package in OURS, frames))
    shown = [*innermost, *(frame for frame in frames[len(innermost) :] if frame.package not in OURS)]
    if len(shown) <= SHORT_STACK:
        return list(shown)
    own = next((number for number, frame in enumerate(shown) if frame.package == ""), 0)
    kept: list[Frame | int]
    if own < SHORT_STACK - 1:
        kept, end = list(shown[: SHORT_STACK - 1]), SHORT_STACK - 1
    else:
        first = SHORT_STACK - 3
        kept, end = [*shown[:first], own - first, shown[own]], own + 1
    return [*kept, len(shown) - end] if len(shown) > end else kept


def exit_phrase(code: int) -> str:
    """How a process has ended; a negative code stands for a signal."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"
