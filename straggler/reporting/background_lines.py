"""Lines appended to a file by a thread, so that a file system that hangs does not hold up the caller.

Where the file ends in the middle of a line, which a full disk, a kill or a loss of power has cut off, the next one
begins on a line of its own.
"""

from __future__ import annotations

import atexit
import collections
import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["BackgroundLines"]

logger = logging.getLogger(__name__)

_HEAD = 1 << 20


class BackgroundLines:
    """Appends lines to a file. The first line that is lost is logged, later ones are not.

    Attributes:
        lost_because: Why that line was lost, ``""`` while none is.

    Args:
        path: The file; it and its folder are made with the first line.
        what: What the lines are, for the message.
        most_waiting: How many lines may wait to be written; further ones are lost.
        is_ours: Given the first bytes of a file that is there, tells whether lines may be added to it.
    """

    def __init__(
        self, path: Path, what: str, most_waiting: int, is_ours: Callable[[bytes], bool] = lambda head: True
    ) -> None:
        self._path = path
        self._is_ours = is_ours
        self._looked_at: tuple[int, int] | None = None
        self._what = what
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._waiting: collections.deque[str] = collections.deque()  # the first one is being written
        self._is_closed = False
        self.lost_because = ""
        self._thread: threading.Thread | None = None
        self._pid = 0

    def append(self, line: str) -> None:
        """Hand over a line, newline included, without waiting for it to be written."""
        if self._thread is None and not self._start():
            self._write(line)
            return
        if self._is_closed or self._pid != os.getpid():  # the thread has ended, or belongs to the parent process
            self._write(line)
            return
        with self._changed:
            has_room = len(self._waiting) < self._most_waiting
            if has_room:
                self._waiting.append(line)
                self._changed.notify_all()
        if not has_room:
            self._lose(f"{self._most_waiting} wait already, and its file system does not answer")

    def flush(self, limit_seconds: float) -> bool:
        """Wait until every line is written, and return whether that is so.

        Args:
            limit_seconds: How long to wait.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, limit_seconds)

    def close(self, limit_seconds: float = 2.0) -> None:
        """Write what waits and end the thread. Closing twice is no error.

        Args:
            limit_seconds: How long to wait; what is not written by then may be lost.
        """
        if self._thread is None or self._pid != os.getpid():  # a forked process has no such thread
            return
        atexit.unregister(self.close)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if not self.flush(limit_seconds):
            self._lose(f"not within {limit_seconds:g} s, lines left: {len(self._waiting)}")

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name=f"straggler-{self._what}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system refuses a thread
            return False
        self._thread, self._pid = thread, os.getpid()
        atexit.register(self.close)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                line = self._waiting[0]
            self._write(line)
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()

    def _write(self, line: str) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            rest = self._line_end() + line.encode("utf-8", "backslashreplace")
            with self._path.open("ab", buffering=0) as file:
                while rest:
                    rest = rest[file.write(rest) :]
        except (OSError, ValueError) as error:  # ValueError: a path with a null character
            self._lose(str(error))

    def _line_end(self) -> bytes:
        """Return what ends the last line of the file, where nothing does yet.

        Raises:
            ValueError: The file holds something else.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return b""
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return b""
        with self._path.open("rb") as file:
            file_id = status.st_dev, status.st_ino
            if file_id != self._looked_at:
                if not self._is_ours(file.read(_HEAD)):
                    raise ValueError(f"it holds something else than {self._what} and is left as it is; move it away")
                self._looked_at = file_id
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"

    def _lose(self, why: str) -> None:
        if not self.lost_because:
            self.lost_because = why
            logger.warning("straggler %s cannot be written to %s: %s (said once)", self._what, self._path, why)
