"""Write to standard error, whatever is behind it: a file, a pipe, a socket, a terminal, or a stream of Python's."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from collections.abc import Callable
from typing import Any

from launcher.processes.proc import descriptor_path

__all__ = ["current_descriptor", "is_in_mid_line", "write_at_once", "write_waiting"]


def current_descriptor() -> int:
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


def write_waiting(descriptor: int, raw: bytes) -> None:
    """Write all of it, in the thread, however long that takes.

    What ranks write into the same pipe comes between two pieces, and so between two lines, unless one is longer.
    """
    longest = select.PIPE_BUF if descriptor >= 0 and stat.S_ISFIFO(os.fstat(descriptor).st_mode) else len(raw)
    whole = raw
    while raw:
        try:
            raw = raw[_write(descriptor, raw[: _end_of_piece(raw, longest)]) :]
        except BlockingIOError:  # somebody has made it non-blocking for everybody who shares it
            _wait_for_room(descriptor, None)
        except OSError as error:
            _note_break(error, whole, raw)
            raise


def write_at_once(descriptor: int, raw: bytes, patience_seconds: float, at_a_break: bytes = b"") -> None:
    """Write without a thread, and wait for room only briefly.

    Args:
        descriptor: Where to.
        raw: Whole lines.
        patience_seconds: How long to wait for room.
        at_a_break: Written, where there is room for it, after a line that was broken off.

    Raises:
        OSError: There was none.
    """
    write: Callable[[int, bytes], int] = _write
    whole, ours, longest = raw, -1, len(raw)
    if descriptor >= 0:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            write = _send
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            longest = select.PIPE_BUF
            # An open file of our own: O_NONBLOCK on the one that we share with the ranks would be theirs, too.
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                descriptor = ours = os.open(descriptor_path(descriptor), flags)
    try:
        while raw:
            if ours >= 0 or write is _send:
                try:
                    raw = raw[write(descriptor, raw[: _end_of_piece(raw, longest)]) :]
                    continue
                except BlockingIOError:
                    pass
            elif descriptor < 0 or _wait_for_room(descriptor, 0):
                raw = raw[write(descriptor, raw[: _end_of_piece(raw, longest)]) :]
                continue
            if not _wait_for_room(descriptor, patience_seconds):
                if ours >= 0 and at_a_break:
                    with contextlib.suppress(OSError):
                        os.write(ours, at_a_break)
                raise BlockingIOError("nobody reads standard error")
    except OSError as error:
        _note_break(error, whole, raw)
        raise
    finally:
        if ours >= 0:
            os.close(ours)


def is_in_mid_line(error: OSError) -> bool:
    """Return whether writing was broken off in mid-line by this error."""
    return getattr(error, "_ft_is_in_mid_line", False)


def _note_break(error: OSError, whole: bytes, rest: bytes) -> None:
    written = whole[: len(whole) - len(rest)]
    error._ft_is_in_mid_line = bool(written) and not written.endswith(b"\n")  # type: ignore[attr-defined]


def _end_of_piece(raw: bytes, longest: int) -> int:
    """Return where to end the next piece: after the last line that fits, in mid-line where not even one does."""
    return len(raw) if len(raw) <= longest else raw.rfind(b"\n", 0, longest) + 1 or longest


def _send(descriptor: int, raw: bytes) -> int:
    import socket

    with socket.socket(fileno=os.dup(descriptor)) as link:
        return link.send(raw, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _wait_for_room(descriptor: int, timeout_seconds: float | None) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return bool(poller.poll(None if timeout_seconds is None else timeout_seconds * 1000))
