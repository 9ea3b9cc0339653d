"""Follow a file of lines that somebody else appends to."""

from __future__ import annotations

import os
import stat

from resilience_core.system.plain_files import only_plain

__all__ = ["Tail"]

_MOST_BYTES = 4 << 20
"""That are read at once."""
_LONGEST_LINE_BYTES = 1 << 20


class Tail:
    """Returns what was appended since the last time.

    A file that was removed or renamed and made anew, or cut off, is read from its beginning. The file is kept open
    between two reads, so that another file with the number of a removed one is not taken for it.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_at_end = True
        """Whether there was no more to read the last time."""
        self.is_anew = False
        """Whether the last call of :meth:`read` began another file than the one before it."""
        self.has_been_there = False
        self.endless = 0
        """Lines that were left out since they have no end."""
        self._descriptor = -1
        self._offset = 0
        self._rest = b""

    def read(self) -> list[str]:
        """Return lines that have come since, whole ones only, without their ends; none where there is no file.

        Raises:
            OSError: The file is there and cannot be read.
        """
        self.is_at_end, self.is_anew = True, False
        if self._descriptor >= 0:
            status = os.fstat(self._descriptor)
            if status.st_nlink == 0 or status.st_size < self._offset or self._is_another(status):
                self.close()
        if self._descriptor < 0:
            try:
                self._descriptor = only_plain(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return []
            self._offset, self._rest = 0, b""
            self.is_anew, self.has_been_there = self.has_been_there, True
        raw = os.pread(self._descriptor, _MOST_BYTES, self._offset)
        self._offset += len(raw)
        self.is_at_end = len(raw) < _MOST_BYTES
        *lines, self._rest = (self._rest + raw).split(b"\n")  # the last line may be on its way
        if len(self._rest) > _LONGEST_LINE_BYTES:
            self._rest = b""
            self.endless += 1
        return [line.decode("utf-8", errors="replace") for line in lines if line]

    def _is_another(self, status: os.stat_result) -> bool:
        """Return whether another file stands under the name of the one that is read."""
        try:
            found = os.stat(self.path)
        except OSError:  # it is waited for
            return False
        return stat.S_ISREG(found.st_mode) and not os.path.samestat(found, status)

    def close(self) -> None:
        """Close the file; a later call of :meth:`read` begins it anew."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()
