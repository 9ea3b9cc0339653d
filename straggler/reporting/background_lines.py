"""Lines appended to a file by a thread, so that a file system that hangs does not hold up the caller."""

from __future__ import annotations

import atexit
import collections
import logging
import os
import threading
from pathlib import Path

__all__ = ["BackgroundLines"]

logger = logging.getLogger(__name__)


class BackgroundLines:
    """Appends lines to a file. The first line that is lost is logged, later ones are not.

    Args:
        path: The file; it and its folder are made with the first line.
        what: What the lines are, for the message.
        most_waiting: How many lines may wait to be written; further ones are lost.
    """

    def __init__(self, path: Path, what: str, most_waiting: int) -> None:
        self._path = path
        self._what = what
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._waiting: collections.deque[str] = collections.deque()  # the first one is being written
        self._is_closed = False
        self._has_lost = False
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
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except (OSError, ValueError) as error:  # ValueError: a path with a null character
            self._lose(str(error))

    def _lose(self, why: str) -> None:
        if not self._has_lost:
            self._has_lost = True
            logger.warning("straggler %s cannot be written to %s: %s (said once)", self._what, self._path, why)
