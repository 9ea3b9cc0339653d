"""Signals that come while the launcher is still importing: one line, an exit code, no traceback.

By then nothing exists that needs clean-up: a zygote is killed when its launcher dies. This module is imported before
torch, and imports nothing that takes long.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from launcher.processes.exit_codes import by_signal
from launcher.records.console import CRITICAL, announce, finish

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
    """Restore the former handlers, except where another one was installed meanwhile."""
    for number, handler in _before.items():
        if signal.getsignal(number) == _end:
            signal.signal(number, handler)
    _before.clear()


def _end(number: int, frame: FrameType | None) -> None:
    code = by_signal(number)
    said = f"ended by {signal.Signals(number).name} before a worker was started; exit code {code}"
    announce(said, level=CRITICAL, event="ended")
    finish()
    os._exit(code)
