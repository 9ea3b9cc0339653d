"""The launcher's ear for workload control requests: a datagram socket in the run folder."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct

from launcher.folders import FolderError
from resilience_core.control import MAX_BYTES, ControlMessageError, WorkloadControlRequest, receive

__all__ = ["ControlSocket"]

logger = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred of unix(7)


class ControlSocket:
    """Bound in the run folder, which nobody else may enter; what comes from another user is dropped all the same."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)
        try:
            self._socket.bind(path)
        except OSError as error:  # a path beyond 107 bytes has no strerror
            self._socket.close()
            raise FolderError(
                f"cannot listen at {path}: {error.strerror or error}; name another, shorter folder in memory "
                "with --ft-run-dir"
            ) from error

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def read(self) -> list[tuple[int, WorkloadControlRequest]]:
        """Every request that has come, with the rank that sent it; never waits."""
        requests: list[tuple[int, WorkloadControlRequest]] = []
        while True:
            try:
                raw, ancillary, _, _ = self._socket.recvmsg(MAX_BYTES + 1, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return requests
            uid = next((_CREDENTIALS.unpack(data)[1] for _, _, data in ancillary), None)
            if uid not in (0, os.getuid()):
                logger.warning("a control request from uid %s was dropped", uid)
                continue
            try:
                requests.append(receive(raw))
            except ControlMessageError as error:
                logger.warning("a control request was dropped: %s", error)

    def close(self) -> None:
        """Close and remove."""
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
