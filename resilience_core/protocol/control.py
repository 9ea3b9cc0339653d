"""WorkloadControlRequest: what a rank asks of its launcher.

One JSON datagram to a unix socket that the launcher owns: it arrives whole or not at all, needs no connection
that could break within a message, and nothing in it can be executed.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import reprlib
import socket
from typing import Any

from resilience_core.errors import RankMonitorClientError, ResilienceError
from resilience_core.suggestions import nearest

__all__ = ["MAX_BYTES", "ControlMessageError", "WorkloadAction", "WorkloadControlRequest", "receive", "send"]

VERSION = 1
"""Of a datagram; raised with every change of its keys."""
MAX_BYTES = 4096
"""The longest datagram; a receiver should offer one byte more and refuse what fills it."""

_CUT = " ... (shortened)"


class ControlMessageError(ResilienceError, ValueError):
    """What arrived at the control socket is not a request of a rank."""


class WorkloadAction(enum.Enum):
    """What a rank asks of its launcher."""

    Continue = "Continue"
    """Do nothing; the request is logged."""
    ExcludeThisNode = "ExcludeThisNode"
    """This node should leave the job; on one node that ends it."""
    ShutdownWorkload = "ShutdownWorkload"
    """The whole job should end, without a restart."""


def _action(value: WorkloadAction | str) -> WorkloadAction:
    if isinstance(value, WorkloadAction):
        return value
    known = [action.value for action in WorkloadAction]
    if isinstance(value, str) and value in known:
        return WorkloadAction(value)
    raise ControlMessageError(f"action is {value!r}, not a WorkloadAction{nearest(str(value), known)}")


def _description(value: str) -> str:
    if not isinstance(value, str):
        raise ControlMessageError(f"description is {value!r}; give a sentence, as text")
    return value


@dataclasses.dataclass(frozen=True, init=False)
class WorkloadControlRequest:
    """One request.

    Args:
        action: What is asked, a :class:`WorkloadAction` or its name.
        description: Why, one sentence for people; the launcher logs it.

    Raises:
        ControlMessageError: The action is not known, or the description is not text.
    """

    action: WorkloadAction
    description: str

    def __init__(self, action: WorkloadAction | str, description: str = "") -> None:
        object.__setattr__(self, "action", _action(action))  # frozen, and the standard library has no converters
        object.__setattr__(self, "description", _description(description))

    def to_json(self) -> str:
        """Return the request as one JSON object."""
        return json.dumps({"action": self.action.value, "description": self.description})

    @classmethod
    def from_json(cls, text: str) -> WorkloadControlRequest:
        """Read what :meth:`to_json` wrote.

        Raises:
            ControlMessageError: The text is not that.
        """
        return cls._from_plain(_object(text, "a control request", {"action", "description"}))

    @classmethod
    def _from_plain(cls, plain: dict[str, Any]) -> WorkloadControlRequest:
        return cls(plain["action"], plain["description"])


def send(request: WorkloadControlRequest, path: str, rank: int, *, timeout_seconds: float = 1.0) -> None:
    """Send one request to the launcher that listens at ``path``.

    A description that does not fit into one datagram is shortened, and says so: a long reason must not
    make the request fail.

    Args:
        request: What is asked.
        path: The launcher's socket, ``FT_CONTROL_SOCKET``.
        rank: Who asks.
        timeout_seconds: How long to wait for a launcher whose queue is full.

    Raises:
        RankMonitorClientError: Nobody listens there, or not in time.
        ControlMessageError: That is no request.
    """
    if not isinstance(request, WorkloadControlRequest):
        raise ControlMessageError(
            f"a workload control request is a WorkloadControlRequest, not {reprlib.repr(request)} "
            f"({type(request).__name__}); pass WorkloadControlRequest('ShutdownWorkload', 'why'), for example"
        )
    datagram = _datagram(request, rank)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.settimeout(timeout_seconds)
            client.connect(os.fspath(path))
            client.sendall(datagram)
    except TimeoutError:
        raise RankMonitorClientError(
            f"workload control request {request.action.value} was not taken within {timeout_seconds:g} s: "
            f"the launcher at {path} is stopped or overloaded"
        ) from None
    except OSError as error:
        raise RankMonitorClientError(
            f"workload control request {request.action.value} cannot be sent: no launcher listens at {path} "
            f"({error.strerror or error})"
        ) from error


def receive(datagram: bytes) -> tuple[int, WorkloadControlRequest]:
    """Read one datagram, at the launcher's end.

    Returns:
        The rank that asks, and its request.

    Raises:
        ControlMessageError: It is not a request; a launcher logs that and goes on.
    """
    if len(datagram) > MAX_BYTES:
        raise ControlMessageError(f"a control message is at most {MAX_BYTES} bytes, not {len(datagram)}")
    try:
        text = datagram.decode("ascii")
    except UnicodeDecodeError as error:
        raise ControlMessageError(f"a control message is ASCII JSON, not {datagram[:32]!r}") from error
    plain = _object(text, "a control message", {"version", "rank", "action", "description"}, version=VERSION)
    rank = plain["rank"]
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        raise ControlMessageError(f"rank is {rank!r} in a control message; expected a whole number from 0")
    return rank, WorkloadControlRequest._from_plain(plain)


def _datagram(request: WorkloadControlRequest, rank: int) -> bytes:
    description = request.description
    while True:
        plain = {"version": VERSION, "rank": rank, "action": request.action.value, "description": description}
        datagram = json.dumps(plain).encode("ascii")
        too_long = len(datagram) - MAX_BYTES
        if too_long <= 0:
            return datagram
        # One character may take up to 12 bytes of JSON, so this never cuts more than it must by far.
        keep = len(description.removesuffix(_CUT)) - max(1, too_long // 12) - len(_CUT)
        description = description[:keep] + _CUT


def _object(text: str, what: str, keys: set[str], version: int | None = None) -> dict[str, Any]:
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ControlMessageError(f"{what} is JSON, not {text[:60]!r}") from error
    if isinstance(plain, dict) and plain.get("version", version) != version:
        raise ControlMessageError(
            f"{what} has version {reprlib.repr(plain['version'])}, and version {version} is read here: "
            "rank and launcher run different installations; start the job again"
        )
    if not isinstance(plain, dict) or plain.keys() != keys:
        raise ControlMessageError(f"{what} has exactly {', '.join(sorted(keys))}, unlike {text[:60]!r}")
    return plain
