"""The server through which the ranks of one generation meet: a new one each time, on a free port or on a fixed one.

A restarted generation must never read its dead predecessor's addresses, and MASTER_PORT must be the port that the
user named where one was named. Sketched, tried, and the last one chosen:

* *One server for the whole job, its keys prefixed by generation.* The ranks' keys are written by torch inside the
  ranks. Older versions prefix them with TORCHELASTIC_RESTART_COUNT, newer ones do not and expect a new server for
  each generation, and a store that the training script opens on MASTER_PORT is prefixed by none of them.
* *Close the server, then bind its port again.* That needs every reference to the old one gone (torch's agent keeps
  two of what a rendezvous returns until the next one has returned), and a moment in which anybody may take the port.
* *A listening socket that is bound once and kept until the job ends.* Each generation's server is new and accepts
  from a duplicate of that socket; whoever connects between two servers waits in its queue. No port is needed twice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import socket
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from resilience_core.errors import ResilienceError

__all__ = ["RendezvousRefusedError", "StoreHost"]

_QUEUE = 2048  # as torch listens
_USUAL_SECONDS = 0.1
_LONGEST_LOOK_UP_SECONDS = 10.0
_LONGEST_END_SECONDS = 1.0


class RendezvousRefusedError(ResilienceError):
    """The place where ranks are to meet cannot be had; the message says why and names the option."""


class StoreHost:
    """Hosts one store at a time; nobody else may keep a reference to it, or it would outlive its generation.

    Args:
        port: The port of every generation's store, or 0 for a free one each time.
        timeout: How long a rank waits for another in the store.

    Raises:
        RendezvousRefusedError: The port cannot be had.
    """

    def __init__(self, port: int, timeout: timedelta) -> None:
        self._timeout = timeout
        self._store: TCPStore | None = None
        self._spares: queue.SimpleQueue[TCPStore | None] = queue.SimpleQueue()
        """Opened ahead; None where that was refused."""
        self._making: list[threading.Thread] = []
        self._listener = _listen(port) if port else None
        self._uses_libuv = True

    def prepare(self) -> None:
        """Open the next store ahead, without waiting for it; one on a fixed port has to wait for the last.

        It takes a millisecond, but torch looks up names while it does, and a name server that does not answer holds
        that up for seconds, in which the launcher would see no failure.
        """
        self._making = [each for each in self._making if each.is_alive()]
        if self._listener is None and self._spares.empty() and not self._making:
            self._make_spare()

    def renew(self) -> int:
        """Close the store of the last generation, open an empty one, and return its port."""
        if self._listener is None:
            self._store = self._take_spare() or self._on_a_free_port()
        else:
            self._store = None
            _turn_away(self._listener)
            self._store = self._serve(self._listener)
        return int(self._store.port)

    def close(self) -> None:
        """Close the store, and give a fixed port back."""
        end = time.monotonic() + _LONGEST_END_SECONDS
        for making in self._making:
            making.join(max(0.0, end - time.monotonic()))
        self._store, self._spares = None, queue.SimpleQueue()
        if self._listener is not None:
            self._listener.close()

    def _make_spare(self) -> None:
        making = threading.Thread(target=self._open_ahead, name="ft_store", daemon=True)
        with contextlib.suppress(RuntimeError):  # no room for a thread: renew() opens a store itself
            making.start()
            self._making.append(making)

    def _open_ahead(self) -> None:
        try:
            self._spares.put(self._on_a_free_port())
        except RuntimeError:  # no room for a descriptor
            self._spares.put(None)

    def _take_spare(self) -> TCPStore | None:
        """Return a store that was opened ahead, None where there is none; where one is on its way, the first of two."""
        with contextlib.suppress(queue.Empty):
            return self._spares.get_nowait()
        if any(each.is_alive() for each in self._making):
            with contextlib.suppress(queue.Empty):
                return self._spares.get(timeout=_USUAL_SECONDS)
            self._make_spare()  # what the first one waits for may be an answer that was lost
            with contextlib.suppress(queue.Empty):
                return self._spares.get(timeout=_LONGEST_LOOK_UP_SECONDS)
        return None

    def _on_a_free_port(self) -> TCPStore:
        return TCPStore("localhost", 0, None, True, self._timeout, wait_for_workers=False)

    def _serve(self, listener: socket.socket) -> TCPStore:
        port = listener.getsockname()[1]
        while True:
            descriptor = os.dup(listener.fileno())  # the store closes it
            try:
                return TCPStore(
                    *("localhost", port, None, True, self._timeout),
                    wait_for_workers=False,
                    master_listen_fd=descriptor,
                    use_libuv=self._uses_libuv,
                )
            except NotImplementedError:  # the libuv server of older versions cannot be given a socket
                os.close(descriptor)
                if not self._uses_libuv:
                    raise
                self._uses_libuv = False


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, backlog=_QUEUE, dualstack_ipv6=True)
        else:
            listener = socket.create_server(("", port), backlog=_QUEUE)
    except OSError as error:
        why = "it is in use by another process" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise RendezvousRefusedError(
            f"cannot host the ranks' store on port {port}: {why}; "
            "choose another with --master-port, or leave it out and let the system choose"
        ) from error
    listener.setblocking(False)
    return listener


def _turn_away(listener: socket.socket) -> None:
    """Close the connections that still wait: they were made by a generation that has ended."""
    with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
        while True:
            listener.accept()[0].close()
