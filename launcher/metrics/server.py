"""Answer HTTP requests for metrics, one connection a request, with bounds on how many and how long.

``prometheus_client.start_http_server`` starts a thread for each connection, as many as come, and waits for a client
that sends nothing for ever. Here a connection lives for seconds, and those beyond the bound are closed unanswered.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple

__all__ = ["Answer", "MetricsServer", "Reused"]

_MOST_CONNECTIONS = 16
_LONGEST_CONNECTION_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_SHARE = 10
"""Pages are made anew so seldom that this takes a tenth of a processor on average, whatever the rate of scrapes."""


class Answer(NamedTuple):
    """A page as it is sent."""

    content_type: str
    body: bytes


class Reused:
    """Makes pages, and gives the same again while making one anew would take more than its share of a processor.

    The share is one for all pages, and what other threads of the process do meanwhile, as read the log folder, counts.

    Args:
        make: Makes the page of one kind.
    """

    def __init__(self, make: Callable[[bool], Answer]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._answers: dict[bool, Answer] = {}
        self._until = 0.0

    def __call__(self, kind: bool) -> Answer:
        """Return the page of a kind. One of several that ask at once makes it, for all."""
        with self._lock:
            if kind not in self._answers or time.monotonic() >= self._until:
                used = time.process_time()
                self._answers[kind] = self._make(kind)
                self._until = time.monotonic() + (_SHARE - 1) * (time.process_time() - used)
            return self._answers[kind]


class MetricsServer(ThreadingMixIn, HTTPServer):
    """Serves at a listening socket.

    Args:
        listener: Owned from now on.
        answer: Returns the page, as OpenMetrics where the argument is true, else as Prometheus' older text.
        on_error: Called once, with what ``answer`` or the server itself has raised; clients that go away do not count.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listener: socket.socket, answer: Callable[[bool], Answer], on_error: Callable[[Exception], object]
    ) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.answer = answer
        self._on_error = on_error
        self._has_told = False
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Serve for ever."""
        self.serve_forever(poll_interval=_LOOK_SECONDS)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether there is room for one more connection."""
        with self._lock:
            if len(self._open) >= _MOST_CONNECTIONS:
                return False
            self._open[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        """Cut off connections that last too long, whatever they wait for."""
        with self._lock:
            old = time.monotonic() - _LONGEST_CONNECTION_SECONDS
            for request, since in self._open.items():
                if since < old:
                    try:
                        request.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass  # its client was faster

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell what is wrong with us, and nothing of a client that has gone: the terminal is that of the training."""
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self.note_error(error)

    def note_error(self, error: Exception) -> None:
        """Tell of the first error; each page may have the same."""
        with self._lock:
            is_first, self._has_told = not self._has_told, True
        if is_first:
            self._on_error(error)


class _Handler(BaseHTTPRequestHandler):
    server_version = "ft_metrics"
    sys_version = ""
    timeout = _LONGEST_CONNECTION_SECONDS

    def do_GET(self) -> None:
        """Answer with the metrics, or say where they are."""
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404, "metrics are at /metrics")
            return
        assert isinstance(self.server, MetricsServer)
        try:
            answer = self.server.answer("application/openmetrics-text" in self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 - a mistake of ours; whoever asks has to know of it
            self.server.note_error(error)
            self.send_error(500, "the metrics cannot be made", f"{type(error).__name__}: {error}")
            return
        self.send_response(200)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
