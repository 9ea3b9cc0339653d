"""Follow one file of events: each call returns what was written since the last one."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

from launcher.records.event_files import FORMAT_VERSION, event_of
from launcher.records.format_versions import check_version
from launcher.records.tail import Tail

__all__ = ["EventTail"]


class EventTail:
    """One file of events. A line that is no event is left out, as :func:`.read_events` does.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.is_anew = False
        """Whether the last call of :meth:`read` began another file: the one before it was removed, or cut off."""
        self._tail = Tail(path)
        self._is_first = True

    def read(self) -> list[dict[str, Any]]:
        """Return the events that were written since the last call, in their order.

        A file that was removed is waited for: its launcher makes it anew with the next event.

        Raises:
            OSError: The file cannot be read, or was never there.
            UnknownVersionError: Another release of torch-resilience has written it.
        """
        self.is_anew = False
        events = []
        while True:
            lines = self._tail.read()
            if self._tail.is_anew:
                self.is_anew = self._is_first = True
            for line in lines:
                with contextlib.suppress(ValueError):
                    events.append(event_of(line))
            if self._tail.is_at_end:
                break
        if not self._tail.has_been_there:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._tail.path)
        if events and self._is_first:
            check_version(self._tail.path, events[0].get("version", 1), FORMAT_VERSION)
            self._is_first = False
        return events

    def close(self) -> None:
        """Close the file; a later call of :meth:`read` begins it anew."""
        self._tail.close()
