"""Read what has come to the log folder, in a thread: a file system that hangs makes metrics old, and no scrape wait."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from launcher.records.tail import Tail

__all__ = ["LogReader"]

Take = Callable[[str], object]


class LogReader:
    """Follows some files, whenever somebody asks for it.

    Args:
        files: What a file holds, for the count of what is damaged, to the file and to who takes its lines. Who takes
            one raises whatever it likes: that line is counted as damaged, and costs nothing else.
    """

    def __init__(self, files: Mapping[str, tuple[Tail, Take]]) -> None:
        self._files = files
        self._changed = threading.Condition()
        self._asked = self._done = 0
        self._done_at = time.monotonic()
        self._taking = threading.Lock()
        self.damaged: Counter[str] = Counter()
        """Lines that could not be taken, by what their file holds."""

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="ft_metrics_log", daemon=True).start()

    @property
    def age_seconds(self) -> float:
        """Time since all files were read to their ends."""
        return time.monotonic() - self._done_at

    def refresh(self, patience_seconds: float) -> None:
        """Have the files read to their ends, and wait for it, unless a former reading does not come to its end.

        Args:
            patience_seconds: The longest wait.
        """
        with self._changed:
            is_behind = self._done < self._asked
            if not is_behind:
                self._asked += 1
                self._changed.notify_all()
            wanted = self._asked
            self._changed.wait_for(lambda: self._done >= wanted, 0.0 if is_behind else patience_seconds)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Have nothing taken meanwhile; the wait is for what is in memory, never for a file."""
        with self._taking:
            yield

    def read_all(self) -> None:
        """Read all files to their ends, and hand the lines over. One that cannot be read is left for the next time."""
        is_whole = True
        for what, (tail, take) in self._files.items():
            try:
                while True:
                    lines = tail.read()
                    with self._taking:
                        for line in lines:
                            try:
                                take(line)
                            except Exception:  # noqa: BLE001 - a damaged line may be wrong in any way
                                self.damaged[what] += 1
                    if tail.is_at_end:
                        break
            except OSError:
                is_whole = False
        if is_whole:
            self._done_at = time.monotonic()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._done < self._asked)
                asked = self._asked
            self.read_all()
            with self._changed:
                self._done = asked
                self._changed.notify_all()
