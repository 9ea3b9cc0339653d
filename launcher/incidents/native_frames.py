"""Frames of C and C++ beside those of Python, for people. Decides nothing.

``py-spy dump --native`` tells them. It reads the symbols of every library on the stack, which takes far longer than
to read Python's frames (``python -m benchmarks.gpu.evidence`` tells how long an incident takes with them). So it is a
second pass, after who is to blame is known, over the few ranks that an incident is about, within what other evidence
has left of its time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from launcher.incidents.frames import Thread
from launcher.incidents.py_spy_runs import Dump, dumps
from launcher.incidents.stacks import parse_stacks

__all__ = ["LEAST_SECONDS", "native_stacks"]

LEAST_SECONDS = 1.0
"""With less time left it would delay the signal and most likely come to nothing."""
_NO_OPTION = 2
"""What py-spy exits with where its build for this machine has no ``--native``."""


def native_stacks(
    pids: Mapping[int, int], py_spy: str, end: float, reasons: dict[int, str]
) -> dict[int, tuple[Thread, ...]]:
    """Take the stacks of a few processes, frames of C and C++ included.

    Args:
        pids: Key (say, a local rank) to process.
        py_spy: The program's path.
        end: When to stop, on ``time.monotonic()``.
        reasons: Gets, for each key without a stack, why there is none.

    Returns:
        Key to threads.
    """
    left = end - time.monotonic()
    if left < LEAST_SECONDS:
        why = (
            f"not taken: {os.path.basename(py_spy)} --native takes a second and more, and --ft-stack-capture-timeout "
            f"left {max(0.0, left):.1f} s for it; with 5 s it would be tried"
        )
        reasons.update(dict.fromkeys(pids, why))
        return {}
    found = {}
    for key, dump in dumps(pids, py_spy, ["--native"], end).items():
        if dump.exit_code == 0 and (threads := parse_stacks(dump.output)):
            found[key] = threads
        else:
            reasons[key] = _why_none(dump)
    reasons.update((key, "py-spy could not be started") for key in pids if key not in found and key not in reasons)
    return found


def _why_none(dump: Dump) -> str:
    if dump.exit_code is None:
        return "py-spy --native did not end in time; with a longer --ft-stack-capture-timeout it may"
    if dump.exit_code == _NO_OPTION:
        return f"this build of py-spy cannot tell them ({dump.complaint})"
    return f"py-spy --native failed ({dump.complaint or f'exit code {dump.exit_code}'})"
