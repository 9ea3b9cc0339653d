"""The source of lines in stacks, read within a bound: it tells what a C function hides, which is no frame of Python.

The monitor asks in the middle of a verdict, and the script may lie on a file system that hangs. A thread reads it, one
that is there before anything goes wrong; what it has not read in time is not known.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable

from launcher.incidents.frames import Frame
from launcher.processes.background import Background, NotDoneError
from resilience_core.system.plain_files import only_plain

__all__ = ["SourceReader"]

_LARGEST_SOURCE = 1 << 22
_CLOCKS_DIFFER_SECONDS = 0.05
"""How much later than it was a change may be noted; the start of a process is known to 0.01 s."""


class SourceReader:
    """Reads lines of source in a thread of its own."""

    def __init__(self) -> None:
        self._thread = Background("ft_sources", 8)
        self._thread.start()

    def lines(
        self, frames: Iterable[Frame], timeout_seconds: float, read_by_then: float = math.inf
    ) -> dict[Frame, str]:
        """Read the line of each frame, and each file once.

        Args:
            frames: Whose.
            timeout_seconds: The bound on all of it together.
            read_by_then: When, on ``time.time()``, the ranks may have read these files. What was changed since may say
                something else than what runs.

        Returns:
            Frame to line, which is empty where there is no such file or line. A frame is missing where its file did not
            answer in time or was changed since, or there was no room for a thread.
        """
        found: dict[Frame, str] = {}
        by_path: dict[str, list[Frame]] = {}
        for frame in frames:
            by_path.setdefault(frame.path or frame.file, []).append(frame)

        def read() -> None:
            for path, there in by_path.items():
                source = _source(path, read_by_then + _CLOCKS_DIFFER_SECONDS)
                if source is not None:
                    found.update({f: source[f.line - 1] if 0 < f.line <= len(source) else "" for f in there})

        if by_path and self._thread.is_started:
            with contextlib.suppress(NotDoneError):
                self._thread.call(read, timeout_seconds)
        return dict(found)


def _source(path: str, newest: float) -> list[str] | None:
    try:
        with open(path, encoding="utf-8", errors="replace", opener=only_plain) as file:
            changed = os.fstat(file.fileno())
            if max(changed.st_mtime, changed.st_ctime) > newest:  # copies may keep an old mtime
                return None
            return file.read(_LARGEST_SOURCE).split("\n")
    except (OSError, ValueError):  # a null in the path
        return []
