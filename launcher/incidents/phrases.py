"""Words for people about single facts: a stack in a few lines, how a process has ended."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Sequence

from launcher.incidents.frames import OURS, Frame
from resilience_core.system.clock import NS_PER_SECOND

__all__ = [
    "SHORT_STACK",
    "WITHDRAWN",
    "exit_phrase",
    "kernel_phrase",
    "no_stack_phrase",
    "shortened",
    "time_of_day",
    "wait_phrase",
]

_OF_FAULTHANDLER = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)

_STATES = {
    "R": "runs",
    "S": "sleeps in the kernel",
    "D": "sleeps uninterruptibly in the kernel",
    "T": "is stopped by a signal",
    "t": "is stopped by a tracer",
}
"""Of proc(5); other letters speak of a process that has ended, or of a thread of the kernel."""

WITHDRAWN = "verdict withdrawn"
"""How the message of a rank begins that came back, or was only due with one that did."""
SHORT_STACK = 8
"""How many lines a stack takes on a terminal, at most."""


def shortened(frames: Sequence[Frame]) -> list[Frame | int]:
    """Return the innermost frames and the user's own innermost line; a number stands for so many left out.

    Our own frames are shown only where the stack ends in them: there it stands, and elsewhere they tell nothing.
    """
    innermost = list(itertools.takewhile(lambda frame: frame.package in OURS, frames))
    shown = [*innermost, *(frame for frame in frames[len(innermost) :] if frame.package not in OURS)]
    if len(shown) <= SHORT_STACK:
        return list(shown)
    own = next((number for number, frame in enumerate(shown) if frame.package == ""), 0)
    kept: list[Frame | int]
    if own < SHORT_STACK - 1:
        end = SHORT_STACK - 1
        kept = [*shown[:end]]
    else:
        first = SHORT_STACK - 3
        kept, end = [*shown[:first], own - first, shown[own]], own + 1
    return [*kept, len(shown) - end] if len(shown) > end else kept


def exit_phrase(code: int) -> str:
    """Return how a process has ended; a negative code stands for a signal."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"


def kernel_phrase(state: str, system_call: str | None, kernel_wait: str | None) -> str:
    """Return where a process is in the kernel.

    Args:
        state: One letter of proc(5).
        system_call: The name of the one that it sleeps in, where that is known.
        kernel_wait: The kernel's function that it sleeps in, where that is known.
    """
    return f"{_STATES.get(state, 'is')} (state {state}){wait_phrase(system_call, kernel_wait)}"


def wait_phrase(system_call: str | None, kernel_wait: str | None) -> str:
    """Return in what a process sleeps, behind a blank; nothing where that is not known."""
    if system_call is None:
        return f" in {kernel_wait}" if kernel_wait else ""
    return f" in {system_call}{f', wait channel {kernel_wait}' if kernel_wait else ''}"


def no_stack_phrase(code: int, has_told: bool, is_hang: bool) -> str | None:
    """Return why there is no stack of a process that has ended, and how there would be one the next time.

    Args:
        code: How it has ended; negative for a signal.
        has_told: Python has written its stack to standard error.
        is_hang: Stacks of all ranks were wanted; of a failure only one that a signal has ended leaves none behind.

    Returns:
        None where there is nothing to say.
    """
    if code >= 0 and not is_hang:
        return None
    phrase = "the process had ended before anybody could look at it"
    if -code not in _OF_FAULTHANDLER:
        return phrase
    if has_told:
        return f"{phrase}; Python has written one to standard error, below"
    return f"{phrase}; with PYTHONFAULTHANDLER=1 in the environment Python writes one to standard error as it dies"


def time_of_day(at_ns: int, now_ns: int) -> str:
    """Return the local time, to the second, of a past instant of ``CLOCK_MONOTONIC``."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() - (now_ns - at_ns) / NS_PER_SECOND))
