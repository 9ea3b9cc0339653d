"""What launcher and zygote say to each other: JSON documents, their length first, and descriptors."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["WorkerOrder", "read_at_import", "receive_frame", "send_frame"]

_LENGTH = struct.Struct("=I")

_IMPORT_TIME_PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "MALLOC_", "LD_"),
    *("TORCH", "PYTORCH", "PYTHON"),
)
# Set for workers by every elastic launcher, and read when a process group is made, not at import.
_READ_LATER_PREFIXES = ("TORCHELASTIC_", "TORCH_NCCL_", "PYTHON_EXEC")


class WorkerOrder(NamedTuple):
    """What a parked worker is to become; travels as JSON."""

    argv: tuple[str, ...]
    """``sys.argv``: the script, or the module's name, and its arguments."""
    is_module: bool
    environment: dict[str, str]
    """The whole of it."""
    stdout: str
    stderr: str


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables that libraries read while they are imported, and so must not change afterwards."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_IMPORT_TIME_PREFIXES) and not name.startswith(_READ_LATER_PREFIXES)
    }


def send_frame(link: socket.socket, document: Mapping[str, Any]) -> None:
    """Send one JSON document, its length first."""
    raw = json.dumps(document).encode("utf-8")
    link.sendall(_LENGTH.pack(len(raw)) + raw)


def receive_frame(link: socket.socket) -> Any:
    """Receive one JSON document; None when the other end is gone."""
    header = _receive_exactly(link, _LENGTH.size)
    if header is None:
        return None
    raw = _receive_exactly(link, _LENGTH.unpack(header)[0])
    return None if raw is None else json.loads(raw)


def _receive_exactly(link: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = link.recv(size - len(parts))
        except ConnectionResetError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
