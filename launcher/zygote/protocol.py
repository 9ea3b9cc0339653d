"""Define what launcher, zygote and parked workers tell each other: one message per packet, descriptors beside it.

The sockets are of type ``SOCK_SEQPACKET``: a message is read whole or not at all, so that the launcher, whose ends
never block, needs no buffer for half a message. An order, which holds a whole environment and may be larger than a
socket takes, travels as the descriptor of a file in memory.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple, Union

import attrs

from launcher.processes.message_format import MessageFormat

__all__ = [
    "MESSAGES",
    "ORDERS",
    "SETTINGS",
    "Forked",
    "Handover",
    "ImportsDiffer",
    "Order",
    "Packet",
    "Park",
    "Parked",
    "Refused",
    "Started",
    "WorkerOrder",
    "ZygoteMessage",
    "ZygoteReport",
    "ZygoteSettings",
    "order_from_file",
    "order_to_file",
    "packet_pair",
    "receive_message",
    "send_message",
]

_LARGEST_PACKET = 1 << 17
_VERSION = 3


class ZygoteSettings(NamedTuple):
    """What a zygote that is started as a new interpreter gets as its argument."""

    channel: int
    """The zygote's end of the socket pair, inherited."""
    launcher: int
    """The pid of the process that becomes the parent of its workers."""
    preload: tuple[str, ...]
    """Modules to import first."""
    console: tuple[int, str, bool]
    """:class:`launcher.records.console.State`, for what it has to say."""


class WorkerOrder(NamedTuple):
    """What a parked worker is to become; travels in a file in memory."""

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


# ---- from the launcher ----------------------------------------------------------------------------------


class Park(NamedTuple):
    """Fork parked workers; to the zygote."""

    workers: int


class Order(NamedTuple):
    """Become a worker; to a parked worker. The file of its :class:`WorkerOrder` travels beside the message."""


# ---- from the zygote ------------------------------------------------------------------------------------


class ZygoteReport(NamedTuple):
    """How preloading went; the first message of a zygote."""

    unsafe: str | None
    """Why it must not be forked; None when it may be."""
    left_out: dict[str, str]
    """Modules that must not be preloaded, and why."""
    reads: tuple[str, ...]
    """Variables that the imports looked up."""
    import_time: dict[str, str]
    """Variables that are read at import, with the values that were found."""


class Parked(NamedTuple):
    """From the zygote: a worker was forked, whose socket travels beside the message. From that worker: it waits."""


class Refused(NamedTuple):
    """No worker could be forked."""

    why: str


# ---- from a worker --------------------------------------------------------------------------------------


class Forked(NamedTuple):
    """The first message on a worker's socket, from the process between zygote and worker."""

    pid: int


class Started(NamedTuple):
    """The script's first line is reached."""


class ImportsDiffer(NamedTuple):
    """The script has imported torch after it had set variables that count then."""

    differences: dict[str, str | None]
    """By name; None for a variable that is gone."""
    applied: tuple[str, ...]
    """Those that the worker could still apply."""


ZygoteMessage = Union[Park, Order, ZygoteReport, Parked, Refused, Forked, Started, ImportsDiffer]  # noqa: UP007

MESSAGES: MessageFormat[ZygoteMessage] = MessageFormat(
    _VERSION, (Park, Order, ZygoteReport, Parked, Refused, Forked, Started, ImportsDiffer)
)
"""What travels on the sockets."""
ORDERS: MessageFormat[WorkerOrder] = MessageFormat(_VERSION, (WorkerOrder,))
"""What travels in the files that are sent beside :class:`Order`."""
SETTINGS: MessageFormat[ZygoteSettings] = MessageFormat(_VERSION, (ZygoteSettings,))
"""What travels as an argument of a command line."""


class Packet(NamedTuple):
    """One message and the descriptors that came with it, which are the receiver's to close."""

    message: ZygoteMessage
    descriptors: tuple[int, ...]


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Make two connected sockets that keep the bounds of messages."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_message(link: socket.socket, message: ZygoteMessage, descriptors: Sequence[int] = ()) -> None:
    """Send one message.

    Raises:
        OSError: The other end is gone, or (BlockingIOError) a socket that does not block is full.
    """
    socket.send_fds(link, [MESSAGES.encode(message)], list(descriptors))


def receive_message(link: socket.socket) -> Packet | None:
    """Receive one message.

    Returns:
        The message; None when the other end is gone.

    Raises:
        BlockingIOError: Nothing has come, on a socket that does not block.
        MessageError: It is no message, or of another version.
    """
    try:
        raw, descriptors, _, _ = socket.recv_fds(link, _LARGEST_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    return Packet(MESSAGES.decode(raw), tuple(descriptors)) if raw else None


def order_to_file(order: WorkerOrder) -> int:
    """Write an order to a file in memory.

    Returns:
        Its descriptor, which is the caller's to close.
    """
    descriptor = os.memfd_create("ft_order", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(ORDERS.encode(order))
    return descriptor


def order_from_file(descriptor: int) -> WorkerOrder:
    """Read an order and close its descriptor.

    Raises:
        MessageError: It is no order, or of another version.
    """
    with open(descriptor, "rb", buffering=0) as file:
        file.seek(0)
        return ORDERS.decode(file.read())
