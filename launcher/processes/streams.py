"""Open missing standard descriptors when the launcher starts, and flush its standard streams when it ends."""

from __future__ import annotations

import os
import sys
import threading

from launcher.processes.proc import descriptors

__all__ = ["flush_standard_streams", "open_descriptors", "open_missing_descriptors"]


def open_missing_descriptors() -> None:
    """Open ``/dev/null`` where standard input, output or error is closed.

    Otherwise the next socket or file gets the number, and what a rank prints goes into it.
    """
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        if not _is_open(descriptor):
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdout is None:
        sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc] # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # type: ignore[misc] # noqa: SIM115
    if sys.stdin is None:
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc] # noqa: SIM115


def open_descriptors() -> list[int]:
    """List the descriptors beyond the standard ones."""
    return [
        descriptor for descriptor in descriptors() if descriptor > 2 and _is_open(descriptor)
    ]  # one did the listing


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def flush_standard_streams(timeout_seconds: float) -> None:
    """Flush standard output and error; give up after ``timeout_seconds`` where nobody reads the pipe."""

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):  # replaced, gone, or closed
                pass

    try:
        flusher = threading.Thread(target=flush, daemon=True)
        flusher.start()
    except RuntimeError:  # no more threads can be had
        return
    flusher.join(timeout_seconds)
