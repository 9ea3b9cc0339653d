"""Say what launcher, monitor, zygote and autoresume have to say, on standard error: in whole lines.

:func:`announce` cannot raise. Once :func:`start` has started the thread, it does not wait either; before that, and
where no thread can be had, it waits up to 0.05 s for room in a pipe, and for a file as long as its disk takes. A
standard error that nobody reads, that is closed, or whose disk is full or hangs, costs lines; how many is said as soon
as somebody reads again (:mod:`launcher.processes.background`). What a line looks like is in
:mod:`launcher.records.console_lines`. Standard library only.

One level and one format count for all of them. CRITICAL is for what ends a job or keeps it from starting, ERROR for
verdicts, WARNING for restarts and what is not as it should be, INFO for what happens in every run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.processes.background import Background
from launcher.records.console_lines import (
    CRITICAL,
    DEBUG,
    ERROR,
    INFO,
    RESET,
    WARNING,
    Line,
    Message,
    Speaker,
    coloured,
    has_colours,
    lines_of,
    plain,
)
from launcher.records.shared_output import join, output_of, shared_descriptor
from launcher.records.standard_error import current_descriptor as _descriptor
from launcher.records.standard_error import write_at_once, write_waiting

__all__ = [
    "CRITICAL",
    "DEBUG",
    "ERROR",
    "INFO",
    "State",
    "WARNING",
    "announce",
    "announcer",
    "end_line",
    "finish",
    "follow",
    "gathering",
    "set_level",
    "shared_descriptor",
    "start",
    "state",
    "threshold",
    "unwritten_lines",
]

_ROOM_BYTES = 1 << 18
_PATIENCE_SECONDS = 0.05
"""How long a caller waits for room in a pipe where there is no thread to wait for it."""


class State(NamedTuple):
    """What a process of ours that is started by another one goes on with; JSON types."""

    level: int = INFO
    format: str = "text"
    names_node: bool = False


class _Console:
    """One standard error."""

    def __init__(self) -> None:
        self.background = Background("ft_console", _ROOM_BYTES)
        self.threshold = INFO
        self.speaker = Speaker()
        self._dropped = 0  # there was no room for them
        self._told = 0  # their number is on its way
        self._failed = 0  # the system refused them
        self._waiting = 0  # the thread has not come to their end
        self._lock = threading.Lock()

    @property
    def lost(self) -> int:
        """Lines that could not be written and were not reported yet."""
        return self._dropped + self._told + self._failed

    @property
    def unwritten(self) -> int:
        """Lines that were not written by now: those that were lost, and those that wait."""
        return self.lost + self._waiting

    def lose(self, count: int) -> None:
        """Count lines that could not be made."""
        with self._lock:
            self._failed += count

    def announce(self, lines: Sequence[Line]) -> None:
        """Write lines, now or as soon as the thread comes to it."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            self._told += dropped
            self._waiting += len(lines)
        if not self.background.submit(lambda: self._write(lines, dropped), sum(len(line.raw) for line in lines)):
            with self._lock:
                self._told -= dropped
                self._dropped += len(lines) + dropped
                self._waiting -= len(lines)

    def _write(self, lines: Sequence[Line], dropped: int) -> None:
        with self._lock:
            failed, self._failed = self._failed, 0
            self._told += failed
        lost, count = dropped + failed, len(lines)
        if lost:
            said = Message((f"{lost} line(s) could not be written here",), WARNING, "lines_lost")
            lines = [*lines_of(said, self.speaker), *lines]
        try:
            descriptor = _descriptor()
            is_coloured = has_colours(descriptor)
            raw = coloured(lines) if is_coloured else plain(lines)
            is_patient = self.background.is_started
            patience_seconds = 0.0 if lost else _PATIENCE_SECONDS
            with output_of(sys.stderr).speaking(None if is_patient else patience_seconds) as end_of_line:
                if is_patient:
                    write_waiting(descriptor, end_of_line + raw)
                else:
                    write_at_once(descriptor, end_of_line + raw, patience_seconds, RESET if is_coloured else b"")
        except Exception:  # noqa: BLE001 - of a stream that somebody has put there, anything
            with self._lock:
                self._failed += lost + count
        with self._lock:
            self._told -= lost
            self._waiting -= count


_console = _Console()


def announce(
    *lines: str,
    level: int = WARNING,
    event: str = "message",
    ranks: Iterable[int] = (),
    generation: int | None = None,
    culprits_from: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Say one thing on standard error, in one piece; never raises, and waits as the module says.

    Args:
        lines: Without the prefix and the line's end. Of several, the first says what it is about; one JSON object is
            made of all of them (:mod:`launcher.records.console_lines`).
        level: As in ``logging``; below the configured ``log_level`` nothing is printed.
        event: A short name that stays, for programs; docs/output.md lists them.
        ranks: The ranks of the job that it is about.
        generation: The generation that it is about.
        culprits_from: The first of the lines that name a culprit; None where no line does.
        facts: Further fields of the JSON object.
    """
    if lines and level >= _console.threshold:
        try:
            message = Message(lines, level, event, tuple(ranks), generation, culprits_from, facts or {})
            said = lines_of(message, _console.speaker)
        except Exception:  # noqa: BLE001 - whatever was handed over, what the caller does next must be done
            _console.lose(len(lines))
        else:
            _console.announce(said)


def announcer(event: str, level: int = WARNING) -> Callable[[str], None]:
    """Return a function that announces a line, for parts that are handed what to tell people with."""
    return lambda line: announce(line, level=level, event=event)


def start(shared: int | None = None) -> None:
    """Let a thread do the writing from now on. After the zygote was forked, before anything else is started.

    Args:
        shared: What a process of ours that has started this one knows of standard error (``shared_output``).
    """
    join(shared)
    _console.background.start()


def gathering() -> contextlib.AbstractContextManager[None]:
    """Have what is said meanwhile written in one go; see :meth:`launcher.processes.background.Background.gathering`."""
    return _console.background.gathering()


def finish(timeout_seconds: float = 1.0) -> None:
    """Wait until all is written, but not for ever."""
    if _console.lost:
        _console.announce(())
    _console.background.flush(timeout_seconds)


def end_line() -> None:
    """End the line that a copy of what ranks write has left (``--tee``): others may write here once we have ended."""
    if output_of(sys.stderr).is_in_mid_line:
        _console.announce(())


def unwritten_lines(timeout_seconds: float = 0.2) -> int:
    """Return how many lines could not be written by now; those that wait are given a while."""
    _console.background.flush(timeout_seconds)
    return _console.unwritten


def threshold() -> int:
    """Return the level below which nothing is printed."""
    return _console.threshold


def set_level(level: int) -> None:
    """Print nothing below this level from now on."""
    _console.threshold = level


def state() -> State:
    """Return level and form of what is said, to be handed to another process of ours."""
    speaker = _console.speaker
    return State(_console.threshold, speaker.format, speaker.names_node)


def follow(state: State, source: str = "launcher", program: str = "ft_launcher") -> None:
    """Speak from now on as another process of ours, or a configuration, says.

    Args:
        state: From which level on, and in which form.
        source: The part that speaks: ``launcher``, ``monitor``, ``zygote`` or ``autoresume``.
        program: What a line of text begins with.
    """
    _console.threshold = state.level
    _console.speaker = Speaker(program, source, state.names_node, state.format)
