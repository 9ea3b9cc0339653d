"""The last message of a node: its launcher is dead, and none of its ranks lives.

The launcher writes it beforehand into the run folder. Should the launcher be killed, the monitor ends the ranks, and
once they are gone it sends the message, so that nobody has to wait until the node's lease has run out.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["FAREWELL_FILE", "DamagedError", "Farewell", "LastMessage", "read_farewell"]

FAREWELL_FILE = "farewell"
_VERSION = 1
_LARGEST_BYTES = 1 << 20
_MOST_AT_ONCE = 16


class DamagedError(ValueError):
    """A file is there, but does not hold what was written."""


class LastMessage(NamedTuple):
    """What to send, and to whom."""

    addresses: tuple[tuple[str, int], ...]
    run_id: str
    secret: bytes
    node_id: str
    payload: bytes

    def send(self, timeout_seconds: float) -> int:
        """Send it to each address, to several at a time, as far as that can be done.

        Args:
            timeout_seconds: For all of them together.

        Returns:
            How many have confirmed it.
        """
        from launcher.nodes.one_shot import send_once

        end = time.monotonic() + timeout_seconds
        waiting, confirmed = list(self.addresses), list[tuple[str, int]]()

        def send() -> None:
            while (left := end - time.monotonic()) > 0:
                try:
                    address = waiting.pop(0)
                except IndexError:
                    return
                # Whatever is wrong with one address, the others are to be tried.
                with contextlib.suppress(OSError, ValueError):
                    if send_once(address, self.run_id, self.secret, self.node_id, self.payload, left):
                        confirmed.append(address)

        threads = []
        for _ in range(min(_MOST_AT_ONCE, len(waiting))):
            thread = threading.Thread(target=send, name="ft_farewell", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads can be had
                break
            threads.append(thread)
        if not threads:
            send()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return len(confirmed)


class Farewell:
    """The launcher's end.

    Args:
        folder: Returns the run folder (0700) as of now: it may move.
    """

    def __init__(self, folder: Callable[[], str]) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def write(
        self, addresses: Sequence[tuple[str, int]], run_id: str, secret: bytes, node_id: str, payload: bytes
    ) -> bool:
        """Set what the monitor sends should this process be killed; a reader finds the former one or this one.

        Nothing is written where the file holds it already, so it may be called again and again, in case somebody has
        removed the file. Any thread may call it.

        Args:
            addresses: Of other nodes.
            run_id: As for :func:`launcher.nodes.one_shot.send_once`, like the rest.
            secret: Likewise.
            node_id: Likewise.
            payload: Likewise.

        Returns:
            Whether the file holds it. It need not: the others then wait for the lease.
        """
        fields = {
            "version": _VERSION,
            "addresses": [list(address) for address in addresses],
            "run_id": run_id,
            "secret": secret.hex(),
            "node_id": node_id,
            "payload": payload.hex(),
        }
        text = json.dumps(fields).encode()
        raw = b"%08x %s" % (zlib.crc32(text), text)
        if len(raw) > _LARGEST_BYTES:
            return False
        with self._lock, contextlib.suppress(OSError):
            path = os.path.join(self._folder(), FAREWELL_FILE)
            if _read(path) != raw:
                _replace(path, raw)
            return True
        return False

    def remove(self) -> None:
        """Have the monitor send nothing."""
        with self._lock, contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder(), FAREWELL_FILE))


def read_farewell(folder: str) -> LastMessage | None:
    """Read what a launcher has left.

    Args:
        folder: A run folder of its.

    Returns:
        None where there is no file.

    Raises:
        DamagedError: It is not what :meth:`Farewell.write` has written.
    """
    path = os.path.join(folder, FAREWELL_FILE)
    try:
        raw = _read(path)
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from error
    if raw is None:
        return None
    check, _, text = raw.partition(b" ")
    if check != b"%08x" % zlib.crc32(text):
        raise DamagedError(f"{path} is damaged")
    try:
        fields = json.loads(text)
        if fields.pop("version") != _VERSION:
            raise DamagedError(f"{path} is of another version")
        return LastMessage(
            tuple((str(host), int(port)) for host, port in fields["addresses"]),
            str(fields["run_id"]),
            bytes.fromhex(fields["secret"]),
            str(fields["node_id"]),
            bytes.fromhex(fields["payload"]),
        )
    except DamagedError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


def _read(path: str) -> bytes | None:
    """Read a plain file of a moderate size; None where there is none.

    Raises:
        OSError: It is something else, or cannot be read.
    """
    try:
        # O_NONBLOCK: somebody may have put a pipe there.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a plain file")
        return file.read(_LARGEST_BYTES + 1)


def _replace(path: str, raw: bytes) -> None:
    new = os.path.join(os.path.dirname(path), f".{FAREWELL_FILE}-{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(raw)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
