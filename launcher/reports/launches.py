"""What the launchers of a run have written of themselves, as typed values: one launch for each of their lives.

Times here are ``CLOCK_MONOTONIC`` nanoseconds of the launch's machine. They are compared within one launch only.
"""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.processes.proc import boot_id
from launcher.records.event_files import EventFile, event_files, read_event_file
from launcher.records.figures_log import FIGURES
from launcher.records.format_versions import UnknownVersionError
from launcher.records.private_folders import is_held
from launcher.reports.damage import note_left_out
from launcher.reports.node_generations import (
    NodeGeneration,
    generations_of,
    generations_unstarted,
    seconds_or_none,
    text_or_none,
)
from launcher.reports.spared import Spared, spared
from launcher.reports.writers import UNKNOWN_NODE, identified, is_of_another_launcher
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["SAFETY_FACTOR", "THIN_EVIDENCE_FLOOR", "Launch", "read_launches", "with_last_lines"]

SAFETY_FACTOR = 5.0
THIN_EVIDENCE_FLOOR = 60.0
"""The defaults of the configuration, which needs more than the standard library to be imported."""
_LARGEST_FACTOR = 1e6
"""A safety factor beyond that is damage."""
_OF_RUN_FOLDERS = ("began", "lost", "run_folder_moved", "run_folder_mended")
"""Events that say where the run folder is from then on."""
_STILL_WRITES_SECONDS = 120.0
"""A launcher that has written within that time may be alive."""


class Launch(NamedTuple):
    """The life of one launcher."""

    folder: str
    node: str
    boot: str
    pid: int | None
    process_began_ns: int | None
    """As its files tell."""
    epoch: float
    """Seconds since 1970 when this machine's monotonic clock stood at zero."""
    began_ns: int
    """When its process was started, or, in runs of earlier releases, when it first wrote."""
    is_begun_known: bool
    """Its first events are there; without them, it begins here with its first line."""
    ended_ns: int | None
    last_ns: int
    """When it has written last."""
    is_running: bool
    may_run: bool | None
    """None where only the age of its last line tells whether it is running."""
    outcome: str | None
    exit_code: int | None
    why: str | None
    went_back: bool
    """Iterations do not count on through the run; known at its end, or by its figures."""
    lost_lines: int
    damaged_lines: int
    """Of its files of events; they are left out."""
    safety_factor: float
    """Of its configuration; so is the next."""
    thin_evidence_floor: float
    """Seconds."""
    section_limits: Mapping[str, float]
    """Of its configuration, too, in seconds: a rank tells of a limit only after it has opened the section."""
    generations: tuple[NodeGeneration, ...]
    spared: tuple[Spared, ...]
    told_incidents: frozenset[str]
    """The names of the folders of incidents of which its events tell, also of those that were taken back."""
    met: frozenset[int]
    """The numbers of generations for which its nodes have met; of some, no rank may have been started."""
    last_generation: int | None
    """As it said when it ended; so is the next."""
    failures: int | None
    file: str
    """The first of its files of events, or of figures where none of events is left."""
    lacks_figures: bool = False
    """Lines of its figures could not be written, or are left out."""
    tells_run_folder: bool = False
    """A line is left that says where its run folder is, by which it is known whether it runs."""
    warmup_steps: int = 1
    """Of its configuration: so many first steps of each generation are no sections."""
    has_other_numbers: bool = False
    """Its checkpoints are not numbered by steps (:mod:`launcher.reports.save_numbers`)."""
    is_of_incidents: bool = False
    """Nothing but incidents is left of it (:mod:`launcher.reports.from_incidents`)."""

    @property
    def has_events(self) -> bool:
        """Whether a file of its events is left."""
        return not os.path.basename(self.file).startswith(FIGURES)

    @property
    def is_writer_known(self) -> bool:
        """Whether a line is left that says on which node, and by which clock, it ran."""
        return self.boot != self.file

    @property
    def is_guessed(self) -> bool:
        """Whether it may have ended long ago: its last line is young, and the events which would tell are missing."""
        return self.is_running and self.may_run is None and not (self.is_begun_known or self.tells_run_folder)

    @property
    def is_whole(self) -> bool:
        """Whether all that it has written of itself is here, as far as the rest tells."""
        has_gaps = self.lacks_last or not all(each.is_start_known for each in self.generations)
        return self.is_begun_known and not self.lost_lines and not self.damaged_lines and not has_gaps

    @property
    def lacks_last(self) -> bool:
        """Whether it said at its end that it came to a generation of which nothing else is left."""
        last, known = self.last_generation, {generation.number for generation in self.generations} | self.met
        return bool(self.generations) and last is not None and last > max(known)

    def at(self, t_ns: int) -> float:
        """Return seconds since 1970 by this machine's wall clock."""
        return self.epoch + t_ns / NS_PER_SECOND


def read_launches(folder: str, notes: list[str]) -> list[Launch]:
    """Return the launches whose events are in a run's log folder, in the order in which they began.

    Args:
        folder: The log folder.
        notes: Gets what could not be read.

    Raises:
        OSError: The folder cannot be read.
    """
    files = []
    has_refused = False
    damaged: collections.Counter[tuple[str, int | None, int | None]] = collections.Counter()
    for path in event_files(folder):
        left_out: list[str] = []
        try:
            file = read_event_file(path, left_out.append)
            note_left_out(path, left_out, notes)
            if file is not None:
                file = identified(file)
                files.append(file)
                damaged[_writer(file)] += len(left_out)
        except (OSError, UnknownVersionError) as error:
            has_refused = True
            notes.append(f"{path} is left out, and so is all that this launcher did: {error}")
    files.sort(key=lambda file: (file.boot, file.events[0]["t_ns"]))
    epochs: dict[str, int] = {}
    lives: list[tuple[EventFile, list[dict[str, Any]]]] = []
    for file in files:
        epoch_ns = epochs.setdefault(file.boot, file.epoch_ns)
        begins = [number for number, event in enumerate(file.events) if event["event"] == "began"]
        if not begins and (former := _same_launcher(lives, file)) is not None:
            former.extend(file.events)  # its file was removed, and made anew
            continue
        lives.append((file._replace(epoch_ns=epoch_ns), list(file.events)))
    for file in () if has_refused else _figures_files(folder):
        if is_of_another_launcher(file, files):
            # Its events were removed, and not made anew yet.
            lives.append((file, [line for line in file.events if line["event"] == FIGURES] or file.events[:1]))
    launches = [_launch(folder, file, events, damaged[_writer(file)]) for file, events in lives]
    return sorted(launches, key=lambda launch: launch.at(launch.began_ns))


def _same_launcher(
    lives: Iterable[tuple[EventFile, list[dict[str, Any]]]], file: EventFile
) -> list[dict[str, Any]] | None:
    same = [events for other, events in lives if file.is_by_writer_of(other)]
    return same[-1] if same else None


def _writer(file: EventFile) -> tuple[str, int | None, int | None]:
    return file.boot, file.launcher, file.process_began_ns


def _launch(folder: str, file: EventFile, events: list[dict[str, Any]], damaged_lines: int) -> Launch:
    named: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for event in events:
        named[event["event"]].append(event)
    began: Mapping[str, Any] = next(iter(named["began"]), {})
    ended: Mapping[str, Any] = next(iter(named["ended"]), {})
    lines = () if began else _figures_of(folder, file)
    first_ns, last_ns = min(event["t_ns"] for event in (*events, *lines)), max(event["t_ns"] for event in events)
    process_ns = began.get("process_began_ns")
    pid = file.launcher if file.launcher is not None else began.get("launcher")
    configuration = began.get("configuration")
    configured = configuration if isinstance(configuration, dict) else {}
    factor, floor = configured.get("safety_factor"), seconds_or_none(configured.get("thin_evidence_floor"))
    told = [text_or_none(event.get("run_folder")) for event in events if event["event"] in _OF_RUN_FOLDERS]
    run_folder = next((folder for folder in reversed(told) if folder), None)
    may_run = False if ended else _may_run(file, run_folder)
    given_up = next(iter(named["given_up"]), {})
    return Launch(
        folder=folder,
        node=file.node or UNKNOWN_NODE,
        boot=file.boot,
        pid=pid if type(pid) is int else None,
        process_began_ns=file.process_began_ns,
        epoch=file.epoch,
        began_ns=min(process_ns, first_ns) if type(process_ns) is int and process_ns > 0 else first_ns,
        is_begun_known=bool(began),
        ended_ns=ended.get("t_ns"),
        last_ns=last_ns,
        is_running=may_run is True,
        may_run=may_run,
        outcome=text_or_none(ended.get("outcome")),
        exit_code=ended["exit_code"] if type(ended.get("exit_code")) is int else None,
        why=text_or_none(ended.get("why")) or text_or_none(given_up.get("why")),
        went_back=bool(ended.get("went_back")),
        lost_lines=sum(event["lines"] for event in named["lost"] if type(event.get("lines")) is int),
        damaged_lines=damaged_lines,
        safety_factor=factor if isinstance(factor, float) and 1 <= factor < _LARGEST_FACTOR else SAFETY_FACTOR,
        thin_evidence_floor=floor if floor is not None and floor >= 0 else THIN_EVIDENCE_FLOOR,
        section_limits=_section_limits(configured.get("rank_section_timeouts")),
        generations=tuple(generations_unstarted(named, lines)) + tuple(generations_of(named)),
        spared=tuple(spared(named["near_miss"])),
        told_incidents=frozenset(filter(None, (_incident_in(event) for event in events))),
        met=frozenset(n for event in named["rendezvous"] if type(n := event.get("generation")) is int),
        last_generation=ended["generation"] if type(ended.get("generation")) is int else None,
        failures=ended["failures"] if type(ended.get("failures")) is int else None,
        file=file.path,
        tells_run_folder=run_folder is not None,
        warmup_steps=warmup if type(warmup := configured.get("num_warmup_iterations")) is int else 1,
    )


def _incident_in(event: Mapping[str, Any]) -> str:
    """Return the name of an incident's folder; empty where an event names none, as where it is of a whole job."""
    parent, name = os.path.split(str(event.get("folder") or ""))
    return name if os.path.basename(parent) == "incidents" else ""


def _section_limits(configured: object) -> dict[str, float]:
    """Return the limits of sections that a launcher was configured with; null stands for none."""
    rows = configured.items() if isinstance(configured, dict) else ()
    return {str(name): seconds for name, limit in rows if (seconds := seconds_or_none(limit)) is not None}


def _figures_of(folder: str, file: EventFile) -> list[dict[str, Any]]:
    """Return the lines of figures of the launcher that has written a file of events."""
    return [line for each in _figures_files(folder) if each.is_by_writer_of(file) for line in each.events]


def _figures_files(folder: str) -> Iterator[EventFile]:
    for path in event_files(folder, FIGURES):
        with contextlib.suppress(OSError, UnknownVersionError):  # said where they are read for the ranks
            if (file := read_event_file(path, _said_elsewhere)) is not None:
                yield file


def _said_elsewhere(why: str) -> None:
    """Do nothing about a line that is left out: it is noted where the file is read for the ranks."""


def _may_run(file: EventFile, run_folder: str | None) -> bool | None:
    """Return whether a launcher that has not said that it ended runs; None where that cannot be told from here.

    It does as long as its run folder is held, by which :func:`launcher.live.runs.state_of` goes, too.
    """
    if file.boot != (boot_id() or os.uname().nodename) or run_folder is None:  # its first events were removed
        return None
    return is_held(run_folder)


def with_last_lines(
    launches: Sequence[Launch],
    last_ns: Mapping[int, int],
    went_back: Collection[int] = (),
    lacking: Collection[int] = (),
) -> list[Launch]:
    """Return launches that know when they have written last, of what kind ever, and whether they are running.

    Args:
        launches: As they were read.
        last_ns: By index, when the last line of figures was written.
        went_back: Indices of those whose figures tell that iterations do not count on.
        lacking: Indices of those of whose figures lines are missing.
    """
    known = []
    for number, launch in enumerate(launches):
        last = max(launch.last_ns, last_ns.get(number, 0))
        # A line is due in a thousandth of the age of a run.
        due_seconds = max(_STILL_WRITES_SECONDS, 3 * (last - launch.began_ns) / NS_PER_SECOND / 1000)
        writes = launch.ended_ns is None and time.time() - launch.at(last) < due_seconds
        is_running = launch.is_running if launch.may_run is not None else writes
        launch = launch._replace(last_ns=last, is_running=is_running, went_back=launch.went_back or number in went_back)
        known.append(launch._replace(lacks_figures=number in lacking))
    return known
