"""The event log of a run: one JSON object per line, stamped with both clocks, on its way to the disk at once.

It is written by a thread (``launcher.processes.background``): a log folder that hangs or is full costs lines, never
time.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from launcher.processes.background import Background, NotDoneError
from launcher.processes.proc import boot_id, own_start_ns
from launcher.records.console import announce
from launcher.records.event_files import EVENTS, FORMAT_VERSION
from launcher.records.log_folders import FolderError
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["EventLog"]

logger = logging.getLogger(__name__)

_ROOM_BYTES = 1 << 20
_MOST_FILES = 10_000
"""Of one node and pid in one folder; a folder in which nothing is ever new must not be tried for ever."""
_LASTING = ("run_folder", "max_restarts", "restarts")
"""Facts that hold until they are told anew: a file that was made anew repeats them, for whoever reads it only."""
_MOST_SAID = 3
"""How often it is said of one file that somebody has removed it or cut it off; the rest is counted, and said last."""
_LOOK_NS = NS_PER_SECOND
"""How often the file is looked after at most."""
_LONGEST_START_SECONDS = 30.0
_LONGEST_END_SECONDS = 1.0


class EventLog:
    """Appends to ``events.jsonl`` in the run's log folder, or to a file beside it where that exists.

    The figures of a run (:mod:`launcher.records.figures_log`) are kept in the same way, in ``figures.jsonl``.

    Every line has ``event``, ``t_ns`` (``CLOCK_MONOTONIC``, comparable with the incidents and among each other)
    and ``time`` (for people); the first one also ``version``, that of the format, and ``node`` and ``boot``, which tell
    whose monotonic clock it is. A log folder that stops taking lines is reported once and never stops the job; when it
    takes them again, an event ``lost`` says how many are missing. A file that was removed is made anew, by the next
    event or by :meth:`look_after`, and its lines are counted as missing; so are those that were cut off from it.

    Args:
        log_folder: Where.
        background: What writes; without one, each call of :meth:`write` writes itself.
        on_made_anew: Called, by what writes, when the file was made anew.
        stem: What the names of the files begin with.
        listener: Called, by whoever writes, with each event and its facts; must neither raise nor wait.
        on_line: The same, with each event and its line, whether or not the file takes it.
        on_lost: Called, by whoever notices, with :attr:`missing` where that has grown; must neither raise nor wait.

    Raises:
        FolderError: The file cannot be made.
    """

    def __init__(
        self,
        log_folder: str,
        background: Background | None = None,
        on_made_anew: Callable[[], object] = lambda: None,
        stem: str = EVENTS,
        listener: Callable[[str, Mapping[str, Any]], None] = lambda event, facts: None,
        on_line: Callable[[str, bytes], None] = lambda event, line: None,
        on_lost: Callable[[int], None] = lambda missing: None,
    ) -> None:
        self.path = os.path.join(log_folder, f"{stem}.jsonl")
        self._stem = stem
        self.lost = 0
        """Lines that could not be written and were not reported yet."""
        self.made_anew = 0
        """How often the file was made anew."""
        self._background = background or Background("ft_events", _ROOM_BYTES)
        self._is_first = True
        self._is_torn = False
        self._has_complained = False
        self._folder = log_folder
        self._on_made_anew = on_made_anew
        self._listener = listener
        self._on_line = on_line
        self._on_lost = on_lost
        self._in_file = self._size = 0  # lines, bytes
        self._told_lost = 0  # in the file, as missing
        self._looked_ns = 0
        self._is_looking = False
        self._lasting: Mapping[str, Any] = {}
        try:
            self._descriptor = self._background.call(self._open, _LONGEST_START_SECONDS)
        except (OSError, NotDoneError) as error:
            why = getattr(error, "strerror", None) or error
            raise FolderError(f"cannot write {self.path}: {why}; name another folder with --log-dir") from error

    def write(self, event: str, at_ns: int | None = None, **facts: Any) -> None:
        """Append one line; never raises, never waits.

        Args:
            event: What has happened.
            at_ns: When, as ``CLOCK_MONOTONIC``; now when None.
            facts: What else there is to know.
        """
        logger.debug("event %s %s", event, facts)
        self._listener(event, facts)
        self._lasting = {**self._lasting, **{name: facts[name] for name in _LASTING if name in facts}}
        if self._is_first:
            self._is_first = False
            facts = {**_about_the_file(), **facts}
        raw = _line(event, at_ns, facts)
        self._on_line(event, raw)
        if not self._background.submit(lambda: self._append(raw), len(raw)):
            self.lose()

    def look_after(self) -> None:
        """Make the file anew if somebody has removed or emptied it since the last event; never raises, never waits.

        Readers take a folder without it for none of a run.
        """
        now_ns = time.monotonic_ns()
        if not self._is_looking and now_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns, self._is_looking = now_ns, True
            if not self._background.submit(self.look):
                self._is_looking = False

    def look(self) -> None:
        """Do the same at once; to be called by what writes."""
        try:
            self._append(b"")
        finally:
            self._is_looking = False

    @property
    def missing(self) -> int:
        """Lines that the file lacks, those included of which it says so."""
        return self.lost + self._told_lost

    def lose(self) -> None:
        """Count a line that is not written, or was left out before it was made."""
        self.lost += 1
        self._on_lost(self.missing)

    def gathering(self) -> contextlib.AbstractContextManager[None]:
        """Have what is logged meanwhile written in one go; see :meth:`.background.Background.gathering`."""
        return self._background.gathering()

    def close(self) -> None:
        """Wait a moment for what is still to be written, and close."""
        self._background.submit(self._tell_how_often)
        if self._background.flush(_LONGEST_END_SECONDS):
            os.close(self._descriptor)

    def _tell_how_often(self) -> None:
        if self.made_anew > _MOST_SAID:
            lacks = f"; it lacks {self.missing} line(s)" if self.missing else ""
            what = f"somebody has removed or cut off the file of {self._stem} {self.made_anew} times in all"
            announce(f"{what}, at last {self.path}{lacks}", event="log_folder")

    def _open(self) -> int:
        """Make the first free one of ``events.jsonl``, ``events-<node>-<pid>.jsonl``, ``events-<node>-<pid>-2.jsonl``.

        Another node of this job, or an earlier run of its name, may have the first ones. In a container whose launcher
        is always pid 1 of the same node, each start of one ``--rdzv-id`` takes the next number.
        """
        own = f"{self._stem}-{os.uname().nodename}-{os.getpid()}"
        names = itertools.chain((self._stem, own), (f"{own}-{number}" for number in range(2, _MOST_FILES)))
        for name in names:
            self.path = os.path.join(self._folder, f"{name}.jsonl")
            with contextlib.suppress(FileExistsError):
                return _new_file(self.path)
        raise FileExistsError(errno.EEXIST, f"{_MOST_FILES} runs have left their events there", self.path)

    def _append(self, line: bytes) -> None:
        """Write a line; with none, only what has to be said of lines that are missing."""
        try:
            self._mend()
            raw, lost = line, self.lost
            if not raw and not lost:
                return
            if lost:
                about = {} if self._in_file else {**_about_the_file(), **self._lasting}
                raw = _line("lost", None, {"lines": lost, **about}) + raw
            if self._is_torn:
                raw = b"\n" + raw
            written = os.write(self._descriptor, raw)
            self._size += written
            if written < len(raw):  # full in mid-line
                self._is_torn = True
                self._size += os.write(self._descriptor, raw[written:])
            self._is_torn = False
            self._told_lost += lost
            self.lost -= lost
            self._in_file += bool(line)
        except OSError as error:
            if line:
                self.lose()
            if not self._has_complained:
                self._has_complained = True
                why = f"{self.path}: {error.strerror}"
                said = f"{why}; no {self._stem} are logged until it can be written again (said once)"
                announce(said, event="log_folder")

    def _mend(self) -> None:
        """Go on in a new file if somebody has removed or renamed the one that is written to, or from the begin of it.

        Raises:
            OSError: It cannot be made.
        """
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        if status.st_nlink and not self._is_elsewhere(status):
            if status.st_size < self._size:
                with open(self.path, "rb") as file:
                    left = file.read()
                self._go_on("cut off", left.count(b"\n"), len(left))
                self._is_torn = bool(left) and not left.endswith(b"\n")
            return
        os.makedirs(self._folder, exist_ok=True)
        new = self._open()
        os.dup2(new, self._descriptor, inheritable=False)
        os.close(new)
        self._go_on("removed", 0, 0)

    def _is_elsewhere(self, status: os.stat_result) -> bool:
        """Return whether the file was renamed, and its folder was not: it is read by its name there."""
        try:
            return not os.path.samestat(os.stat(self.path), status)
        except FileNotFoundError:
            return os.path.isdir(self._folder)
        except OSError:  # a folder that may no longer be looked into can still be written to
            return False

    def _go_on(self, what: str, lines: int, size: int) -> None:
        self.lost += max(0, self._in_file - lines)
        if not size:  # what was said of lines that are missing is missing, too
            self.lost += self._told_lost
            self._told_lost = 0
        self._on_lost(self.missing)
        self._in_file, self._size, self._is_torn = lines, size, False
        self.made_anew += 1
        if self.made_anew <= _MOST_SAID:
            how = "is made anew" if not size else "goes on"
            lacks = f", without {self.missing} line(s)" if self.missing else ""
            last = f" (said {_MOST_SAID} times; how often it was is said at the end)"
            said = f"somebody has {what} the file of {self._stem}; {self.path} {how}{lacks}"
            announce(said + (last if self.made_anew == _MOST_SAID else ""), event="log_folder")
        self._on_made_anew()


_began_ns = functools.cache(own_start_ns)
"""Once, since it is measured, and the same in all files."""


def _about_the_file() -> dict[str, Any]:
    """Return what the first line of a file says of all its lines: their format, whose clock it is, who writes it."""
    node = os.uname().nodename
    known = {"version": FORMAT_VERSION, "node": node, "boot": boot_id() or node, "launcher": os.getpid()}
    return {**known, "process_began_ns": _began_ns()}


def _line(event: str, at_ns: int | None, facts: dict[str, Any]) -> bytes:
    at, now_ns = datetime.now().astimezone(), time.monotonic_ns()
    if at_ns is not None:
        at -= timedelta(microseconds=(now_ns - at_ns) // 1000)
    stamps = {
        "event": event,
        "t_ns": now_ns if at_ns is None else at_ns,
        "time": at.isoformat(timespec="milliseconds"),
    }
    return (json.dumps({**stamps, **facts}, default=str) + "\n").encode("ascii")


def _new_file(path: str) -> int:
    # Unbuffered: a line is on its way when it is written, whole, and nothing is left that could fail at the end.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
