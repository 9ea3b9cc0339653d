"""Where processes are in the kernel: their system calls. Evidence for people, where no stack of Python tells more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from launcher.processes.background import Background, NotDoneError
from launcher.processes.proc import system_call_of
from launcher.processes.system_calls import call_name

__all__ = ["SystemCallReader"]

_MOST_WAITING = 2


class SystemCallReader:
    """Reads system calls in a thread, since a process that starts another program can keep its reader waiting."""

    def __init__(self) -> None:
        self._background = Background("ft_calls", _MOST_WAITING)

    def calls(self, pids: Iterable[int], timeout_seconds: float) -> dict[int, str]:
        """Return the names of the system calls in which the main threads of processes sleep.

        Args:
            pids: Whose; those first that matter most.
            timeout_seconds: For all of them together.

        Returns:
            By process. One is missing that is in none, that may not be looked at, or that does not answer in time.
        """
        found: dict[int, str] = {}
        asked = tuple(pids)

        def read() -> None:
            for pid in asked:
                if (number := system_call_of(pid)) is not None:
                    found[pid] = call_name(number)

        self._background.start()
        if self._background.is_started:  # otherwise the call would be made here, without a bound
            with contextlib.suppress(NotDoneError):
                self._background.call(read, timeout_seconds)
        return dict(found)
