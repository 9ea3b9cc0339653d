"""Keep our messages and the copies of what ranks write (``--tee``) apart where both go to the same file or pipe.

One of them writes at a time, and what was written last is known: where a copy has come in mid-line, a message ends that
line first. Messages go before copies, which may be without end.

The monitor and what serves metrics are processes of their own, which write to the same standard error. A byte in memory
that they share tells them whether a copy has come in mid-line, and a lock on that memory lets one process write at a
time. Nobody waits for that lock for long: who holds it may be stopped. Such a lock ends with its process, and no child
inherits it. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator

from launcher.records.standard_error import is_in_mid_line

__all__ = ["Output", "join", "output_of", "share", "shared_descriptor"]

_LONGEST_WAIT_FOR_OTHERS_SECONDS = 0.5
_PAUSE_SECONDS = 0.002
_outputs: dict[object, Output] = {}
"""By what is written to: one pipe may be both standard output and standard error."""
_shared: list[int] = []


class Output:
    """A file, a pipe or a terminal that several write to."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_taken = False
        self._messages_waiting = 0
        self._state: bytearray | mmap.mmap = bytearray(1)
        self._descriptor = -1

    @property
    def is_in_mid_line(self) -> bool:
        """Whether a copy was written last, and has not ended its line."""
        return bool(self._state[0])

    def attach(self, descriptor: int) -> None:
        """Share what is known with the other processes that have this memory.

        Raises:
            OSError: It cannot be mapped.
        """
        self._state, self._descriptor = mmap.mmap(descriptor, 1), descriptor

    @contextlib.contextmanager
    def copying(self, raw: bytes) -> Iterator[None]:
        """Let the caller write a piece of a copy, alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_taken and not self._messages_waiting)
            self._is_taken = True
        try:
            with self._alone_among_processes():
                self._state[0] = 1  # also where it is broken off
                yield
                self._state[0] = not raw.endswith(b"\n")
        finally:
            self._give_back()

    @contextlib.contextmanager
    def speaking(self, timeout_seconds: float | None) -> Iterator[bytes]:
        """Let the caller write whole lines, alone; after the timeout in any case. Yields what to write in front."""
        with self._changed:
            self._messages_waiting += 1
            is_alone = self._changed.wait_for(lambda: not self._is_taken, timeout_seconds)
            self._messages_waiting -= 1
            self._is_taken = True
        try:
            with self._alone_among_processes() if is_alone else contextlib.nullcontext():
                try:
                    yield b"\n" if self.is_in_mid_line else b""
                except OSError as error:  # the disk is full, or nobody reads
                    self._state[0] = is_in_mid_line(error) or self.is_in_mid_line
                    raise
                self._state[0] = 0
        finally:
            if is_alone:
                self._give_back()

    def _give_back(self) -> None:
        with self._changed:
            self._is_taken = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def _alone_among_processes(self) -> Iterator[None]:
        if self._descriptor < 0:
            yield
            return
        end = time.monotonic() + _LONGEST_WAIT_FOR_OTHERS_SECONDS
        while not (is_held := self._lock()) and time.monotonic() < end:
            time.sleep(_PAUSE_SECONDS)
        try:
            yield
        finally:
            if is_held:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # no more locks are to be had: nobody is to wait for that
            return True
        return True


def output_of(stream: object) -> Output:
    """Return what a stream of Python's writes to."""
    try:
        status = os.fstat(stream.fileno())  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        target: object = (status.st_dev, status.st_ino)
    except (AttributeError, OSError, ValueError):  # no file: a notebook's, or closed
        target = id(stream)
    return _outputs.setdefault(target, Output())


def share() -> None:
    """Share with other processes of ours what is known of standard error; without memory each goes by its own."""
    with contextlib.suppress(OSError):
        descriptor = os.memfd_create("ft_console", os.MFD_CLOEXEC)
        os.posix_fallocate(descriptor, 0, 1)
        join(descriptor)


def join(descriptor: int | None) -> None:
    """Share what the process that has started this one knows; None where it shares nothing."""
    if descriptor is not None:
        output_of(sys.stderr).attach(descriptor)
        _shared[:] = [descriptor]


def shared_descriptor() -> int | None:
    """Return the memory to be handed to a process of ours that is started; None where nothing is shared."""
    return _shared[0] if _shared else None
