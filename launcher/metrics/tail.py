"""Follow a file of lines that somebody else appends to."""

from __future__ import annotations

import os

from resilience_core.system.plain_files import only_plain

__all__ = ["Tail"]

_MOST_BYTES = 4 << 20
"""That are read at once."""
_LONGEST_LINE_BYTES = 1 << 20


class Tail:
    """Returns what was appended since the last time.

    A file that was removed and made anew, or cut off, is read from its beginning.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_at_end = True
        """Whether there was no more to read the last time."""
        self.endless = 0
        """Lines that were left out since they have no end."""
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""

    def read(self) -> list[str]:
        """Return lines that have come since, whole ones only, without their ends; none where there is no file.

        Raises:
            OSError: The file is there and cannot be read.
        """
        self.is_at_end = True
        try:
            descriptor = only_plain(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return []
        try:
            status = os.fstat(descriptor)
            identity = status.st_dev, status.st_ino
            if identity != self._file or status.st_size < self._offset:
                self._file, self._offset, self._rest = identity, 0, b""
            raw = os.pread(descriptor, _MOST_BYTES, self._offset)
        finally:
            os.close(descriptor)
        self._offset += len(raw)
        self.is_at_end = len(raw) < _MOST_BYTES
        *lines, self._rest = (self._rest + raw).split(b"\n")
        if len(self._rest) > _LONGEST_LINE_BYTES:
            self._rest = b""
            self.endless += 1
        return [line.decode("utf-8", errors="replace") for line in lines if line]
