"""What the ranks of ``training.py`` have noted, and what follows from it about a job."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Group", "Journals", "Note", "groups", "overlaps", "recovery_seconds"]

_WORK = ("step", "checkpoint_begin", "checkpoint")


class Note(NamedTuple):
    """One line of a rank's journal."""

    t: int
    """``CLOCK_MONOTONIC``, nanoseconds."""
    event: str
    """``started``, ``first_all_reduce``, ``step``, ``checkpoint_begin``, ``checkpoint`` or ``done``."""
    generation: int
    """The launcher's number; torchrun does not count a change of members, so two groups may share one."""
    group: str
    """Chosen at random by rank 0 of each group, so that no two groups share one; empty before they have met."""
    rank: int
    world: int
    step: int
    node: str
    pid: int
    """On the node."""
    local_rank: int
    digest: str | None = None
    """Of the weights; of ``done`` only."""


class Group(NamedTuple):
    """The ranks that met once, until they parted."""

    name: str
    generation: int
    world: int
    nodes: tuple[str, ...]
    formed_ns: int
    """When its first ``all_reduce`` had been done, on the first rank that said so."""
    steps: int
    """How many different steps its ranks have done."""
    digests: tuple[str | None, ...]
    """Of its ranks that have come to the end of the training."""


class Journals:
    """All journals of a job, read as they grow.

    Args:
        folder: The shared folder of ``training.py``.
        ahead: Seconds by which the clocks of nodes are ahead of this machine's, where they are.
    """

    def __init__(self, folder: Path, ahead: Mapping[str, int] | None = None) -> None:
        self._folder, self._ahead = folder / "journal", ahead or {}
        self._read: dict[Path, int] = {}
        self._notes: list[Note] = []

    def notes(self) -> list[Note]:
        """Everything that has been noted so far, oldest first."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                self._notes += [self._as_here(as_note(json.loads(line))) for line in whole.splitlines()]
        self._notes.sort()
        return list(self._notes)

    def _as_here(self, note: Note) -> Note:
        return note._replace(t=note.t - self._ahead.get(note.node, 0) * 10**9)


def as_note(fields: dict[str, Any]) -> Note:
    """Return the note that one line of a journal holds."""
    return Note(**fields)


def groups(notes: Iterable[Note]) -> list[Group]:
    """Return the groups that have met, in the order in which they did."""
    of_group: dict[str, list[Note]] = {}
    for note in notes:
        if note.group:
            of_group.setdefault(note.group, []).append(note)
    found = []
    for name, own in of_group.items():
        formed = [note.t for note in own if note.event == "first_all_reduce"]
        found.append(
            Group(
                name,
                own[0].generation,
                own[0].world,
                tuple(sorted({note.node for note in own})),
                min(formed),
                len({note.step for note in own if note.event == "step"}),
                tuple(note.digest for note in own if note.event == "done"),
            )
        )
    return sorted(found, key=lambda group: group.formed_ns)


def overlaps(notes: Iterable[Note]) -> list[str]:
    """Return one sentence for each group that still worked after the next one had met: a step, or a checkpoint.

    Two groups at a time are two jobs that write the same checkpoints, whatever their numbers say.
    """
    notes = list(notes)
    ordered = groups(notes)
    found = []
    for earlier, later in itertools.pairwise(ordered):
        late = [
            note for note in notes if note.group == earlier.name and note.event in _WORK and note.t > later.formed_ns
        ]
        if late:
            last = late[-1]
            found.append(
                f"group {earlier.name} (generation {earlier.generation}) noted {last.event} {last.step} on {last.node} "
                f"{(last.t - later.formed_ns) / 1e9:.3f} s after group {later.name} (generation {later.generation}) met"
            )
    return found


def recovery_seconds(notes: Iterable[Note], fault_ns: int, last_fault_ns: int | None = None) -> float | None:
    """Return the time from a fault to the first ``all_reduce`` of the group that went on.

    Args:
        notes: Of the job.
        fault_ns: When the (first) fault was made.
        last_fault_ns: When the last fault was made, where there were several; a group before it does not count.

    Returns:
        Seconds; None if no group that met after the last fault has done a step.
    """
    since = fault_ns if last_fault_ns is None else last_fault_ns
    for group in groups(notes):
        if group.formed_ns > since and (group.steps or group.digests):
            return (group.formed_ns - fault_ns) / 1e9
    return None
