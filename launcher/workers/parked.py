"""Control one warm worker from the launcher, from its fork until it has imported torch."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import select
import signal
import socket
from collections.abc import Sequence

import attrs

from launcher.incidents.phrases import exit_phrase
from launcher.processes.evidence import look_at
from launcher.processes.handles import has_exited, open_pidfd, send_signal, wait_for_exit
from launcher.processes.message_format import MessageError
from launcher.processes.proc import process_status
from launcher.zygote.protocol import (
    Forked,
    ImportsDiffer,
    Order,
    Parked,
    Started,
    WorkerOrder,
    order_to_file,
    receive_message,
    send_message,
)

__all__ = ["ParkedWorker", "Stage", "end_process", "is_stopped", "wait_for_any"]

logger = logging.getLogger(__name__)

_LONGEST_KILL_SECONDS = 1.0


class Stage(enum.Enum):
    """How far a warm worker has come, as it says itself."""

    FORKED = enum.auto()
    """Prepares itself."""
    PARKED = enum.auto()
    """Waits for its order."""
    ORDERED = enum.auto()
    """Has been sent its order."""
    STARTED = enum.auto()
    """Is about to run the script's first line."""


@attrs.define(eq=False)
class ParkedWorker:
    """One warm worker. No method blocks.

    Args:
        link: To the worker.
    """

    link: socket.socket
    pid: int = 0
    pidfd: int = -1
    stage: Stage = Stage.FORKED
    is_gone: bool = False
    """It has closed its end: it has ended, or has nothing left to say."""
    was_seen_stopped: bool = False
    imports: list[ImportsDiffer] = attrs.field(factory=list)
    """What it found set when it imported torch, and the zygote had not."""

    def __attrs_post_init__(self) -> None:
        self.link.setblocking(False)

    def receive(self) -> None:
        """Read all messages that have arrived from it."""
        while not self.is_gone:
            try:
                packet = receive_message(self.link)
            except BlockingIOError:
                return
            except MessageError as error:
                logger.warning("what a warm worker says cannot be read, another is used: %s", error)
                packet = None
            if packet is None:
                self.is_gone = True
                return
            message = packet.message
            if isinstance(message, Forked):
                self._was_forked(message.pid)
            elif isinstance(message, Parked):
                self.stage = Stage.PARKED
            elif isinstance(message, Started):
                self.stage = Stage.STARTED
            elif isinstance(message, ImportsDiffer):
                self.imports.append(message)

    def hand_over(self, order: WorkerOrder) -> bool:
        """Send the order.

        Returns:
            Whether it could be sent; the worker may still fail to take it.
        """
        try:
            file = order_to_file(order)
            try:
                send_message(self.link, Order(), [file])
            finally:
                os.close(file)
        except OSError:  # it died in this very moment, or there is no memory or descriptor left for the order
            return False
        self.stage = Stage.ORDERED
        return True

    @property
    def has_exited(self) -> bool:
        """Return whether the process has ended."""
        return self.is_gone if self.pidfd < 0 else has_exited(self.pidfd)

    @property
    def is_stopped(self) -> bool:
        """Return whether it is stopped or traced, and so would not answer."""
        return self.pid > 0 and is_stopped(self.pid)

    @property
    def why_lost(self) -> str | None:
        """What keeps it from ever starting, in words; None while nothing does."""
        if not self.has_exited:
            return "is stopped" if self.is_stopped else None
        look = look_at(self.pid) if self.pid > 0 else None
        return exit_phrase(look.exit_code) if look is not None and look.exit_code is not None else "has ended"

    @property
    def is_runnable(self) -> bool:
        """Return whether it waits for nothing but a processor or a disk."""
        status = process_status(self.pid)
        return status is not None and status.state in "RD"

    def refuse(self) -> bool:
        """Close the receiving end: where the worker would report that it starts, it exits instead.

        Returns:
            Whether that was in time: the worker had not reported before.
        """
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RD)
        self.receive()
        return self.stage is not Stage.STARTED

    def descriptors(self) -> list[int]:
        """Return what becomes readable when a message has arrived, or the process has ended."""
        return [*([] if self.is_gone else [self.link.fileno()]), *([self.pidfd] if self.pidfd >= 0 else [])]

    def let_go(self) -> None:
        """Close the pidfd, since the process is collected elsewhere from now on; only the link stays."""
        os.close(self.pidfd)
        self.pidfd = -1

    def close(self) -> None:
        """Close the link; one that waits for its order ends by that."""
        self.link.close()
        self.is_gone = True

    def discard(self) -> None:
        """End it, if it is known which process it is."""
        self.receive()
        if self.pidfd >= 0:
            end_process(self.pid, self.pidfd)
            self.pidfd = -1
        self.close()

    def _was_forked(self, pid: int) -> None:
        try:
            pidfd = open_pidfd(pid)
        except OSError:  # no more descriptors may be opened here
            pidfd = None
        if pidfd is None:
            self.is_gone = True
            return
        self.pid, self.pidfd = pid, pidfd


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or by a debugger."""
    status = process_status(pid)
    return status is not None and status.is_stopped


def end_process(pid: int, pidfd: int) -> None:
    """Kill a child of ours and collect it; one that is in uninterruptible sleep is left to be collected later."""
    send_signal(pidfd, signal.SIGKILL)
    wait_for_exit([pidfd], _LONGEST_KILL_SECONDS)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    os.close(pidfd)


def wait_for_any(descriptors: Sequence[int], seconds: float) -> None:
    """Wait until one of the descriptors becomes readable, or the time is up."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    poller.poll(max(0, round(seconds * 1000 + 0.5)))
