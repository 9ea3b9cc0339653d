"""The socket at which the launcher takes workload control requests: datagrams, in the run folder."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import struct
import time

from launcher.records.log_folders import FolderError
from launcher.records.private_folders import clear
from resilience_core.protocol.control import MAX_BYTES, ControlMessageError, WorkloadControlRequest, receive

__all__ = ["ControlSocket"]

logger = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred of unix(7)
_MOST_AT_ONCE = 64
"""A sender that never pauses must not block the launcher's other work; the rest is read at the next turn."""
_MOST_COMPLAINTS = 5
_COMPLAINTS_SECONDS = 60.0


class ControlSocket:
    """A socket in the run folder, which no other user may enter; requests of other users are dropped nevertheless.

    Raises:
        FolderError: It cannot listen there.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket, self._inode = _bound(path)
        self._left: list[tuple[int, WorkloadControlRequest]] = []
        self._complaints = 0
        self._complaints_end = 0.0

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def read(self) -> list[tuple[int, WorkloadControlRequest]]:
        """Return the requests that have come, each with the rank that sent it; never wait, and leave some for later."""
        requests, self._left = self._left, []
        for _ in range(_MOST_AT_ONCE):
            try:
                raw, ancillary, _, _ = self._socket.recvmsg(MAX_BYTES + 1, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                break
            uid = next((_CREDENTIALS.unpack(data)[1] for _, _, data in ancillary), None)
            if uid not in (0, os.getuid()):
                self._complain(f"a control request from uid {uid} was dropped")
                continue
            try:
                requests.append(receive(raw))
            except ControlMessageError as error:
                self._complain(f"a control request was dropped: {error}")
        return requests

    @property
    def is_in_place(self) -> bool:
        """Return whether what is at the path is this socket: nobody has removed it, or put something else there."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return False
        return stat.S_ISSOCK(status.st_mode) and status.st_ino == self._inode

    def move(self, path: str) -> None:
        """Listen at another path, or again at the same one; whatever is there is removed.

        Raises:
            FolderError: It cannot listen there; it goes on as it was.
        """
        try:
            clear(path)
        except OSError as error:
            raise FolderError(f"cannot listen at {path}: {error.strerror}") from error
        new, inode = _bound(path)
        self._left = self.read()
        self._socket.close()
        self._socket, self._inode, self.path = new, inode, path

    def close(self) -> None:
        """Close and remove."""
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _complain(self, text: str) -> None:
        """Log the first complaints of each minute, and later the number of the others."""
        now = time.monotonic()
        if now >= self._complaints_end:
            if self._complaints > _MOST_COMPLAINTS:
                logger.warning("%d more control requests were dropped", self._complaints - _MOST_COMPLAINTS)
            self._complaints, self._complaints_end = 0, now + _COMPLAINTS_SECONDS
        self._complaints += 1
        if self._complaints <= _MOST_COMPLAINTS:
            last = "; more of them are only counted for a minute" if self._complaints == _MOST_COMPLAINTS else ""
            logger.warning("%s%s", text, last)


def _bound(path: str) -> tuple[socket.socket, int]:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    bound.setblocking(False)
    try:
        bound.bind(path)
        inode = os.lstat(path).st_ino
    except OSError as error:  # a path beyond 107 bytes has no strerror
        bound.close()
        raise FolderError(
            f"cannot listen at {path}: {error.strerror or error}; name another, shorter folder in memory with "
            "--ft-run-dir"
        ) from error
    return bound, inode
