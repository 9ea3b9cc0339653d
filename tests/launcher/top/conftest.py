"""ft_top in a pseudo-terminal, as a person sees it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PATIENCE = 60.0
PROGRAM = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from launcher.top import main
sys.exit(main())
"""

_UNFINISHED = re.compile(rb"\x1b(\[[?0-9;]*)?$")
"""The begin of a sequence whose rest is still to be read."""
_PIECE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([^\x1b])", re.DOTALL)


def screen_of(raw: bytes, columns: int, lines: int) -> list[str]:
    """What a terminal shows after these bytes; the few sequences that ft_top uses."""
    grid = [[" "] * columns for _ in range(lines)]
    row = column = 0
    for match in _PIECE.finditer(_UNFINISHED.sub(b"", raw).decode("utf-8", errors="replace")):
        numbers, letter, character = match.groups()
        if character == "\n":
            row = min(row + 1, lines - 1)
        elif character == "\r":
            column = 0
        elif character is not None:
            assert column < columns, "written beyond the right margin"
            grid[row][column] = character
            column += 1
        elif letter == "H":
            place = [int(number or 1) for number in numbers.split(";")] if numbers else [1, 1]
            row, column = lines - 1 if place[0] == 999 else place[0] - 1, place[1] - 1
            assert row < lines, "written below the last line"
        elif letter == "J":
            for line in range(0 if numbers == "2" else row, lines):
                grid[line] = [" "] * columns
        elif letter == "K":
            grid[row][column:] = [" "] * (columns - column)
        else:
            assert (letter in "hl" and numbers in ("?1049", "?25")) or letter == "m", f"unknown: {match[0]!r}"
    return ["".join(line).rstrip() for line in grid]


class Top:
    """One ft_top under a pseudo-terminal that the test holds both ends of."""

    def __init__(self, arguments: list[str], program: str, columns: int, lines: int, **options: Any) -> None:
        self.columns, self.lines = columns, lines
        self.ours, self.theirs = os.openpty()
        self.resize(columns, lines)
        self.modes = termios.tcgetattr(self.theirs)
        self.raw = b""
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": "", **options.pop("env", {})}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            **{"stdin": self.theirs, "stdout": self.theirs, "stderr": subprocess.PIPE, **options},
            env={name: value for name, value in environment.items() if value},
            start_new_session=True,
        )

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the window; its process hears of that."""
        self.columns, self.lines = columns, lines
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def screen(self) -> list[str]:
        """What is shown."""
        return screen_of(self.raw, self.columns, self.lines)

    def read(self, seconds: float) -> bool:
        """Read what has come, waiting at most so long for it; whether there was something."""
        if not select.select([self.ours], [], [], seconds)[0]:
            return False
        with contextlib.suppress(OSError):  # the other end is closed
            raw = os.read(self.ours, 1 << 16)
            self.raw += raw
            return bool(raw)
        return False

    def until(self, probe: Callable[[], Any], what: str) -> Any:
        """Read until ``probe`` gives something true."""
        end = time.monotonic() + PATIENCE
        while not (found := probe()):
            if not self.read(0.02) and self.process.poll() is not None:
                self.read(0.02)
                if not (found := probe()):
                    raise AssertionError(f"no {what}: ended with {self.process.returncode}, {self.errors}")
                return found
            assert time.monotonic() < end, f"no {what}: {self.screen}"
        return found

    def shows(self, text: str) -> str:
        """Wait until a line with this text is shown; the line."""
        line: str = self.until(lambda: next((line for line in self.screen if text in line), None), repr(text))
        return line

    def press(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.ours, keys)

    def wait(self) -> int:
        """Wait for the end, reading; the exit code, negative for a signal."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it has not ended: {self.screen}"
            self.read(0.02)
        while self.read(0.02):
            pass
        return int(self.process.returncode)

    @functools.cached_property
    def errors(self) -> str:
        """What it has said on standard error, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def assert_left_as_found(self) -> None:
        """The modes of the terminal are those of before; so are its screen and its cursor."""
        assert termios.tcgetattr(self.theirs) == self.modes
        assert self.raw.count(b"\x1b[?1049h") == self.raw.count(b"\x1b[?1049l") > 0
        assert self.raw.rindex(b"\x1b[?1049h") < self.raw.rindex(b"\x1b[?1049l")
        assert self.raw.rindex(b"\x1b[?25l") < self.raw.rindex(b"\x1b[?25h")
        assert self.raw.rindex(b"\x1b[0m") > self.raw.rindex(b"\x1b[7m")

    def tidy(self) -> None:
        """End it, and close the terminal."""
        with self.process:
            self.process.kill()
        for descriptor in (self.ours, self.theirs):
            with contextlib.suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def top() -> Iterator[Callable[..., Top]]:
    """Start ft_top under a pseudo-terminal."""
    started: list[Top] = []

    def start(*arguments: str, program: str = PROGRAM, columns: int = 80, lines: int = 24, **options: Any) -> Top:
        started.append(Top([*arguments, "--interval", "0.1"], program, columns, lines, **options))
        return started[-1]

    yield start
    for each in started:
        each.tidy()
