"""What is known about a failure, written down before the kill.

A folder per incident, numbered from 0001: ``incident.json`` (format below, version 1) for programs,
``report.txt`` for people: the same facts and every stack that could be had.
"""

from __future__ import annotations

import contextlib
import json
import os
import reprlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from launcher.incidents.phrases import WITHDRAWN, no_stack_phrase
from launcher.incidents.rank_phrases import (
    blamed_section,
    comms_line,
    full_stack,
    headline,
    kernel_line,
    limit_advice,
    raised_at,
    short_stack,
    telling_threads,
    time_left,
    waits_phrase,
    where,
)
from launcher.incidents.rank_report import RankReport, report_from_json, report_to_json
from launcher.processes.plain_types import check_types
from launcher.records.format_versions import check_version
from launcher.records.readable import readable
from resilience_core.system.plain_files import only_plain

__all__ = ["ELSEWHERE", "MOST_CHILDREN", "MOST_STACKS", "Incident", "new_folder", "one_line_each", "write_files"]

FORMAT_VERSION = 1
ELSEWHERE = "elsewhere"
"""The kind of what a node has seen of its own ranks that was told of a failure on another one."""
MOST_STACKS = 4
"""The number of ranks whose stack is shown on a terminal, at most; the report has all of them."""
MOST_OF_MACHINE = 2
"""The number of lines about the machine that are shown on a terminal, at most; the newest."""
MOST_CHILDREN = 2
"""The number of processes that a rank may wait for that are shown on a terminal, at most."""
_NOT_OF_A_STEP = (None, "setup", "checkpointing")
"""Sections that no step is in. Named as in ``resilience_core.plugins.section_monitor``, which takes long to import."""
_TAKEN_ABOUT_THEN = (
    "Stacks were taken while a rank came back: they may show what it did afterwards, not what it was late in."
)


class Incident(NamedTuple):
    """One failure of the group."""

    kind: str
    """``hang`` (silent), ``failure`` (exited), ``request`` (a rank asked for the end), ``near_miss`` (withdrawn), or
    ``elsewhere`` (what a node has seen of its own ranks that was told of a failure on another one)."""
    generation: int
    why: str
    """How the culprit was told from the others."""
    action: str
    ranks: tuple[RankReport, ...]
    deadline_ns: int | None = None
    seen_ns: int = 0
    """``CLOCK_MONOTONIC`` when it was seen; with ``deadline_ns``, how late."""
    wall_time: str = ""
    node: str = ""
    folder: str | None = None
    machine: tuple[str, ...] = ()
    """What the machine itself tells (:mod:`launcher.incidents.machine`)."""

    @property
    def culprits(self) -> tuple[RankReport, ...]:
        """Who is to blame; empty where it cannot be told."""
        return tuple(rank for rank in self.ranks if rank.is_culprit)

    @property
    def culprit(self) -> RankReport | None:
        """The one to blame, when there is exactly one."""
        return self.culprits[0] if len(self.culprits) == 1 else None

    @property
    def is_in_a_step(self) -> bool:
        """Return whether a culprit has failed inside a section other than those that begin and save a run."""
        return any(blamed_section(rank) not in _NOT_OF_A_STEP for rank in self.culprits)

    @property
    def condemned(self) -> tuple[RankReport, ...]:
        """Who was terminated."""
        return tuple(rank for rank in self.ranks if rank.is_condemned)

    def write(self, parent: str) -> Incident:
        """Write the incident into a new numbered folder.

        Returns:
            The incident, with its folder, clock time and node filled in.

        Raises:
            OSError: The folder cannot be written; the caller goes on without, and says so.
        """
        return self.write_into(new_folder(parent))

    def write_into(self, folder: str) -> Incident:
        """Do what :meth:`write` does, in a folder of that path, which is made where it is missing."""
        os.makedirs(folder, exist_ok=True)
        complete = self._replace(
            folder=folder,
            wall_time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            node=os.uname().nodename,
        )
        complete.save()
        return complete

    def save(self) -> None:
        """Write the files of an incident into its folder, again if need be.

        Raises:
            OSError: The folder cannot be written.
        """
        assert self.folder is not None
        write_files(self.folder, self.report(), one_line_each(self.to_json(), "ranks"))

    def to_json(self, *, is_short: bool = False) -> dict[str, Any]:
        """Plain JSON types; a stack becomes ``[{name, is_active, holds_gil, frames: [[function, file, line]]}]``.

        Args:
            is_short: Leave out what is as it is by default in a rank, for a message.
        """
        document = {"version": FORMAT_VERSION, **self._asdict()}
        document["ranks"] = [report_to_json(rank, is_short=is_short) for rank in self.ranks]
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Incident:
        """Return the inverse of :meth:`to_json`.

        Raises:
            UnknownVersionError: The document is of another version than this release writes.
        """
        check_version("the incident", document.get("version"), FORMAT_VERSION)
        facts = {key: value for key, value in document.items() if key != "version"}
        facts["ranks"] = tuple(map(report_from_json, document["ranks"]))
        if type(lines := document.get("machine", [])) is not list:
            raise TypeError(f"machine is {reprlib.repr(lines)}")
        facts["machine"] = tuple(lines)
        incident = cls(**facts)
        check_types(incident)
        return incident

    # ---- for people -------------------------------------------------------------------------------------

    def summary(self) -> list[str]:
        """Return a few lines for the terminal: who, where, how long, the stack, what was done."""
        lines = []
        for number, rank in enumerate(self.speakers):
            lines.append(self._headline(rank))
            lines += [f"  stack   {line}" for line in self._stack_of(rank) if number < MOST_STACKS]
            threads = telling_threads(rank.stack) if number < MOST_STACKS else []
            lines += [f"  thread  {thread.name}: {thread.frames[0]}" for thread in threads]
            if number < MOST_STACKS:
                suspects = [child for child in rank.children if child.is_suspect]
                lines += [f"  child   {child}" for child in suspects[:MOST_CHILDREN]]
            if (comms := comms_line(rank)) is not None:
                lines.append(f"  comms   {comms}")
            lines += [f"  error   {rank.message}{raised_at(rank)}"] if rank.message else []
        lines += [f"  overdue {self._headline(rank)}{waits_phrase(rank)}" for rank in self.overdue]
        lines.append(f"  why     {self.why}")
        lines += [f"  machine {line}" for line in self.machine[-MOST_OF_MACHINE:]]
        for rank in self.ranks:
            if rank not in (*self.speakers, *self.overdue):
                lines.append(f"  peer    {where(rank)}")
        return [*lines, f"  action  {self.action}", *self.where_more_is()]

    def where_more_is(self) -> list[str]:
        """Return the line that says where the report is; nothing where none was written."""
        return [f"  report  {os.path.join(self.folder, 'report.txt')}"] if self.folder else []

    def headlines(self) -> list[str]:
        """Return one line for each culprit (for each failed rank without one), with its error."""
        lines = [
            f"{self._headline(rank)}{f': {rank.message}' if rank.message else ''}{raised_at(rank)}"
            for rank in self.speakers[:MOST_STACKS]
        ]
        left = len(self.speakers) - MOST_STACKS
        lines += [f"and {left} more"] if left > 0 else []
        return [*lines, *(f"overdue {self._headline(rank)}" for rank in self.overdue[:1])]

    def report(self) -> list[str]:
        """Return the whole of it: every stack, and every failed rank's traceback and last lines of standard error."""
        lines = [
            f"{self.kind} in generation {self.generation} on {self.node}, {self.wall_time}",
            *self.summary()[:-1],
            "",
        ]
        if self.kind == "near_miss" or any((rank.message or "").startswith(WITHDRAWN) for rank in self.ranks):
            lines += [_TAKEN_ABOUT_THEN, ""]
        for rank in self.ranks:
            lines.append(f"--- {where(rank)}")
            lines += full_stack(rank.stack, rank.native)
            if not rank.stack and (why := self._why_no_stack(rank)) is not None:
                lines.append(f"  no stack{why}")
            if self._has_looked and (place := kernel_line(rank)) is not None:
                lines.append(f"  process {place}")
            for child in rank.children:
                lines.append(f"  child process {child}")
                lines += [f"  {line}" for line in full_stack(child.stack)]
            if rank.error is not None and rank.error.traceback:
                lines += [f"  {line}" for line in rank.error.traceback.splitlines()]
            if rank.stdout_tail:
                lines += ["  last lines of standard output", *(f"    {line}" for line in rank.stdout_tail)]
            if rank.stderr_tail:
                lines += ["  last lines of standard error", *(f"    {line}" for line in rank.stderr_tail)]
        lines += [f"native frames: {why}" for why in dict.fromkeys(rank.no_native for rank in self.ranks) if why]
        if len(self.machine) > MOST_OF_MACHINE:
            lines += ["", "what the machine tells", *(f"  {line}" for line in self.machine)]
        if (hint := limit_advice((*self.speakers, *self.overdue))) is not None:
            lines += ["", hint]
        return lines

    @property
    def _has_looked(self) -> bool:
        """Whether ranks were looked at because one of them hung."""
        return self.kind in ("hang", "near_miss", ELSEWHERE)

    def _stack_of(self, rank: RankReport) -> list[str]:
        """Return the lines of the stack that a terminal is shown; where there is none, where the process is."""
        place = kernel_line(rank) if self._has_looked else None
        return short_stack(rank) or ([f"no Python frame known: {place}"] if place is not None else [])

    def _why_no_stack(self, rank: RankReport) -> str | None:
        if rank.exit_code is not None:
            has_told = any("Fatal Python error" in line for line in rank.stderr_tail)
            phrase = no_stack_phrase(rank.exit_code, has_told, is_hang=self.kind == "hang")
            return f": {phrase}" if phrase is not None else None
        if self.kind not in ("hang", ELSEWHERE):
            return None
        return f": {rank.no_stack}" if rank.no_stack else " could be had"

    @property
    def speakers(self) -> tuple[RankReport, ...]:
        """Whom a message is about: the culprits; where nobody is named, the condemned, or all that failed."""
        failed = tuple(rank for rank in self.ranks if rank.cause == "exit")
        return self.culprits or self.condemned or failed

    @property
    def overdue(self) -> tuple[RankReport, ...]:
        """The first few overdue ranks that are not the culprit, those overdue by themselves before others."""
        victims = [rank for rank in self.condemned if rank not in self.speakers and rank.limit_seconds is not None]
        return tuple(sorted(victims, key=time_left)[:MOST_STACKS])

    def _headline(self, rank: RankReport) -> str:
        return headline(
            rank,
            self.kind,
            is_likely=self.why.startswith("likely: "),
            by_heartbeats=any(r.cause == "heartbeat" for r in self.condemned),
        )


def write_files(folder: str, report: Iterable[str], document: str) -> None:
    """Write ``report.txt`` and ``incident.json`` into a folder, again if need be.

    Raises:
        OSError: They cannot be written.
    """
    path = os.path.join(folder, "report.txt")
    with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=only_plain) as file:
        file.write("".join(readable(line) + "\n" for line in report))
    # Written last and renamed into place: a reader that finds incident.json finds all of it.
    temporary = os.path.join(folder, ".incident.json")
    with open(temporary, "w", encoding="utf-8", opener=only_plain) as file:
        file.write(document)
    os.replace(temporary, os.path.join(folder, "incident.json"))


def one_line_each(document: Mapping[str, Any], parts: str) -> str:
    """Return JSON with a line for each fact and each of the parts, a list.

    Indented throughout, it would be written by Python and not by C, which takes five times as long, and the signal
    waits for it.
    """
    facts = {key: json.dumps(value) for key, value in document.items()}
    facts[parts] = "[\n  " + ",\n  ".join(map(json.dumps, document[parts])) + "\n ]"
    return "{\n " + ",\n ".join(f"{json.dumps(key)}: {value}" for key, value in facts.items()) + "\n}\n"


def new_folder(parent: str) -> str:
    """Make a folder with the next free number in a folder, which is made where it is missing."""
    os.makedirs(parent, exist_ok=True)
    number = len(os.listdir(parent)) + 1
    while True:
        folder = os.path.join(parent, f"{number:04d}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            return folder
        number += 1
