"""Launchers of which nothing can be read: files are missing, empty, cut within the first line, or damaged."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from launcher.records.event_files import EVENTS, FORMAT_VERSION, event_files, event_of, read_event_file
from launcher.records.figures_log import FIGURES
from launcher.records.format_versions import UnknownVersionError, check_version
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.plain_files import only_plain

__all__ = ["Unread", "of_zero_bytes", "unread_launchers", "why_without_figures"]

_HEAD = 1 << 16
"""How much of a file without a whole line is looked at."""
_MOST_NUMBERS = 10_000
"""A number that damage has made is no reason to count that far."""
_TIME = re.compile(rb'"time": ?"([0-9T:.+-]{1,40})"')
"""When a line was written; it stands at the begin of each."""
_ZERO_BYTES = "holds zero bytes alone"
_OF_ANOTHER_RELEASE = "was written by another release"


class Unread(NamedTuple):
    """A launcher whose files tell nothing, or are missing."""

    folder: str
    """The log folder."""
    why: str
    """What is wrong with each of its files."""
    told_epoch: float | None
    """A time at which it ran, in seconds since 1970, as what is left of its files tells; None where nothing does. When
    files were changed tells nothing: copies and archives have other times."""
    is_alone: bool
    """No other launcher has left anything that can be read in this folder."""
    began_before: float | None = None
    """A time before which it began, in seconds since 1970, where that is all that is known."""

    @property
    def is_of_another_release(self) -> bool:
        """Whether another release of torch-resilience has written one of its files."""
        return _OF_ANOTHER_RELEASE in self.why


def unread_launchers(folder: str) -> list[Unread]:
    """Return the launchers of a log folder of which nothing can be read.

    Args:
        folder: The log folder.

    Raises:
        OSError: It cannot be read.
    """
    files = _by_launcher(folder)
    if not files:
        why = f"there is neither {EVENTS}.jsonl nor {FIGURES}.jsonl in it"
        return [Unread(folder, why, None, is_alone=True)]
    found = []
    for own in files.values():
        whys = [f"{os.path.basename(path)} {why}" for path, why in own.items() if why is not None]
        if len(whys) == len(own):
            found.append(Unread(folder, " and ".join(whys), _told(own), len(files) == 1))
    missing = [Unread(folder, why, None, is_alone=False, began_before=at) for why, at in _missing(folder, files)]
    if found and len(found) == len(files):  # as of several nodes of one run
        told = min((each.told_epoch for each in found if each.told_epoch is not None), default=None)
        return [found[0]._replace(why=", ".join(each.why for each in found), told_epoch=told, is_alone=True)]
    return found + missing


def of_zero_bytes(folder: str) -> list[str]:
    """Return what is to be said of files of launchers that hold zero bytes, as after a power cut.

    Those of launchers of which nothing can be read are said where these are (:func:`unread_launchers`).

    Args:
        folder: The log folder.

    Raises:
        OSError: It cannot be read.
    """
    said = []
    for own in _by_launcher(folder).values():
        for path, why in own.items() if None in own.values() else ():
            if why == _ZERO_BYTES:
                said.append(f"{path} is left out: it {why}, and what stood there is lost, as after a power cut")
            elif why is None and _ends_with_zero_bytes(path):
                said.append(
                    f"{path}: zero bytes at its end are left out; what stood there is lost, as after a power cut"
                )
    return said


def why_without_figures(path: str) -> str:
    """Return what is wrong with the file of figures that belongs to a file of events, by its name."""
    folder, name = os.path.split(path)
    own = name.replace(EVENTS, FIGURES, 1)
    path = os.path.join(folder, own)
    if not os.path.isfile(path):
        return f"there is no {own}"
    return f"{own} {_why_unread(path) or 'tells of none'}"


def _by_launcher(folder: str) -> dict[str, dict[str, str | None]]:
    """Return what is wrong with each file, by what the names of a launcher's files have in common."""
    files: dict[str, dict[str, str | None]] = {}
    for stem in (EVENTS, FIGURES):
        for path in event_files(folder, stem):
            if os.path.isfile(path):
                own = files.setdefault(os.path.basename(path).removeprefix(stem), {})
                own[path] = _why_unread(path)
    return files


def _missing(folder: str, files: Mapping[str, object]) -> Iterator[tuple[str, float | None]]:
    """Yield what tells of each launcher whose files are missing, and before when it began.

    A launcher takes the first name that is free, so whoever has a number of its own came after those with lower ones.
    """
    came_after: dict[str, list[tuple[str, float | None]]] = {}
    taken = {name.removesuffix(".jsonl") for name in files}
    for own in sorted(taken):
        lower, at = _lower_ones(folder, own)
        for name in lower:
            came_after.setdefault(name, []).append((own, at))
    for name, others in came_after.items():
        if name not in taken:
            times = [at for _, at in others if at is not None]
            shown = next(f for f in (f"{stem}{others[0][0]}.jsonl" for stem in (EVENTS, FIGURES)) if _is_in(folder, f))
            why = f"there is neither {EVENTS}{name}.jsonl nor {FIGURES}{name}.jsonl, after which {shown} was named"
            yield why, min(times) if len(times) == len(others) else None


def _is_in(folder: str, name: str) -> bool:
    return os.path.lexists(os.path.join(folder, name))


def _lower_ones(folder: str, own: str) -> tuple[list[str], float | None]:
    """Return the names that were taken when a launcher took its own, and when it began."""
    lower, at = [""] if own else [], None
    for stem in (EVENTS, FIGURES):
        with contextlib.suppress(OSError, UnknownVersionError):
            file = read_event_file(os.path.join(folder, f"{stem}{own}.jsonl"), lambda why: None)
            if file is None:
                continue
            began_ns = min(file.events[0]["t_ns"], file.process_began_ns or file.events[0]["t_ns"]) + file.epoch_ns
            at = min(began_ns / NS_PER_SECOND, at if at is not None else float("inf"))
            base = f"-{file.node}-{file.launcher}"
            number = own.removeprefix(f"{base}-")
            if own.startswith(f"{base}-") and number.isdecimal():
                lower = ["", base, *(f"{base}-{n}" for n in range(2, min(int(number), _MOST_NUMBERS)))]
    return lower, at


def _ends_with_zero_bytes(path: str) -> bool:
    try:
        with open(path, "rb", opener=only_plain) as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\0"
    except OSError:
        return False


def _told(paths: Iterable[str]) -> float | None:
    """Return the earliest time that the begins of files tell, in which no whole line can be read."""
    return min((told for path in paths for told in _times_in(path)), default=None)


def _times_in(path: str) -> Iterator[float]:
    with contextlib.suppress(OSError), open(path, "rb", opener=only_plain) as file:
        for text in _TIME.findall(file.read(_HEAD)):
            with contextlib.suppress(ValueError, OverflowError):
                moment = datetime.fromisoformat(text.decode())
                if moment.tzinfo is not None:
                    yield moment.timestamp()


def _why_unread(path: str) -> str | None:
    """Return what is wrong with a file of which no line can be read; None where one can."""
    try:
        with open(path, "rb", opener=only_plain) as file:
            for event in _events(file):
                check_version(path, event.get("version", 1), FORMAT_VERSION)
                return None
            file.seek(0)
            head = file.read(_HEAD)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except UnknownVersionError:
        return _OF_ANOTHER_RELEASE
    if not head:
        return "is empty"
    if not head.strip(b"\0"):
        return _ZERO_BYTES
    return "holds no line that can be read" if b"\n" in head else "ends within its first line"


def _events(lines: Iterator[bytes]) -> Iterator[dict[str, object]]:
    for line in lines:
        if line.endswith(b"\n"):
            try:
                yield event_of(line.decode(errors="replace"))
            except ValueError:
                continue
