"""The end of what a command writes into a pipe."""

from __future__ import annotations

import os

__all__ = ["CommandOutput"]

_LONGEST_LINE = 500
_TAIL_BYTES = 1 << 16


class CommandOutput:
    """The last 64 KiB that a command has written.

    Args:
        descriptor: The read end of the pipe, which becomes non-blocking; it stays the caller's to close.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.has_ended = False
        self._tail = b""
        os.set_blocking(descriptor, False)

    def read(self) -> None:
        """Take what is there, at most a pipe's worth: who writes without end would keep us here."""
        for _ in range(16):
            try:
                part = os.read(self.descriptor, _TAIL_BYTES)
            except BlockingIOError:
                return
            if not part:
                self.has_ended = True
                return
            self._tail = (self._tail + part)[-_TAIL_BYTES:]

    def last_line(self) -> str:
        """Return the last line that is not empty, without control characters."""
        lines = self._tail.decode(errors="replace").splitlines()
        line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "".join(each if each.isprintable() else " " for each in line)[:_LONGEST_LINE]
