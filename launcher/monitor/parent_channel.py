"""The monitor's end of its socket pair: orders with descriptors beside them, reports in the other direction."""

from __future__ import annotations

import array
import collections
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from launcher.monitor.messages import MESSAGE_SIZE, ORDERS, REPORTS, Forget, Look, MonitorOrder, MonitorReport, Proceed
from launcher.processes.message_format import MessageError
from launcher.records.console import announce

__all__ = ["Arrived", "ParentChannel"]

_MOST_UNSENT = 64


class Arrived(NamedTuple):
    """An order, and the descriptors that came with it, which are the receiver's to close."""

    order: MonitorOrder
    descriptors: list[int]


class ParentChannel:
    """Neither reading nor telling waits. Every thread may tell; one reads.

    Args:
        descriptor: The inherited socket.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._arrived: collections.deque[Arrived] = collections.deque()
        """What the parent has said and what is still to be done; a verdict in preparation is not disturbed by it."""
        self._unsent: collections.deque[bytes] = collections.deque(maxlen=_MOST_UNSENT)
        self._sending = threading.Lock()
        self.is_closed = False
        """The parent has closed its end; what it had sent before was read."""

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    # ---- orders -----------------------------------------------------------------------------------------

    def read(self) -> None:
        """Take in what has arrived."""
        while not self.is_closed:
            try:
                raw, descriptors = _receive(self._socket)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it died with reports unread; what it has sent before can still be read
                continue
            if not raw:
                self.is_closed = True
                return
            try:
                self._arrived.append(Arrived(ORDERS.decode(raw), descriptors))
            except MessageError as error:
                announce(f"the monitor could not read an order of the launcher: {error}", event="warning")
                for descriptor in descriptors:
                    os.close(descriptor)

    def take(self) -> Iterator[Arrived]:
        """Yield what has been read and not been taken yet, the oldest first.

        But for looks that are brief: another node waits for the answer, and a full look takes as long as it may wait.
        """
        for brief in [each for each in self._arrived if isinstance(each.order, Look) and each.order.is_brief]:
            self._arrived.remove(brief)
            self._arrived.appendleft(brief)
        while self._arrived:
            yield self._arrived.popleft()

    def is_being_ended(self, generation: int) -> bool:
        """Return whether the parent is ending a generation, which it says before it signals a rank."""
        self.read()
        return any(isinstance(each.order, Forget) and each.order.generation == generation for each in self._arrived)

    def forget_word(self, generation: int) -> None:
        """Drop a word that :meth:`await_word` has not come to: it was about an earlier verdict."""
        stale = [
            each for each in self._arrived if isinstance(each.order, Proceed) and each.order.generation == generation
        ]
        for each in stale:
            self._arrived.remove(each)

    def await_word(
        self, generation: int, end_ns: int, answer: Callable[[Look], bool] = lambda look: False
    ) -> tuple[int, ...]:
        """Wait until the parent says that a generation's late ranks may be signalled, or ends it, or the time is up.

        Args:
            generation: Which.
            end_ns: ``CLOCK_MONOTONIC``.
            answer: Called once with each look at that generation that is asked for; whether nothing is left to be done
                about it. Else it is done afterwards.

        Returns:
            Who came back on other nodes, as it has said: with its word, or until then (:class:`Proceed`).
        """
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        came_back: tuple[int, ...] = ()
        looks: list[Arrived] = []
        while not self.is_closed and not self.is_being_ended(generation):
            left_ns = end_ns - time.monotonic_ns()
            for asked in [each for each in self._arrived if not any(each is known for known in looks)]:
                if isinstance(asked.order, Look) and asked.order.generation == generation:
                    looks.append(asked)
                    came_back = asked.order.came_back or came_back
                    if answer(asked.order):
                        self._arrived.remove(asked)
            for word in [each.order for each in self._arrived if isinstance(each.order, Proceed)]:
                if word.generation == generation:
                    return word.came_back
            if left_ns <= 0:
                break
            poller.poll(left_ns / 1_000_000)
        return came_back

    # ---- reports ----------------------------------------------------------------------------------------

    @property
    def unsent(self) -> int:
        """How many reports wait for room."""
        return len(self._unsent)

    def tell(self, report: MonitorReport) -> None:
        """Send a report, now or in one of the next rules."""
        with self._sending:
            self._unsent.append(REPORTS.encode(report))
            self._send_unsent()

    def send_unsent(self) -> None:
        """Send what the parent has room for; the rest waits for one of the next rules."""
        with self._sending:
            self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent:
            try:
                self._socket.send(self._unsent[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):  # nobody is left to be told
                self._unsent.clear()
                return
            except OSError as error:  # too long for one message; the parent sees the ranks end all the same
                announce(f"the monitor could not report an incident: {error.strerror}", event="warning")
            self._unsent.popleft()


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message and the descriptors that came with it."""
    room = socket.CMSG_SPACE(4 * array.array("i").itemsize)
    raw, ancillary, _, _ = channel.recvmsg(MESSAGE_SIZE, room, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return raw, list(descriptors)
