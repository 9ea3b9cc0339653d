"""What the launcher has counted of its own events, in memory that the process that serves metrics can read.

The metrics of restarts, verdicts and the monitor must be right whatever becomes of the log folder: its disk may be full
or hang, and a file may be removed or cut off. Two ways were sketched:

* *The lines in memory*: beside the log, the launcher appends the few lines that matter to a file in memory, and the
  exporter counts. It is a single write for each line. But a run may last for months and restart without end, so the
  file needs a bound, and once that is reached an exporter that is started again has lost what came before. With only
  the lines that the log does not take in that file, the two would have to be merged, without taking a line twice.
* *The counts in memory*: the launcher itself counts (:mod:`launcher.agent.history`), and after each event that matters,
  about six in a restart, writes all counts anew, less than 1 KiB. The size never grows, an exporter that is started
  again finds all that the one before it knew, and nothing of the log is read for it.

The second way was chosen. An event costs the launcher one write to memory, on top of its line in the log, and only
where metrics are served. The memory has no name (``memfd_create``), so nobody can remove it, and all of it is allotted
when it is made, so a full /dev/shm does not matter. Nothing waits for a reader: there are two places, which are written
in turn, each with a checksum, and a reader takes the newer one that is whole.

How many lines a log lacks stands in front of them, in a word for each log.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from launcher.agent.durations import Histogram
from launcher.agent.history import BOUNDS, HEARD, History, Told
from launcher.processes.proc import descriptor_path
from launcher.records.event_files import EVENTS, event_of
from launcher.records.figures_log import FIGURES
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["LOGS", "HistoryReader", "NoHistoryError", "SharedHistory", "Shared"]

LOGS = (EVENTS, FIGURES)
"""The logs of a launcher, by what the names of their files begin with."""

_WORD = struct.Struct("<Q")
_HEAD = struct.Struct("<QII")
"""Of a place: the number of the writing, the length of the text after it, and a checksum of both and the text."""
_FIRST_PLACE = 64
_PLACE_BYTES = 32 << 10
"""More than the longest path, and some hundred numbers, take as JSON."""
_PLACES = 2
_SIZE = _FIRST_PLACE + _PLACES * _PLACE_BYTES
_TRIES = 10
_PAUSE_SECONDS = 0.001
"""The launcher has written both places while one was read."""
_LATER_NS = NS_PER_SECOND
"""So much later than the launcher a reader counts a restart whose cause is awaited: a cause that the launcher has heard
at the last moment is there by then, and nothing that was counted is counted otherwise afterwards."""


class NoHistoryError(Exception):
    """There is nothing whole to read; the text says what was found."""


class Shared(NamedTuple):
    """What a launcher has shared."""

    told: Told
    not_taken: int
    """Events that could not be counted."""
    lost: Mapping[str, int]
    """Lines that a log lacks, by :data:`LOGS`."""


class SharedHistory:
    """Counts the events of this launcher, and shares the counts. Used by any thread.

    Raises:
        OSError: The system has no such memory, or no descriptor, left.
    """

    def __init__(self) -> None:
        self._history = History()
        self._not_taken = self._writings = 0
        self._taking = threading.Lock()
        self._descriptor = os.memfd_create("ft_history", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self._descriptor, 0, _SIZE)
            self.reader = os.open(descriptor_path(self._descriptor), os.O_RDONLY | os.O_CLOEXEC)
            """A descriptor for :class:`HistoryReader`, which cannot write."""
            self._share(time.monotonic_ns())
        except OSError:
            os.close(self._descriptor)
            raise

    @classmethod
    @contextlib.contextmanager
    def opened(cls) -> Iterator[SharedHistory]:
        """Make one, and close it when the block is left.

        Raises:
            OSError: As for the class.
        """
        made = cls()
        try:
            yield made
        finally:
            made.close()

    def heard(self, event: str, line: bytes) -> None:
        """Take an event; never raises, and waits for nothing but another thread that does the same.

        Args:
            event: Its name.
            line: As it is written to the log; the log and the metrics cannot tell different things.
        """
        if event not in HEARD:
            return
        with self._taking:
            now_ns = time.monotonic_ns()
            self._history.settle(now_ns)
            try:
                self._history.take(event_of(line.decode("ascii")))
            except Exception:  # noqa: BLE001 - metrics must cost a job nothing, whatever is wrong with an event
                self._not_taken += 1
            self._share(now_ns)

    def note_lost(self, log: str, lines: int) -> None:
        """Share how many lines a log lacks; never raises, never waits.

        Args:
            log: One of :data:`LOGS`.
            lines: In all, so far.
        """
        with contextlib.suppress(OSError):  # closed: the job has ended
            os.pwrite(self._descriptor, _WORD.pack(lines), LOGS.index(log) * _WORD.size)

    def close(self) -> None:
        """Close the memory; it is gone with its last reader."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        os.close(self.reader)

    def _share(self, now_ns: int) -> None:
        self._writings += 1
        told = self._history.told(now_ns)._asdict()
        for name in BOUNDS:
            histogram = told[name]
            told[name] = [count for _, count in histogram.buckets], histogram.total, histogram.sum_seconds
        text = json.dumps({"told": told, "not_taken": self._not_taken}).encode("ascii")
        head = _HEAD.pack(self._writings, len(text), _checksum(self._writings, text))
        with contextlib.suppress(OSError):  # closed: the job has ended
            os.pwrite(self._descriptor, head + text, _FIRST_PLACE + self._writings % _PLACES * _PLACE_BYTES)


class HistoryReader:
    """Reads what a launcher shares.

    Args:
        descriptor: :attr:`SharedHistory.reader`, as it was inherited.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, now_ns: int) -> Shared:
        """Return what the launcher has shared last.

        Args:
            now_ns: ``CLOCK_MONOTONIC``; a restart whose cause is not known yet is counted some seconds later.

        Raises:
            NoHistoryError: It cannot be read.
        """
        problem = ""
        for _ in range(_TRIES):
            try:
                raw = os.pread(self._descriptor, _SIZE, 0)
            except OSError as error:
                raise NoHistoryError(str(error)) from error
            whole = [found for place in range(_PLACES) if (found := _text_in(raw, place)) is not None]
            if whole:
                return _shared(raw, max(whole)[1], now_ns)
            problem = f"nothing whole in {len(raw)} bytes"
            time.sleep(_PAUSE_SECONDS)
        raise NoHistoryError(problem)


def _checksum(number: int, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(_WORD.pack(number)))


def _text_in(raw: bytes, place: int) -> tuple[int, bytes] | None:
    """Return the number of the writing in a place, and its text; None where it is not whole."""
    begin = _FIRST_PLACE + place * _PLACE_BYTES
    if len(raw) < begin + _PLACE_BYTES:
        return None
    number, length, checksum = _HEAD.unpack_from(raw, begin)
    text = raw[begin + _HEAD.size : begin + _HEAD.size + length]
    is_whole = number > 0 and length <= _PLACE_BYTES - _HEAD.size and _checksum(number, text) == checksum
    return (number, text) if is_whole else None


def _shared(raw: bytes, text: bytes, now_ns: int) -> Shared:
    try:
        counts = json.loads(text)
        told, not_taken = _with_awaited(_told(counts["told"]), now_ns), int(counts["not_taken"])
    except (KeyError, TypeError, ValueError) as error:  # of another release, that was installed meanwhile
        raise NoHistoryError(f"of another form: {error!r}") from error
    lost = {log: _WORD.unpack_from(raw, index * _WORD.size)[0] for index, log in enumerate(LOGS)}
    return Shared(told, not_taken, lost)


def _told(fields: Mapping[str, Any]) -> Told:
    histograms = {name: _histogram(bounds, fields[name]) for name, bounds in BOUNDS.items()}
    awaited = tuple((int(end_ns), str(cause)) for end_ns, cause in fields["awaited"])
    return Told(**{**fields, **histograms, "awaited": awaited})


def _histogram(bounds: tuple[float, ...], fields: Any) -> Histogram:
    counts, total, sum_seconds = fields
    buckets = zip(bounds, map(int, counts), strict=True)
    return Histogram(tuple(buckets), int(total), float(sum_seconds))


def _with_awaited(told: Told, now_ns: int) -> Told:
    """Count the restarts whose cause was awaited for long enough, which the launcher does with its next event."""
    restarts = dict(told.restarts)
    for end_ns, cause in told.awaited:
        if now_ns >= end_ns + _LATER_NS:
            restarts[cause] += 1
    return told._replace(restarts=restarts)
