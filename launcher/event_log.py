"""The run's own diary: one JSON object per line, stamped with both clocks, flushed as it happens."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from launcher.folders import FolderError

__all__ = ["EventLog", "read_events"]


class EventLog:
    """Appends to ``events.jsonl`` in the run's log folder.

    Every line has ``event``, ``t_ns`` (``CLOCK_MONOTONIC``, comparable with the incidents and among each other)
    and ``time`` (for people). A log folder that stops taking lines is reported once and never stops the job.
    """

    def __init__(self, log_folder: str) -> None:
        self.path = os.path.join(log_folder, "events.jsonl")
        try:
            try:
                self._descriptor = _new_file(self.path)
            except FileExistsError:  # another node of this job writes to the same shared folder, or an earlier run did
                self.path = os.path.join(log_folder, f"events-{os.uname().nodename}-{os.getpid()}.jsonl")
                self._descriptor = _new_file(self.path)
        except OSError as error:
            raise FolderError(
                f"cannot write {self.path}: {error.strerror}; name another folder with --log-dir"
            ) from error
        self._failed = False

    def write(self, event: str, **facts: Any) -> None:
        """Append one line."""
        line = {
            "event": event,
            "t_ns": time.monotonic_ns(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **facts,
        }
        try:
            os.write(self._descriptor, (json.dumps(line) + "\n").encode("ascii"))
        except OSError as error:
            if not self._failed:
                self._failed = True
                print(f"ft_launcher: {self.path}: {error.strerror}; no more events are logged", file=sys.stderr)

    def close(self) -> None:
        """Close."""
        os.close(self._descriptor)


def _new_file(path: str) -> int:
    # Unbuffered: a line is on its way when it is written, whole, and nothing is left that could fail at the end.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)


def read_events(log_folder: str) -> list[dict[str, Any]]:
    """The events of a run, of every node that wrote into this folder, oldest first."""
    events = []
    for name in os.listdir(log_folder):
        if name.startswith("events") and name.endswith(".jsonl"):
            with open(os.path.join(log_folder, name), encoding="utf-8") as file:
                # The last line may be on its way.
                events += [json.loads(line) for line in file if line.endswith("\n")]
    return sorted(events, key=lambda event: event["t_ns"])
