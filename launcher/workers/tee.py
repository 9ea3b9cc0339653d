"""``--tee`` as torch does it, but with the bytes that the rank wrote.

torch's own reads a rank's file as text: what is no UTF-8 is replaced, each carriage return of a progress bar becomes a
line feed, and what a rank writes between the last look and its end may be lost. Here the copy is the file, piece by
piece, with torch's prefix in front of each; a piece ends with a line feed or a carriage return.

Nor is the copy waited for where nobody reads it: torch's own keeps a restart waiting for as long as a pipe is full.
What is left when a generation is over follows while the next one runs, whose output comes after it; at the end of the
job the launcher waits for it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import select
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from threading import Event
from typing import Any, NamedTuple, TextIO

from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from launcher.records.console import announce
from launcher.records.shared_output import output_of

__all__ = ["ByteTail", "finish_copies", "keep_bytes"]

_CHUNK = 1 << 16
_LINE = 1 << 20
"""The most bytes of a line that are kept until its end comes; a longer line is copied in parts, and lines of others may
come between them."""
_USED = frozenset(
    ("_threadpool", "_dst", "_log_files", "_log_line_prefixes", "_finished_events", "_interval_sec", "_futs", "_name")
)
"""What of torch's tail is used here and no torch promises: without them the tail stays torch's own."""
_BLOCKED_SECONDS = 0.1
"""Whoever has been in one write for as long waits for a reader."""
_LONGEST_STOP_SECONDS = 0.25
"""For a reader that is slow; a copy is at its end a tenth of a second after its rank, torch looks as often."""
_STILL_SECONDS = 30.0
"""How long the end of the job waits for a reader that takes nothing."""
_STILL_SECONDS_AFTER_A_SIGNAL = 2.0
_LOOK_SECONDS = 0.02
_PIECES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def keep_bytes(context: object) -> None:
    """Have the tails that torch has made for its ``PContext``, and not started yet, keep bytes."""
    for value in list(vars(context).values()):
        for each in value if isinstance(value, list) else (value,):
            if type(each) is TailLog and vars(each).keys() >= _USED:
                each.__class__ = ByteTail


class _Writer:
    """Writes to a stream, and knows since when it does.

    One at a time: a pipe takes 64 KiB, and then whatever comes, so a longer line would be mixed with others.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._output = output_of(stream)
        self._since: float | None = None
        self.count = 0
        """How many writes are done."""

    @property
    def is_blocked(self) -> bool:
        """Whether the stream takes nothing, or is taken by what comes before."""
        since = self._since
        return since is not None and time.monotonic() - since >= _BLOCKED_SECONDS

    def write(self, raw: bytes) -> None:
        with self._waiting(), self._output.copying(raw):
            binary = getattr(self.stream, "buffer", None)
            if binary is None:  # a notebook's
                self.stream.write(raw.decode(errors="replace"))
            else:
                left = memoryview(raw)
                while left:  # without a buffer (PYTHONUNBUFFERED) it may take a part
                    left = left[binary.write(left) or 0 :]
                binary.flush()
        self.count += 1

    def wait_for(self, others: Sequence[Future[None]]) -> None:
        with self._waiting():
            concurrent.futures.wait(others)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None


class _Copying(NamedTuple):
    """The copy of one file, under way in a thread."""

    future: Future[None]
    writer: _Writer

    @property
    def is_over(self) -> bool:
        return self.future.done()


_left: list[_Copying] = []
"""What was not copied to its end when its generation was over."""
_said: set[str] = set()


def finish_copies(is_hurried: Callable[[], bool]) -> None:
    """Wait at the end of the job for what is still to be copied, as long as somebody reads it.

    Args:
        is_hurried: Whether a signal has asked for the end.
    """
    moved, count = time.monotonic(), -1
    while left := _still_left():
        now, so_far = time.monotonic(), sum(each.writer.count for each in _left)
        if so_far != count:
            moved, count = now, so_far
        if now - moved >= (_STILL_SECONDS_AFTER_A_SIGNAL if is_hurried() else _STILL_SECONDS):
            what = f"the output of {len(left)} file(s) of ranks was not copied to its end (--tee): nobody reads it"
            announce(f"{what}; it is whole in the log folder, below workers/", event="tee")
            return
        concurrent.futures.wait([each.future for each in left], _LOOK_SECONDS)


def _still_left() -> list[_Copying]:
    over: list[_Copying] = []
    still: list[_Copying] = []
    for each in _left:
        (over if each.is_over else still).append(each)
    _left[:] = still
    _tell_failures(over)
    return still


def _tell_failures(copies: Sequence[_Copying]) -> None:
    for each in copies:
        if each.is_over and (error := each.future.exception()) is not None and "failed" not in _said:
            _said.add("failed")
            what = f"the output of ranks cannot be copied any more (--tee): {error}"
            announce(f"{what}; it is whole in the log folder, below workers/ (said once)", event="tee")


class ByteTail(TailLog):
    """Copies files of ranks to a stream while they grow."""

    def start(self) -> ByteTail:
        """See torch."""
        facts: dict[str, Any] = self.__dict__
        if not facts["_threadpool"] or not facts["_dst"]:
            return self
        prefixes = facts.get("_log_line_prefixes") or {}
        before = [each.future for each in _left if each.writer.stream is facts["_dst"] and not each.is_over]
        for local_rank, file in facts["_log_files"].items():
            header = prefixes.get(local_rank, f"[{facts['_name']}{local_rank}]:")
            follow = (facts["_finished_events"][local_rank], facts["_interval_sec"], facts.get("_log_line_filter"))
            writer = _Writer(facts["_dst"])
            future = facts["_threadpool"].submit(_copy, header, file, writer, before, *follow)
            facts["_futs"].append(future)
            facts.setdefault("_copies", []).append(_Copying(future, writer))
        return self

    def stop(self) -> None:
        """Copy what is there by now; what nobody reads is left to the threads (:func:`finish_copies`)."""
        facts: dict[str, Any] = self.__dict__
        for finished in facts["_finished_events"].values():
            finished.set()
        copies: list[_Copying] = facts.get("_copies", [])
        end = time.monotonic() + _LONGEST_STOP_SECONDS
        while (left := [each for each in copies if not each.is_over]) and time.monotonic() < end:
            if all(each.writer.is_blocked for each in left):
                break
            concurrent.futures.wait([each.future for each in left], _LOOK_SECONDS)
        _tell_failures(copies)
        if left:
            _left[:] = [*_still_left(), *left]
            if "left" not in _said:
                _said.add("left")
                what = "the output of ranks (--tee) is not read, or more slowly than it comes; it follows as it is read"
                announce(f"{what}, and restarts wait for half a second at most (said once)", event="tee")
        if facts["_threadpool"]:
            facts["_threadpool"].shutdown(wait=not left)
        self._stopped = True


def _copy(
    header: str,
    file: str,
    writer: _Writer,
    before: Sequence[Future[None]],
    finished: Event,
    interval_seconds: float,
    is_wanted: Callable[[str], bool] | None,
) -> None:
    """Copy a file until whoever writes it has ended, and all of it has been read; after what comes before."""
    writer.wait_for(before)
    while True:
        was_finished = finished.is_set()  # asked first: what was written until then is there
        if os.path.exists(file):
            break
        if was_finished:
            return
        time.sleep(interval_seconds)
    pieces = _Pieces(header.encode(errors="surrogateescape"), is_wanted or (lambda _: True))
    with open(file, "rb", buffering=0) as source:
        while True:
            was_finished = finished.is_set()
            chunk = source.read(_CHUNK)
            for raw in pieces.of(chunk, is_last=was_finished and not chunk):
                writer.write(raw)
            if not chunk:
                if was_finished:
                    return
                time.sleep(interval_seconds)


class _Pieces:
    """What is to be written, with the header in front of each piece."""

    def __init__(self, header: bytes, is_wanted: Callable[[str], bool]) -> None:
        self._header, self._is_wanted = header, is_wanted
        self._rest = bytearray()  # of a piece whose end has not come
        self._is_within = False  # the beginning of that piece was written
        self._was_wanted = True  # the piece before this one
        self._after_return = False

    def of(self, chunk: bytes, *, is_last: bool) -> Iterator[bytes]:
        """Yield what to write in one go."""
        self._rest += chunk
        if not is_last and len(self._rest) < _LINE and b"\n" not in chunk and b"\r" not in chunk:
            return  # the whole of a long line is searched once, not with each part of it
        ready = b""
        found = _PIECES.findall(bytes(self._rest))
        self._rest.clear()
        if found and not found[-1].endswith((b"\r", b"\n")) and not is_last and len(found[-1]) < _LINE:
            self._rest += found.pop()
        for piece in found:
            told = self._told(piece)
            if ready and len(ready) + len(told) > select.PIPE_BUF:  # what others write comes between two pieces
                yield ready
                ready = b""
            ready += told
        if ready:
            yield ready

    def _told(self, piece: bytes) -> bytes:
        continues = self._is_within or (self._after_return and piece == b"\n")
        if not continues:
            self._was_wanted = self._is_wanted(piece.decode(errors="replace"))
        self._is_within, self._after_return = not piece.endswith((b"\r", b"\n")), piece.endswith(b"\r")
        if not self._was_wanted:
            return b""
        return piece if continues else self._header + piece
