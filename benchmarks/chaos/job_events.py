"""What a job says of itself, as a user sees it: events.jsonl, incident.json, and the ranks' own notes."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["JobEvents", "Place", "place_of"]


class JobEvents:
    """Follows events.jsonl by descriptor, so that a removed or hidden log folder hides nothing that was written."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._files: dict[tuple[int, int], tuple[Any, bytes]] = {}
        self.events: list[dict[str, Any]] = []

    def read(self) -> None:
        """Take up what is new."""
        with contextlib.suppress(OSError):
            for path in self._logs.glob("*/events*.jsonl"):
                status = path.stat()
                if (status.st_dev, status.st_ino) not in self._files:
                    self._files[status.st_dev, status.st_ino] = (path.open("rb"), b"")
        for key, (file, rest) in list(self._files.items()):
            *lines, rest = (rest + file.read()).split(b"\n")
            self._files[key] = (file, rest)
            self.events += [json.loads(line) for line in lines]

    @property
    def is_removed(self) -> bool:
        """Whether somebody has removed every file that is followed.

        The launcher opens another one when it has something to log.
        """
        return bool(self._files) and all(os.fstat(file.fileno()).st_nlink == 0 for file, _ in self._files.values())

    def close(self) -> None:
        """Follow nothing any more."""
        for file, _ in self._files.values():
            file.close()
        self._files = {}

    def named(self, *names: str) -> list[dict[str, Any]]:
        """Events of these names so far."""
        return [event for event in self.events if event["event"] in names]

    @property
    def generation(self) -> int:
        """The generation that was started last; -1 before the first."""
        return max((event["generation"] for event in self.named("started")), default=-1)

    def pids(self, generation: int) -> dict[int, int]:
        """Rank to process, of one generation (one node: local ranks are ranks)."""
        for event in self.named("started"):
            if event["generation"] == generation:
                return {int(rank): pid for rank, pid in event["pids"].items()}
        return {}

    def incidents(self, generation: int) -> list[dict[str, Any]]:
        """The incidents of a generation."""
        return [event for event in self.named("hang", "failure") if event["generation"] == generation]

    def seen_ns(self, generation: int) -> int | None:
        """When the first trouble of a generation was seen."""
        stamps = [event.get("seen_ns") or event["t_ns"] for event in self.incidents(generation)]
        stamps += [event["t_ns"] for event in self.named("seen") if event["generation"] == generation]
        return min(stamps, default=None)


def contradiction(event: dict[str, Any]) -> str | None:
    """Where the incident's own folder blames somebody else than the event does; None where they agree."""
    folder = event.get("folder")
    if not folder or not os.path.exists(os.path.join(folder, "incident.json")):
        return None
    with open(os.path.join(folder, "incident.json"), encoding="utf-8") as file:
        incident = json.load(file)
    if incident["generation"] != event["generation"]:  # the log folder was removed, and numbers begin anew
        return None
    blamed = [rank["rank"] for rank in incident["ranks"] if rank["is_culprit"]]
    return None if blamed == event["culprits"] else f"{folder} blames {blamed}, events.jsonl {event['culprits']}"


class Place(NamedTuple):
    """Where a rank is."""

    generation: int
    step: int
    count: int
    """How often it has begun a step in this generation, those that train nothing included."""


def place_of(folder: Path, rank: int) -> Place:
    """What a rank has last said of itself."""
    try:
        return Place(*struct.unpack("3q", (folder / "progress" / str(rank)).read_bytes()))
    except (FileNotFoundError, struct.error):
        return Place(-1, -1, 0)
