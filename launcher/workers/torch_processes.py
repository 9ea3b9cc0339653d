"""torch's ``PContext`` without the signal handlers that its ``start`` installs; the same for every version of torch.

How torch follows the lines of ``--tee`` differs between its versions, and only its public ``start`` begins it.
``start`` also replaces the process's signal handlers, which are the launcher's. A signal that comes meanwhile must
neither be lost nor raise in the middle of a start.
"""

from __future__ import annotations

import abc
import json
import os
import signal
from typing import Any

from torch.distributed.elastic.multiprocessing import PContext

from resilience_core.system.plain_files import only_plain

__all__ = ["QuietContext", "check_error_file"]

_taken: list[signal.Signals] = []
"""Those that torch takes, as its first start in this process has shown: to ask about each costs milliseconds."""
_LONGEST_ERROR_FILE_BYTES = 16 << 20


class QuietContext(PContext):
    """A ``PContext`` that leaves the process's signals as they are."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._handlers: dict[signal.Signals, Any] | None = None
        self._mask: set[Any] = set()

    @abc.abstractmethod
    def _start_workers(self) -> None:
        """Start the processes."""

    def start(self) -> None:
        """Start the processes, and what follows their log files."""
        # Held back until our handlers are in place again, a signal is then noted by those. Torch knows them by name.
        numbers = _taken or list(signal.Signals)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        self._handlers = {number: signal.getsignal(number) for number in numbers}
        try:
            super().start()
        finally:
            self._give_signals_back()

    def _start(self) -> None:
        self._give_signals_back()  # torch has taken them by now, and a worker would inherit what is blocked
        self._start_workers()

    def _give_signals_back(self) -> None:
        if self._handlers is None:
            return
        changed = [number for number, handler in self._handlers.items() if signal.getsignal(number) is not handler]
        for number in changed:
            if (handler := self._handlers[number]) is not None:
                signal.signal(number, handler)
        if not _taken:
            _taken.extend(changed)
        self._handlers = None
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def check_error_file(path: str) -> None:
    """Check what a worker left, before torch reads it: ``ProcessFailure`` raises for whatever it does not expect.

    Before it raises, it logs a traceback, for which torch imports its compiler: seconds, in the middle of a restart.

    Args:
        path: A file, or a name that nobody has written to; empty for none.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not what torch's ``@record`` writes: cut short, of another program, longer than 16 MiB.
    """
    if not os.path.isfile(path):
        return
    with open(path, "rb", opener=only_plain) as file:
        data = file.read(_LONGEST_ERROR_FILE_BYTES + 1)
    try:
        if len(data) > _LONGEST_ERROR_FILE_BYTES:
            raise ValueError("longer than 16 MiB")
        document = json.loads(data)
        message = document["message"]
        if isinstance(message, str):
            int(document.get("timestamp", 0))
        else:
            int(message["extraInfo"]["timestamp"])
            if not isinstance(message["extraInfo"].get("py_callstack", message.get("message")), str):
                raise ValueError("a traceback that is not text")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not what torch's @record writes ({error}); it is left as it is") from error
