"""The lease of this node as its monitor sees it: one word in memory that says when the ranks must be killed.

Whoever holds the lease renews it several times a second, and a message each time would fill the monitor's channel when
nobody reads. So the deadline stands in a small file of the run folder, which both ends hold open: the launcher writes
it, and the monitor reads it.

Both use ``pwrite`` and ``pread`` on the descriptor and not a mapping: a mapped file that somebody shortens ends its
process (SIGBUS), while here the next write makes it whole. For the same reason the word stands between a magic number
and its own complement: a reader knows a damaged or half-written one.
"""

from __future__ import annotations

import os
import struct
import time

__all__ = ["LeaseWord", "read_lease"]

_MAGIC = 0x3130_4C45_4153_4546
_LAYOUT = struct.Struct("=qqq")
_TRIES = 5
_PAUSE_SECONDS = 0.001


class LeaseWord:
    """The launcher's end. Every thread may call :meth:`grant` and :meth:`lift`; the last call counts.

    Args:
        path: Of the file to make; whatever happens to the path later, the descriptor stays valid.

    Attributes:
        descriptor: For the monitor, which inherits it.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(self.descriptor, 0, _LAYOUT.size)
            os.pwrite(self.descriptor, _LAYOUT.pack(_MAGIC, 0, ~0), 0)
        except OSError:
            os.close(self.descriptor)
            os.unlink(path)
            raise

    def grant(self, until_ns: int) -> bool:
        """Set when the monitor must kill the ranks, in place of the time before.

        Args:
            until_ns: ``CLOCK_MONOTONIC`` nanoseconds; at this time the killing begins, so the margin that it needs
                is to be taken off by the caller. The monitor sees a time that is earlier than the one before within
                half a second.

        Returns:
            Whether it was written; if not, the time before it stays in force.

        Raises:
            ValueError: It is not positive.
        """
        if until_ns <= 0:
            raise ValueError(f"{until_ns} is no time of a lease")
        return self._write(until_ns)

    def lift(self) -> bool:
        """Have no fence in force; return whether that was written."""
        return self._write(0)

    def close(self) -> None:
        """Close the descriptor; a monitor that has inherited it goes on with what was written last."""
        os.close(self.descriptor)

    def _write(self, word: int) -> bool:
        try:
            return os.pwrite(self.descriptor, _LAYOUT.pack(_MAGIC, word, ~word), 0) == _LAYOUT.size
        except OSError:
            return False


def read_lease(descriptor: int) -> int | None:
    """Read the deadline.

    Args:
        descriptor: Of the file of a :class:`LeaseWord`.

    Returns:
        ``CLOCK_MONOTONIC`` nanoseconds; 0 while no fence is in force, None while the file is damaged.
    """
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_SECONDS)  # it may be written at this moment
        try:
            raw = os.pread(descriptor, _LAYOUT.size, 0)
        except OSError:
            continue
        if len(raw) == _LAYOUT.size:
            magic, word, complement = _LAYOUT.unpack(raw)
            if magic == _MAGIC and word == ~complement and word >= 0:
                return int(word)
    return None
