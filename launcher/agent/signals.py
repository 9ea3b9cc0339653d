"""One object owns the launcher's signals: handlers only note, and the main thread decides when to look."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException

from launcher.command_line import early_signals
from resilience_core.errors import ConfigError

__all__ = ["SignalInbox"]

_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)


class SignalInbox:
    """Signals that ask the launcher to end the job.

    A signal is noted and makes :attr:`descriptor` readable; the supervision loop takes it with
    :meth:`raise_pending`. Only inside :meth:`raised_at_once`, which is for torch's own waits (rendezvous, exit
    barrier), and there outside :meth:`deferred`, it is raised as it comes, as torch's ``SignalException``, which is
    what torch's agent expects. So none interrupts what is being made or put away.

    SIGUSR1 and SIGUSR2, by which schedulers announce the end of an allocation, are passed on to those ranks that
    handle them (:meth:`take_forwarded`), unless they are among the signals that end the job.
    """

    def __init__(self, names: str) -> None:
        self._numbers = [_number(name.strip()) for name in names.split(",") if name.strip()]
        self._pending: list[signal.Signals] = []
        self._depth = 1
        self._to_forward: list[signal.Signals] = []
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.first: signal.Signals | None = None
        """The first signal that came, None if none did."""
        self.is_forced = False
        """A second interrupt came: whoever pressed Ctrl-C twice does not want to wait."""

    @property
    def descriptor(self) -> int:
        """Readable once a signal has come."""
        return self._read_end

    def install(self) -> None:
        """Take over the signals; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers:
            # nohup: whoever started us so does not want it to end anything.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)
        for number in _FORWARDED:
            if number not in self._numbers and signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._note_to_forward)
        early_signals.leave()

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let no signal interrupt a ``with`` block."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextlib.contextmanager
    def raised_at_once(self) -> Iterator[None]:
        """Let a signal interrupt a ``with`` block, also one that has come before."""
        self._depth -= 1
        try:
            self.raise_pending()
            yield
        finally:
            self._depth += 1

    def take_forwarded(self) -> list[signal.Signals]:
        """Return those that the ranks are to get, since the last time."""
        taken, self._to_forward = self._to_forward, []
        return taken

    def raise_pending(self) -> None:
        """Raise the oldest signal that has come and was not raised yet."""
        if self._pending:
            number = self._pending.pop(0)
            raise SignalException(f"the launcher got {number.name}", sigval=number)

    def drain(self) -> None:
        """Make :attr:`descriptor` quiet again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_end, 4096)

    def _note(self, number: int, frame: FrameType | None) -> None:
        came = signal.Signals(number)
        if self.first is not None:
            self.is_forced = self.is_forced or came == self.first == signal.SIGINT
        else:
            self.first = came
            self._pending.append(came)
        self._wake()
        if self._depth == 0:
            self.raise_pending()

    def _note_to_forward(self, number: int, frame: FrameType | None) -> None:
        if number not in self._to_forward:
            self._to_forward.append(signal.Signals(number))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_end, b"!")


def _number(name: str) -> signal.Signals:
    if name in ("SIGKILL", "SIGSTOP"):
        raise ConfigError(f"--signals-to-handle: {name} cannot be handled by any program; leave it out")
    try:
        return signal.Signals[name]
    except KeyError:
        raise ConfigError(f"--signals-to-handle: unknown signal '{name}'; use names such as SIGTERM,SIGUSR1") from None
