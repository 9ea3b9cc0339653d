"""What launcher, zygote and parked workers say to each other: one JSON document per packet, descriptors beside it.

The sockets are of type ``SOCK_SEQPACKET``: a message is read whole or not at all, so that the launcher, whose ends
never block, needs no buffer for half a message. An order, which holds a whole environment and may be larger than a
socket takes, travels as the descriptor of a file in memory.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import attrs

__all__ = [
    "Handover",
    "Message",
    "WorkerOrder",
    "order_from_file",
    "order_to_file",
    "packet_pair",
    "receive_message",
    "send_message",
]

_LARGEST_PACKET = 1 << 17


class WorkerOrder(NamedTuple):
    """What a parked worker is to become; travels as JSON."""

    argv: tuple[str, ...]
    """``sys.argv``: the script, or the module's name, and its arguments."""
    is_module: bool
    environment: dict[str, str]
    """The whole of it."""
    stdout: str
    stderr: str


@attrs.frozen
class Handover:
    """What a parked worker holds once its order has come.

    Args:
        order: What it is to become.
        link: To the launcher, which waits to hear that the script's first line is reached.
    """

    order: WorkerOrder
    link: socket.socket


class Message(NamedTuple):
    """One packet."""

    document: dict[str, Any]
    descriptors: tuple[int, ...]


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep the bounds of messages."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_message(link: socket.socket, document: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one document.

    Raises:
        OSError: The other end is gone, or (BlockingIOError) a socket that does not block is full.
    """
    socket.send_fds(link, [json.dumps(document).encode("utf-8")], list(descriptors))


def receive_message(link: socket.socket) -> Message | None:
    """Receive one document.

    Returns:
        The message; None when the other end is gone.

    Raises:
        BlockingIOError: Nothing has come, on a socket that does not block.
    """
    try:
        raw, descriptors, _, _ = socket.recv_fds(link, _LARGEST_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    return Message(json.loads(raw), tuple(descriptors)) if raw else None


def order_to_file(order: WorkerOrder) -> int:
    """Write an order to a file in memory.

    Returns:
        Its descriptor, which is the caller's to close.
    """
    descriptor = os.memfd_create("ft_order", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps(order._asdict()).encode("utf-8"))
    return descriptor


def order_from_file(descriptor: int) -> WorkerOrder:
    """Read an order and close its descriptor."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        order = json.load(file)
    return WorkerOrder(**{**order, "argv": tuple(order["argv"])})
