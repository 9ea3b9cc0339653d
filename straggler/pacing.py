"""Work beside training in portions, so that a step waits for one of them at most.

A thread that computes holds the interpreter's lock much of the time, and the thread that trains waits for it whenever
it comes back from a call into torch: a report of thousands of ranks delayed a step by as long as it took to make. What
is computed beside training therefore calls :func:`pace` after each millisecond or so. Once the portion of a step is
used up, that call waits for the next step.

Two other shapes were rejected. A process of its own for the scores would need the memory of an interpreter, and a
second copy of all windows. Shorter turns of the interpreter (``sys.setswitchinterval``) would hold for all threads of
the training, which is not ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["Pacer", "carried", "longest_wait", "pace", "paced", "wait_no_longer_than"]

T = TypeVar("T")

_PORTION_SECONDS = 0.0005
"""Processor time used in one step. A step may be delayed by this, and by what is done between two calls of pace."""
_LONGEST_STEP = 1.0
"""Seconds after which the next portion is used though no step has ended."""
_LOOK_SECONDS = 0.01
"""Time between two checks whether somebody waits for the work by now."""


class _Thread(threading.local):
    pacer: Pacer | None = None
    used: float = 0.0


_here = _Thread()


class Pacer:
    """Says when work beside training is to wait for the next step.

    Args:
        is_hurried: Whether somebody waits for the work, so that it is done at once.
    """

    def __init__(self, is_hurried: Callable[[], bool]) -> None:
        self._is_hurried = is_hurried
        self._left = 0.0
        self._steps = self._seen = 0
        self._portion = 0.0
        self._is_waiting = False
        self._next_step = threading.Event()

    def step(self) -> None:
        """Count a step, on the thread that trains."""
        self._steps += 1
        if self._is_waiting:
            self._next_step.set()

    @contextmanager
    def beside_training(self, longest_seconds: float) -> Iterator[None]:
        """Do a piece of work in portions, on this thread and on those that it calls by :func:`carried`.

        Args:
            longest_seconds: All waits of it together; after these it is done at once.
        """
        self._left = longest_seconds
        with self._on_this_thread():
            yield

    @contextmanager
    def _on_this_thread(self) -> Iterator[None]:
        before, _here.pacer, _here.used = _here.pacer, self, time.thread_time()
        try:
            yield
        finally:
            _here.pacer = before

    def _pace(self) -> None:
        used = time.thread_time()
        self._portion += used - _here.used
        _here.used = used
        if self._seen != self._steps:
            self._seen, self._portion = self._steps, 0.0
        if self._portion >= _PORTION_SECONDS and self._left > 0.0:
            self._wait()
            self._portion = 0.0

    def _wait(self) -> None:
        began = time.monotonic()
        end = began + min(_LONGEST_STEP, self._left)
        self._is_waiting = True
        while self._steps == self._seen and not self._is_hurried():
            left = end - time.monotonic()
            if left <= 0.0:
                break
            self._next_step.wait(min(left, _LOOK_SECONDS))
            self._next_step.clear()
        self._is_waiting = False
        self._seen = self._steps
        self._left -= time.monotonic() - began


def pace() -> None:
    """Wait for the next step where this thread works beside training and the portion of this step is used up."""
    if _here.pacer is not None:
        _here.pacer._pace()


def paced(items: Iterable[T], many: int = 1) -> Iterator[T]:
    """Yield items; before every so many of them, :func:`pace`."""
    for number, item in enumerate(items):
        if number % many == 0:
            pace()
        yield item


def carried(function: Callable[[], T]) -> Callable[[], T]:
    """Return a function that another thread calls in this one's stead, in the same portions."""
    pacer = _here.pacer
    if pacer is None:
        return function

    def carry() -> T:
        with pacer._on_this_thread():
            return function()

    return carry


def wait_no_longer_than(seconds: float) -> None:
    """Limit the waits for steps that the work on this thread still makes, once others turn out to wait for it."""
    if _here.pacer is not None:
        _here.pacer._left = min(_here.pacer._left, seconds)


def longest_wait() -> float:
    """Return how many seconds the work on this thread may still wait for steps, all in all."""
    return 0.0 if _here.pacer is None else _here.pacer._left
