"""One object owns the launcher's signals: handlers only note, and the main thread decides when to look."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException

from resilience_core.errors import ConfigError

__all__ = ["SignalInbox"]


class SignalInbox:
    """Signals that ask the launcher to end the job.

    While :meth:`deferred`, a signal is noted and makes :attr:`descriptor` readable; the supervision loop takes it
    with :meth:`raise_pending`. Otherwise, inside torch's own waits (rendezvous, exit barrier), it is raised at
    once as torch's ``SignalException``, which is what torch's agent expects there.
    """

    def __init__(self, names: str) -> None:
        self._numbers = [_number(name.strip()) for name in names.split(",") if name.strip()]
        self._pending: list[signal.Signals] = []
        self._depth = 0
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.first: signal.Signals | None = None
        """The first signal that came, None if none did."""
        self.is_insisted = False
        """A second interrupt came: whoever pressed Ctrl-C twice does not want to wait."""

    @property
    def descriptor(self) -> int:
        """Readable once a signal has come."""
        return self._read_end

    def install(self) -> None:
        """Take over the signals; only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                signal.signal(number, self._note)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let no signal interrupt a ``with`` block."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

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
            self.is_insisted = self.is_insisted or came == self.first == signal.SIGINT
        else:
            self.first = came
            self._pending.append(came)
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_end, b"!")
        if self._depth == 0:
            self.raise_pending()


def _number(name: str) -> signal.Signals:
    try:
        return signal.Signals[name]
    except KeyError:
        raise ConfigError(f"--signals-to-handle: unknown signal '{name}'; use names such as SIGTERM,SIGUSR1") from None
