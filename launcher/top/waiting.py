"""Signals and keys, waited for in one place, so that none comes between a look and the wait after it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from types import FrameType, TracebackType

__all__ = ["Waiting"]

_ENDING = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU, signal.SIGABRT),
)
"""What ends a process that does nothing about it: a scheduler may send any of these before it ends a job."""
_OTHERS = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


class Waiting:
    """Collects signals while it is entered, and puts back what handled them before.

    A signal that was ignored when this process was started (SIGHUP under ``nohup``) stays ignored.
    """

    def __init__(self) -> None:
        self._before: dict[int, signal.Handlers | object] = {}
        self._reading, self._writing = -1, -1
        self._former_descriptor = -1

    def __enter__(self) -> Waiting:
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._former_descriptor = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in (*_ENDING, *_OTHERS):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, _do_nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._former_descriptor)
        os.close(self._reading)
        os.close(self._writing)

    def wait(self, seconds: float, keys: int | None) -> tuple[list[int], bool]:
        """Wait for signals or keys, no longer than so long.

        Args:
            seconds: At most.
            keys: A descriptor to read keys from; None for none.

        Returns:
            The numbers of the signals that have come, and whether keys can be read.
        """
        poller = select.poll()
        poller.register(self._reading, select.POLLIN)
        if keys is not None:
            poller.register(keys, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(max(0.0, seconds) * 1000)]
        numbers: list[int] = []
        if self._reading in ready:
            with contextlib.suppress(BlockingIOError):
                while raw := os.read(self._reading, 256):
                    numbers += raw
        return numbers, keys is not None and keys in ready

    def stop_here(self) -> None:
        """Stop this process as SIGTSTP does by default; returns when it is continued."""
        if signal.SIGTSTP not in self._before:
            return
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _do_nothing)

    @staticmethod
    def is_ending(number: int) -> bool:
        """Return whether a signal asks this process to end."""
        return number in _ENDING


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal: its number is in the pipe of the wake-up already."""
