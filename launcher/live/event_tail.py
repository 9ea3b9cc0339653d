"""Follow one file of events: each call returns what was written since the last one."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from launcher.records.event_files import FORMAT_VERSION, event_of
from launcher.records.format_versions import check_version
from resilience_core.system.plain_files import only_plain

__all__ = ["EventTail"]

_PIECE_BYTES = 1 << 20


class EventTail:
    """One file of events. A line that is no event is left out, as :func:`.read_events` does.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_anew = False
        """Whether the last call of :meth:`read` began another file: the one before it was removed, or cut off."""
        self._descriptor = -1
        self._offset = 0
        self._rest = b""
        self._is_first = True

    def read(self) -> list[dict[str, Any]]:
        """Return the events that were written since the last call, in their order.

        A file that was removed is waited for: its launcher makes it anew with the next event.

        Raises:
            OSError: The file cannot be read, or was never there.
            UnknownVersionError: Another release of torch-resilience has written it.
        """
        self.is_anew = False
        if self._descriptor < 0:
            self._open()
        elif (status := os.fstat(self._descriptor)).st_nlink == 0 or status.st_size < self._offset:
            try:
                self._open()
            except FileNotFoundError:
                return []
            self.is_anew = True
        events = []
        while raw := os.pread(self._descriptor, _PIECE_BYTES, self._offset):
            self._offset += len(raw)
            *lines, self._rest = (self._rest + raw).split(b"\n")  # the last line may be on its way
            for line in lines:
                with contextlib.suppress(ValueError):
                    event = event_of(line.decode("utf-8", errors="replace"))
                    events.append(event)
        if events and self._is_first:
            check_version(self.path, events[0].get("version", 1), FORMAT_VERSION)
            self._is_first = False
        return events

    def close(self) -> None:
        """Close the file; a later call of :meth:`read` begins it anew."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        descriptor = only_plain(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        self.close()
        self._descriptor, self._offset, self._rest, self._is_first = descriptor, 0, b"", True

    def __del__(self) -> None:
        self.close()
