"""What the ranks of a launch have done, generation by generation, from its files of figures, each read once."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from launcher.records.event_files import EventFile, event_files, read_event_file
from launcher.records.figures_log import FIGURES, FiguresLine, figures_in
from launcher.records.format_versions import UnknownVersionError
from launcher.reports.damage import note_left_out
from launcher.reports.launches import Launch
from launcher.reports.rank_lives import RankLife

__all__ = ["read_lives"]


def read_lives(
    launches: Sequence[Launch], least_seconds: float, notes: list[str], lacking: set[int]
) -> dict[tuple[int, int], dict[int, RankLife]]:
    """Return what ranks have done, by launch (its index) and generation, then by rank.

    Args:
        launches: All of them.
        least_seconds: How far apart samples are at least.
        notes: Gets what could not be read.
        lacking: Gets the indices of launches of whose figures lines are missing.

    Raises:
        OSError: A folder cannot be read.
    """
    lives: dict[tuple[int, int], dict[int, RankLife]] = {}
    for folder in dict.fromkeys(launch.folder for launch in launches):
        own = [number for number, launch in enumerate(launches) if launch.folder == folder]
        for path in event_files(folder, FIGURES):
            left_out: list[str] = []
            try:
                file = read_event_file(path, left_out.append)
            except (OSError, UnknownVersionError) as error:
                notes.append(f"{path} is left out, and what its ranks did is not known: {error}")
                lacking.update(own)
                continue
            note_left_out(path, left_out, notes)
            if file is None:
                lacking.update(own if left_out else ())
                continue
            if (index := _launch_of(file, launches, own)) is None:
                notes.append(f"{path} is left out: no launcher that has left its events there has written it")
                lacking.update(own)
                continue
            if lost := sum(_lost_lines(file)):
                notes.append(
                    f"{path}: {lost} line(s) of figures are missing, which could not be written or were removed"
                )
            damaged: list[str] = []
            for line in figures_in(file, damaged.append):
                _add(lives.setdefault((index, line.generation), {}), line, int(least_seconds * 1e9))
            note_left_out(path, damaged, notes)
            if lost or left_out or damaged:
                lacking.add(index)
    return lives


def _lost_lines(file: EventFile) -> Iterator[int]:
    for event in file.events:
        if event["event"] == "lost" and type(event.get("lines")) is int:
            yield event["lines"]


def _add(ranks: dict[int, RankLife], line: FiguresLine, least_ns: int) -> None:
    for rank, known in line.ranks.items():
        ranks.setdefault(rank, RankLife(rank)).add(line, known, least_ns)


def _launch_of(file: EventFile, launches: Sequence[Launch], own: Iterable[int]) -> int | None:
    """Return the launch that has written a file of figures: same machine, same process, begun before."""
    at_ns = statistics.median_low(event["t_ns"] for event in file.events)  # a damaged line may have any
    same = [
        number
        for number in own
        if launches[number].boot == file.boot
        and launches[number].began_ns <= at_ns
        and (file.launcher is None or launches[number].pid == file.launcher)
        and len({file.process_began_ns, launches[number].process_began_ns} - {None}) < 2
    ]
    return max(same, key=lambda number: launches[number].began_ns, default=None)
