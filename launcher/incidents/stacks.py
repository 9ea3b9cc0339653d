"""Where the Python of a stuck process stands, taken from outside, in parallel and within a bound.

``py-spy`` reads another process's memory: it works while the GIL is held in C, and with ``--nonblocking`` on a
process that is stopped. Where it is not installed, or may not look, the rank's own ``faulthandler`` is asked.

Its signal restarts most system calls (SA_RESTART) and Python repeats the rest, but a C library may take the
interruption for an error, and a rank ends with that. So a thread of the rank is asked first, and the signal is for
those alone that are overdue, or will be ended in any case.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from typing import Any

from launcher.incidents.frames import Thread, answers_questions, frame_of, native_frame, of_the_worker, thread_name
from launcher.incidents.py_spy_runs import dumps
from launcher.incidents.stacks_from_inside import from_inside

__all__ = ["parse_stacks", "take_stacks"]

_PART_FROM_INSIDE = 0.1
"""Of the time: what py-spy leaves for the question to those of which it has told nothing."""


def take_stacks(
    pids: Mapping[int, int],
    *,
    py_spy: str | None,
    timeout_seconds: float,
    fallback_files: Mapping[int, str] | None = None,
    fallback_signal: int = 0,
    interruptible: Collection[int] | None = None,
    reasons: dict[int, str] | None = None,
) -> dict[int, tuple[Thread, ...]]:
    """Take the stacks of several processes at once.

    Args:
        pids: Key (say, a local rank) to process.
        py_spy: The program's path, None where it is not installed.
        timeout_seconds: The bound on all of it together.
        fallback_files: Key to the file that the process's own faulthandler writes to, for those that may be asked.
        fallback_signal: The signal that makes it write.
        interruptible: Keys of those that may be asked by the signal; None for all. The others are asked by their
            thread.
        reasons: Gets, for each key without a stack, why there is none.

    Returns:
        Key to threads; a key is missing where nothing could be had.
    """
    end = time.monotonic() + timeout_seconds
    may_ask = bool(fallback_files and fallback_signal)
    why = dict.fromkeys(pids, "it was not asked" if py_spy else "there is no py-spy, and it was not asked")
    found = _from_outside(pids, py_spy, end - may_ask * _PART_FROM_INSIDE * timeout_seconds) if py_spy else {}
    silent = {
        key: (pids[key], file) for key, file in (fallback_files or {}).items() if key in pids and key not in found
    }
    if silent and may_ask and time.monotonic() < end:  # an answer that nobody waits for is no use
        interruptible = silent if interruptible is None else interruptible
        found.update(from_inside(silent, fallback_signal, end, why, interruptible))
    if reasons is not None:
        outside = "py-spy told nothing, and " if py_spy else ""
        reasons.update((key, outside + reason) for key, reason in why.items() if key not in found)
    return found


def _from_outside(pids: Mapping[int, int], py_spy: str, end: float) -> dict[int, tuple[Thread, ...]]:
    found = {}
    for key, dump in dumps(pids, py_spy, [], end).items():
        if dump.exit_code == 0 and (threads := parse_stacks(dump.output)):
            found[key] = threads
    return found


def parse_stacks(raw: bytes) -> tuple[Thread, ...]:
    """Return the threads that py-spy has written as JSON; none where it has not."""
    try:
        return _threads(json.loads(raw.decode("utf-8", errors="replace")))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        return ()


def _threads(document: Any) -> tuple[Thread, ...]:
    found = (
        Thread(
            name=thread_name(thread),
            is_active=bool(thread.get("active")),
            holds_gil=bool(thread.get("owns_gil")),
            frames=of_the_worker(
                native_frame(str(frame.get("name")), str(frame["module"]))
                if frame.get("module")
                else frame_of(str(frame.get("name")), str(frame.get("filename")), int(frame["line"]))
                for frame in thread.get("frames", ())
            ),
        )
        for thread in document
    )
    return tuple(thread for thread in found if not answers_questions(thread.frames))
