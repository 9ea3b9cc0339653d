"""Whether an exception that something still refers to is on its way out of its thread, or was caught there.

A loop that skips a bad batch often keeps the exception (``last_error = error``), so that it is not freed; the rank then
waits for its peers like any other. Another thread can tell by two things, both of which the interpreter knows:

- *What the thread handles.* In an ``except``, a ``finally`` or an ``__exit__()`` the exception is among what
  ``sys._current_exceptions()`` returns, or what that was raised in the course of.
- *Where the thread is.* While frames are left, and objects are finalized because of that (the iterator of a
  ``DataLoader`` joins its workers then), no handler is active. The innermost frame that the exception has yet to leave
  is then still at the instruction that it was raised from, or passed through.

With neither, the thread has caught it and has ended handling it. An exception that was put aside to be raised again
elsewhere, as a future does, may count as caught until that is done; it is noted anew where it leaves a section then, or
the program.

Two alternatives were considered. The monitor could compare the line of the rank's stack with the handlers in its
source. That needs the source of every frame as it was when it was compiled, and does not tell which exception a handler
is for. ``sys.monitoring`` reports handled exceptions, but only from Python 3.12 on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

__all__ = ["Propagation", "handled_by"]

_MOST_RELATED = 100
_DEEPEST = 1000


class _Place(NamedTuple):
    """Of a frame, without a reference to it: that would keep what its variables refer to."""

    frame: int
    code: CodeType
    instruction: int

    def is_of(self, frame: FrameType) -> bool:
        return id(frame) == self.frame and frame.f_code is self.code


class Propagation(NamedTuple):
    """The frames that an exception had yet to leave when it was noted, and where they were."""

    thread: int
    places: tuple[_Place, ...]
    """The frames that it had yet to leave, the outermost one first."""

    @classmethod
    def of(cls, error: BaseException) -> Propagation | None:
        """Return what an exception of the calling thread has yet to leave; None where that cannot be told.

        Args:
            error: One that is being handled: a frame of this thread is in its traceback.
        """
        passed = {}
        trace = error.__traceback__
        while trace is not None:
            passed[id(trace.tb_frame)] = trace.tb_lasti
            trace = trace.tb_next
        places: list[_Place] = []
        for frame in _from_outermost(sys._getframe()):
            instruction = passed.get(id(frame))
            places.append(_Place(id(frame), frame.f_code, frame.f_lasti if instruction is None else instruction))
            if instruction is not None:
                return cls(threading.get_ident(), tuple(places))
        return None

    def has_ended(self, is_it: Callable[[BaseException], bool]) -> bool:
        """Return whether the thread has caught the exception and goes on; False where that cannot be told.

        Args:
            is_it: Whether an exception is this one.
        """
        if any(map(is_it, handled_by(self.thread))):
            return False
        frame = sys._current_frames().get(self.thread)
        if frame is None:
            return False
        last = None
        for place, now in zip(self.places, _from_outermost(frame), strict=False):
            if not place.is_of(now):
                break
            last = (place.instruction, now.f_lasti)
        return last is not None and last[0] != last[1]


def _from_outermost(frame: FrameType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _DEEPEST:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1] if frame is None else []


def handled_by(thread: int | None) -> Iterator[BaseException]:
    """Yield what a thread handles, by its identifier, and everything that this came from."""
    topmost: Any = sys._current_exceptions().get(thread) if thread is not None else None
    pending = [topmost[1] if isinstance(topmost, tuple) else topmost]  # three values before Python 3.12
    seen: set[int] = set()
    while pending and len(seen) < _MOST_RELATED:
        error = pending.pop()
        if isinstance(error, BaseException) and id(error) not in seen:
            seen.add(id(error))
            yield error
            pending += [error.__cause__, error.__context__, *_members(error)]


def _members(error: BaseException) -> tuple[BaseException, ...]:
    members = getattr(error, "exceptions", None)
    return members if isinstance(members, tuple) else ()
