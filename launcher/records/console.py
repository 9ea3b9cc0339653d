"""Tell people what launcher and monitor have to say, on standard error: whole lines, prefixed, never waited for.

:func:`announce` cannot raise and cannot block. A standard error that nobody reads, that is closed, or whose disk is
full or hangs, costs lines; how many is said as soon as somebody reads again (:mod:`launcher.processes.background`).
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any

from launcher.processes.background import Background
from launcher.processes.proc import descriptor_path
from launcher.records.readable import readable

__all__ = [
    "DEBUG",
    "ERROR",
    "INFO",
    "WARNING",
    "finish",
    "gathering",
    "lost_lines",
    "announce",
    "set_level",
    "set_prefix",
    "start",
    "threshold",
]

# As in logging, which the monitor does without.
DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40

_ROOM_BYTES = 1 << 18
_LONGEST_TEXT = 1 << 16
_PATIENCE_SECONDS = 0.05
"""How long a caller waits for room in a pipe where there is no thread to wait for it."""


class _Console:
    """One standard error."""

    def __init__(self) -> None:
        self.background = Background("ft_console", _ROOM_BYTES)
        self.threshold = INFO
        self.prefix = "ft_launcher"
        self._dropped = 0  # there was no room for them
        self._told = 0  # their number is on its way
        self._failed = 0  # the system refused them
        self._lock = threading.Lock()

    @property
    def lost(self) -> int:
        """Lines that could not be written and were not reported yet."""
        return self._dropped + self._told + self._failed

    def announce(self, text: str, lines: int) -> None:
        """Write a text, now or as soon as the thread comes to it."""
        raw = text.encode("utf-8", errors="backslashreplace")[:_LONGEST_TEXT]
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            self._told += dropped
        if not self.background.submit(lambda: self._write(raw, lines, dropped), len(raw)):
            with self._lock:
                self._told -= dropped
                self._dropped += lines + dropped

    def _write(self, raw: bytes, lines: int, dropped: int) -> None:
        with self._lock:
            failed, self._failed = self._failed, 0
            self._told += failed
        lost = dropped + failed
        if lost:
            raw = f"{self.prefix}: {lost} line(s) could not be written here\n".encode() + raw
        try:
            if self.background.is_started:
                _write_waiting(_descriptor(), raw)
            else:
                _write_at_once(_descriptor(), raw, 0.0 if lost else _PATIENCE_SECONDS)
        except OSError:
            with self._lock:
                self._failed += lost + lines
        with self._lock:
            self._told -= lost


_console = _Console()


def announce(*lines: str, level: int = WARNING) -> None:
    """Print lines to standard error in one piece; never raises, never waits.

    Args:
        lines: Without the prefix and the line's end.
        level: As in ``logging``; below the configured ``log_level`` nothing is printed. INFO is for what happens in
            every run.
    """
    if level >= _console.threshold:
        _console.announce("".join(readable(line, f"{_console.prefix}: ") + "\n" for line in lines), len(lines))


def start() -> None:
    """Let a thread do the writing from now on. After the zygote was forked, before anything else is started."""
    _console.background.start()


def gathering() -> contextlib.AbstractContextManager[None]:
    """Have what is said meanwhile written in one go; see :meth:`launcher.processes.background.Background.gathering`."""
    return _console.background.gathering()


def finish(timeout_seconds: float = 1.0) -> None:
    """Wait until all is written, but not for ever."""
    if _console.lost:
        _console.announce("", 0)
    _console.background.flush(timeout_seconds)


def lost_lines() -> int:
    """Return how many lines could not be written and were not reported yet."""
    return _console.lost


def threshold() -> int:
    """Return the level below which nothing is printed."""
    return _console.threshold


def set_level(level: int) -> None:
    """Print nothing below this level from now on."""
    _console.threshold = level


def set_prefix(prefix: str) -> None:
    """Begin every line with this from now on: the name of the command that speaks, ``ft_launcher`` at first."""
    _console.prefix = prefix


# ---- descriptors ----------------------------------------------------------------------------------------


def _descriptor() -> int:
    """Return the descriptor of ``sys.stderr`` as it is now; tests and notebooks replace it."""
    stream: Any = sys.stderr
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        if stream is None or stream is sys.__stderr__:
            return 2
        return _Substitute.put(stream)


class _Substitute:
    """Streams without a descriptor, by a number that no descriptor has."""

    stream: Any = None

    @classmethod
    def put(cls, stream: Any) -> int:
        cls.stream = stream
        return -1


def _write(descriptor: int, raw: bytes) -> int:
    if descriptor >= 0:
        return os.write(descriptor, raw)
    with contextlib.suppress(ValueError):  # closed
        _Substitute.stream.write(raw.decode("utf-8", errors="replace"))
        _Substitute.stream.flush()
    return len(raw)


def _write_waiting(descriptor: int, raw: bytes) -> None:
    """Write all of it, in the thread, however long that takes."""
    while raw:
        try:
            raw = raw[_write(descriptor, raw) :]
        except BlockingIOError:  # somebody has made it non-blocking for everybody who shares it
            _wait_for_room(descriptor, None)


def _write_at_once(descriptor: int, raw: bytes, patience_seconds: float) -> None:
    """Write without a thread, and wait for room only briefly.

    Raises:
        OSError: There was none.
    """
    write: Callable[[int, bytes], int] = _write
    ours, piece = -1, len(raw)
    if descriptor >= 0:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            write = _send
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            piece = select.PIPE_BUF
            # An open file of our own: O_NONBLOCK on the one that we share with the ranks would be theirs, too.
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                descriptor = ours = os.open(descriptor_path(descriptor), flags)
    try:
        while raw:
            if ours >= 0 or write is _send:
                try:
                    raw = raw[write(descriptor, raw) :]
                    continue
                except BlockingIOError:
                    pass
            elif descriptor < 0 or _wait_for_room(descriptor, 0):
                raw = raw[write(descriptor, raw[:piece]) :]
                continue
            if not _wait_for_room(descriptor, patience_seconds):
                raise BlockingIOError("nobody reads standard error")
    finally:
        if ours >= 0:
            os.close(ours)


def _send(descriptor: int, raw: bytes) -> int:
    import socket

    with socket.socket(fileno=os.dup(descriptor)) as link:
        return link.send(raw, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _wait_for_room(descriptor: int, timeout_seconds: float | None) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return bool(poller.poll(None if timeout_seconds is None else timeout_seconds * 1000))
