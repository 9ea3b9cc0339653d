"""SavesByThread: counts the saves that are in progress, for each thread that makes them.

A writer in the background may save while the loop does, and the two may overlap in any order. A save inside another
one of the same thread is part of that one. A save is usually ended by the thread that began it.
"""

from __future__ import annotations

from threading import get_ident

__all__ = ["SavesByThread"]


class SavesByThread:
    """The saves in progress, by the thread that began them.

    There is no lock: each thread changes its own entry, and each change is one operation on a dictionary.
    """

    def __init__(self) -> None:
        self.depths: dict[int, int] = {}
        """How deep the saves of each thread are nested, by the thread's identity; in the order in which they began."""
        self._abandoned: dict[int, int] = {}
        """How many ends of abandoned saves each thread may still report."""

    def in_this_thread(self) -> bool:
        """Return whether this thread is saving."""
        return get_ident() in self.depths

    def begin(self) -> bool:
        """Begin a save in this thread; return whether it is the outermost one there."""
        thread = get_ident()
        self._abandoned.pop(thread, None)
        self.depths[thread] = self.depths.get(thread, 0) + 1
        return self.depths[thread] == 1

    def thread_of_end(self) -> int | None:
        """Return the thread whose save ends when this thread reports the end of one.

        This is the thread itself if it is saving, else the other thread that began to save last. None if no save is in
        progress, or if that of this thread was abandoned before.
        """
        thread = get_ident()
        if thread in self.depths:
            return thread
        others = [] if thread in self._abandoned else list(self.depths)
        return others[-1] if others else None

    def is_outermost(self, thread: int) -> bool:
        """Return whether the innermost save of that thread is also its outermost one."""
        return self.depths.get(thread, 1) == 1

    def is_oldest(self, thread: int) -> bool:
        """Return whether other threads are saving too, and that one began before all of them."""
        threads = list(self.depths)
        return len(threads) > 1 and threads[0] == thread

    def end(self, thread: int) -> bool:
        """End a save of that thread; return whether it was the outermost one."""
        depth = self.depths.get(thread, 0)
        if depth > 1:
            self.depths[thread] = depth - 1
            return False
        return self.depths.pop(thread, None) is not None

    def abandon(self) -> bool:
        """Drop the saves of this thread, whose end was not reported; return whether there were any."""
        thread = get_ident()
        if (depth := self.depths.pop(thread, None)) is None:
            return False
        self._abandoned[thread] = depth
        return True

    def abandon_all(self) -> None:
        """Drop the saves of all threads, as at the end of a run; the end of one may be reported in the next run."""
        self._abandoned.update(self.depths)
        self.depths.clear()

    def forget_abandoned(self) -> None:
        """Note that the end of an abandoned save of this thread was reported, if there was one."""
        self._forget_one(get_ident())

    def _forget_one(self, thread: int) -> bool:
        left = self._abandoned.pop(thread, 0) - 1
        if left > 0:
            self._abandoned[thread] = left
        return left >= 0

    def was_abandoned(self) -> bool:
        """Return whether the end that this thread reports is that of an abandoned save; once for each."""
        thread = get_ident()
        if thread not in self._abandoned:
            thread = next(iter(tuple(self._abandoned)), thread)
        return self._forget_one(thread)
