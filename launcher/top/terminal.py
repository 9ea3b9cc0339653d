"""The terminal: taken over for a while, written to without waiting, and left as it was found."""

from __future__ import annotations

import contextlib
import os
import select
import termios
from typing import Any

from launcher.processes.proc import descriptor_path

__all__ = ["Terminal", "TerminalGoneError"]

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"
"""Alternate screen, no cursor, empty."""
_LEAVE = b"\x1b[0m\x1b[999;1H\x1b[?25h\x1b[?1049l"
"""The last line is for terminals without an alternate screen, where the frame stays and a prompt follows it."""
_CONTROLLING = "/dev/tty"
"""The terminal that controls a process, which may open it whoever's it is."""
_LARGEST_PIECE = 1 << 16
_PATIENCE_MS = 200
"""How long to wait at the end for a terminal that takes nothing."""


class TerminalGoneError(Exception):
    """Nobody reads the terminal any more, and nobody will."""


class Terminal:
    """One terminal, by the descriptor of standard output, and of standard input where that is a terminal, too.

    Everything is written through an open file of its own that does not block: a terminal that is stopped (Ctrl-S) or
    whose reader hangs costs frames and no signal. O_NONBLOCK on the shared one would be everybody's, so where there is
    no way to open the terminal again, it gets byte after byte, each once it says that it takes one.

    Args:
        output: A descriptor of a terminal.
        keys: A descriptor of a terminal to read keys from; None for none.
    """

    def __init__(self, output: int, keys: int | None) -> None:
        self._shared = output
        self.keys = keys
        self._modes = output if keys is None else keys
        self._found: list[Any] | None = None
        self._own = -1
        self._piece = _LARGEST_PIECE
        self._pending = b""
        self.is_entered = False

    def enter(self) -> None:
        """Take the terminal over: the other screen, no cursor, keys without echo and without waiting for a line."""
        if self._own < 0:
            self._open()
        if self.keys is not None:
            with contextlib.suppress(termios.error):
                found = termios.tcgetattr(self._modes)
                ours = [*found[:6], list(found[6])]
                ours[3] &= ~(termios.ICANON | termios.ECHO)
                ours[6][termios.VMIN], ours[6][termios.VTIME] = 0, 0  # reading never waits
                self._found = found
                termios.tcsetattr(self._modes, termios.TCSANOW, ours)
        self.is_entered = True
        self._pending = b""
        self.write(_ENTER)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        paths = [descriptor_path(self._shared)]
        with contextlib.suppress(OSError):
            os.tcgetpgrp(self._shared)  # raises unless this is the terminal that controls the process
            paths.append(_CONTROLLING)
        for path in paths:
            with contextlib.suppress(OSError):  # proc(5) is missing, or the terminal is another user's (su)
                self._own, self._piece = os.open(path, flags), _LARGEST_PIECE
                return
        self._own, self._piece = os.dup(self._shared), 1

    def leave(self) -> None:
        """Give the terminal back as it was found; never raises, and waits only a moment for one that takes nothing.

        One that a shell has taken back is left alone: to change its modes from the background stops a process.
        """
        if not self.is_entered:
            return
        self.is_entered = False
        if not self.is_ours():
            self._found, self._pending = None, b""
            return
        if self._found is not None:
            # Not TCSADRAIN, which waits for a terminal that is stopped.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._modes, termios.TCSANOW, self._found)
            self._found = None
        self._pending += _LEAVE
        poller = select.poll()
        poller.register(self._own, select.POLLOUT)
        with contextlib.suppress(OSError, TerminalGoneError):
            while self._pending and poller.poll(_PATIENCE_MS):
                self._flush()
        self._pending = b""

    def close(self) -> None:
        """Leave, and close what was opened."""
        self.leave()
        if self._own >= 0:
            os.close(self._own)
            self._own = -1

    @property
    def is_busy(self) -> bool:
        """Whether a part of what was written last is still to be taken."""
        return bool(self._pending)

    def write(self, raw: bytes) -> None:
        """Write as much as the terminal takes; the rest goes first the next time.

        Raises:
            TerminalGoneError: It was hung up.
        """
        self._pending += raw
        self._flush()

    def read_keys(self) -> bytes:
        """Return the keys that were pressed; never waits.

        Raises:
            TerminalGoneError: It was hung up.
        """
        if self.keys is None:
            return b""
        try:
            raw = os.read(self.keys, 1024)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise TerminalGoneError from error
        if not raw and self._is_hung_up():
            raise TerminalGoneError
        return raw

    def size(self) -> tuple[int, int]:
        """Return columns and lines; 80 and 24 where the terminal does not tell."""
        try:
            size = os.get_terminal_size(self._shared)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def is_ours(self) -> bool:
        """Return whether this process may use the terminal: it is not in the background of a shell."""
        try:
            return os.tcgetpgrp(self._modes) == os.getpgrp()
        except OSError:  # it is not the terminal that controls this process
            return True

    def _flush(self) -> None:
        sent = 0
        try:
            while sent < len(self._pending) and self._takes():
                sent += os.write(self._own, self._pending[sent : sent + self._piece])
        except BlockingIOError:
            pass
        except OSError as error:
            raise TerminalGoneError from error
        finally:
            self._pending = self._pending[sent:]

    def _takes(self) -> bool:
        """Return whether the terminal takes a piece without waiting; one that does not block says so by itself."""
        if self._piece > 1:
            return True
        poller = select.poll()
        poller.register(self._own, select.POLLOUT)
        return any(event & select.POLLOUT for _, event in poller.poll(0))

    def _is_hung_up(self) -> bool:
        poller = select.poll()
        poller.register(self._own, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))
