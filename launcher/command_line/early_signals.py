"""Signals that come while the launcher is still importing: one line, an exit code, no traceback.

Nothing has been made by then that would have to be put away: a zygote follows its launcher to death. Standard
library only, since this is in place before anything else is imported.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from launcher.processes.exit_codes import by_signal
from launcher.records.console import announce, finish

__all__ = ["leave", "watch"]

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_before: dict[int, Any] = {}


def watch() -> None:
    """Have these signals end the process; one that is ignored (nohup) stays so."""
    if threading.current_thread() is threading.main_thread():
        for number in _NUMBERS:
            if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, _end):
                _before[number] = handler
                signal.signal(number, _end)


def leave() -> None:
    """Put back what was there, where nobody else has taken over meanwhile."""
    for number, handler in _before.items():
        if signal.getsignal(number) == _end:
            signal.signal(number, handler)
    _before.clear()


def _end(number: int, frame: FrameType | None) -> None:
    announce(f"ended by {signal.Signals(number).name} before a worker was started")
    finish()
    os._exit(by_signal(number))
