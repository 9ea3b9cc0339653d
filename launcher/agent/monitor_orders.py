"""The orders of one monitor: what it was told, which a successor has to be told, too."""

from __future__ import annotations

import array
import logging
import os
import socket
from typing import NamedTuple

from launcher.monitor.messages import MESSAGE_SIZE, ORDERS, Forget, MonitorOrder, RunFolders, Watch, WatchOrder
from launcher.processes.handles import open_pidfd
from resilience_core.protocol.cell import Cell

__all__ = ["OrderBook"]

logger = logging.getLogger(__name__)


class _Standing(NamedTuple):
    """Whom to watch, and the descriptor of its cell, which is ours to close."""

    order: WatchOrder
    cell: int
    is_session_leader: bool


class OrderBook:
    """Not safe to be used by two threads at once; the caller holds a lock.

    Args:
        channel: To the monitor; does not block.
        run_folders: What it is started with.
    """

    def __init__(self, channel: socket.socket, run_folders: RunFolders) -> None:
        self._channel = channel
        self.run_folders = run_folders
        self._standing: dict[tuple[int, int], _Standing] = {}
        self.must_send_anew = False
        """An order could not be sent; the monitor has to be told everything once more."""

    def add(self, order: WatchOrder, cell: Cell, *, is_session_leader: bool) -> None:
        """Have a rank watched from now on; see :meth:`MonitorHandle.watch`."""
        key = (order.generation, order.local_rank)
        self._drop(key)
        self._standing[key] = _Standing(order, os.dup(cell.descriptor), is_session_leader)
        self._send_watch(self._standing[key])

    def forget(self, generation: int, *, is_over: bool) -> None:
        """Have the ranks of a generation watched no longer; see :meth:`MonitorHandle.forget`."""
        for key in [key for key in self._standing if key[0] == generation]:
            self._drop(key)
        self.send(Forget(generation, is_over))

    def send_all(self) -> None:
        """Send what a new monitor has to know."""
        self.must_send_anew = False
        self.send(self.run_folders)
        for order in self._standing.values():
            self._send_watch(order)

    def close(self) -> None:
        """Close the descriptors of the cells."""
        for key in list(self._standing):
            self._drop(key)

    def _drop(self, key: tuple[int, int]) -> None:
        order = self._standing.pop(key, None)
        if order is not None:
            os.close(order.cell)

    def _send_watch(self, order: _Standing) -> None:
        message = Watch(order.order, order.is_session_leader)
        if not order.order.pid:
            self.send(message, order.cell)
            return
        try:
            pidfd = open_pidfd(order.order.pid)
        except OSError as error:  # no descriptor is left; another time
            self.must_send_anew = True
            logger.warning("rank %s is not watched yet: %s", order.order.rank, error)
            return
        if pidfd is None:
            return
        try:
            self.send(message, order.cell, pidfd)
        finally:
            os.close(pidfd)

    def send(self, message: MonitorOrder, *descriptors: int) -> None:
        """Send one order, with descriptors beside it; where there is no room, everything is sent anew later."""
        raw = ORDERS.encode(message)
        assert len(raw) < MESSAGE_SIZE
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
        try:
            self._channel.sendmsg([raw], ancillary if descriptors else [])
        except OSError as error:
            # A monitor that has not read for long, or was not there, leaves its socket full; the keeper tells it, or
            # its successor, everything anew.
            self.must_send_anew = True
            logger.debug("an order could not be sent to the monitor: %s", error)
