"""``--tee`` as torch does it, but with the bytes that the rank wrote.

torch's own reads a rank's file as text: what is no UTF-8 is replaced, each carriage return of a progress bar becomes a
line feed, and what a rank writes between the last look and its end may be lost. Here the copy is the file, piece by
piece, with torch's prefix in front of each; a piece ends with a line feed or a carriage return.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any, TextIO

from torch.distributed.elastic.multiprocessing.tail_log import TailLog

__all__ = ["ByteTail", "keep_bytes"]

_CHUNK = 1 << 16
_LINE = 1 << 20
"""The most bytes of a line that are kept until its end comes; a longer line is copied in parts, and lines of others may
come between them."""
_USED = frozenset(
    ("_threadpool", "_dst", "_log_files", "_log_line_prefixes", "_finished_events", "_interval_sec", "_futs", "_name")
)
"""What of torch's tail is used here and no torch promises: without them the tail stays torch's own."""
_PIECES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def keep_bytes(context: object) -> None:
    """Have the tails that torch has made for its ``PContext``, and not started yet, keep bytes."""
    for value in list(vars(context).values()):
        for each in value if isinstance(value, list) else (value,):
            if type(each) is TailLog and vars(each).keys() >= _USED:
                each.__class__ = ByteTail


class ByteTail(TailLog):
    """Copies files of ranks to a stream while they grow."""

    def start(self) -> ByteTail:
        """See torch."""
        facts: dict[str, Any] = self.__dict__
        if not facts["_threadpool"] or not facts["_dst"]:
            return self
        prefixes = facts.get("_log_line_prefixes") or {}
        for local_rank, file in facts["_log_files"].items():
            header = prefixes.get(local_rank, f"[{facts['_name']}{local_rank}]:")
            follow = (facts["_finished_events"][local_rank], facts["_interval_sec"], facts.get("_log_line_filter"))
            facts["_futs"].append(facts["_threadpool"].submit(_copy, header, file, facts["_dst"], *follow))
        return self


def _copy(
    header: str,
    file: str,
    stream: TextIO,
    finished: Event,
    interval_seconds: float,
    is_wanted: Callable[[str], bool] | None,
) -> None:
    """Copy a file until whoever writes it has ended, and all of it has been read."""
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
                _write(stream, raw)
            if not chunk:
                if was_finished:
                    return
                time.sleep(interval_seconds)


class _Pieces:
    """What is to be written, with the header in front of each piece."""

    def __init__(self, header: bytes, is_wanted: Callable[[str], bool]) -> None:
        self._header, self._is_wanted = header, is_wanted
        self._rest = b""  # of a piece whose end has not come
        self._is_within = False  # the beginning of that piece was written
        self._was_wanted = True  # the piece before this one
        self._after_return = False

    def of(self, chunk: bytes, *, is_last: bool) -> Iterator[bytes]:
        """Yield what to write in one go."""
        ready = b""
        found = _PIECES.findall(self._rest + chunk)
        self._rest = b""
        if found and not found[-1].endswith((b"\r", b"\n")) and not is_last and len(found[-1]) < _LINE:
            self._rest = found.pop()
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


def _write(stream: TextIO, raw: bytes) -> None:
    binary = getattr(stream, "buffer", None)
    if binary is None:  # a notebook's
        stream.write(raw.decode(errors="replace"))
    else:
        binary.write(raw)
        binary.flush()
