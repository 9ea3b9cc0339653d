"""The process that serves this node's metrics (:mod:`launcher.metrics`), as the launcher sees it.

The launcher binds the port, before any rank is started, and hands the listening socket over: an address that cannot be
meant refuses the job, and an exporter that takes the place of another one serves at the same port, also where any free
one was asked for. What may be otherwise at the next start, as a port in use, refuses nothing: a training that is
resumed after a failure, by nobody who could name another port, is worth more than its metrics.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from launcher.agent.exporter_settings import ExporterSettings
from launcher.processes.child_state import state_of
from launcher.records.console import INFO, announce
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.errors import ConfigError
from resilience_core.system.installation import HOME

__all__ = ["CannotListenError", "MetricsExporter", "address_of", "listen", "serve", "tell_not_served"]

# First the priority, then the imports, which take most of its start. Nice 10 is a ninth of what a rank gets where all
# processors are busy; nice 19, a seventieth, is too little to answer in time there. Installed packages are found as the
# launcher finds them; the working folder, where a user may have a launcher.py, is left out.
_PROGRAM = (
    "import os, sys; os.nice(10); sys.path[:] = [*filter(None, sys.path), sys.argv[1]]; "
    "from launcher.metrics.exporter import main; main(sys.argv[2])"
)
_BACKLOG = 16
_MOST_IN_A_ROW = 5
_SOUND_SECONDS = 600.0
"""An exporter that has lived for so long is none of those that end one after the other."""
_LOOK_SECONDS = 1.0
"""How often an exporter is looked at, and replaced, at most."""
_LONGEST_END_SECONDS = 5.0
_PREDECESSOR_SECONDS = 2.0
"""How long a port may be in use by the exporter of a launcher that was killed a moment ago."""
_PAUSE_SECONDS = 0.05
_NEVER_MEANT = frozenset({errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT})
"""What is wrong with the address or the port, not with what else there is on this machine now."""


class CannotListenError(Exception):
    """The system does not let a socket listen now; the text says where, and why."""


def listen(config: FaultToleranceConfig) -> socket.socket | None:
    """Listen where metrics are to be served; None where none are.

    Raises:
        ConfigError: This machine has no such address or port, or what serves metrics is not installed.
        CannotListenError: The port is in use, or something else is in the way that may be gone at another time.
    """
    if config.metrics_port is None:
        return None
    host, port = config.metrics_host, config.metrics_port
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(
            f"--ft-metrics-port {port} needs prometheus-client, which is not installed in this environment; install "
            "torch-resilience with the extra 'metrics' (pip install prometheus-client), or leave the option out"
        )
    try:
        return _listener(host, port, time.monotonic() + _PREDECESSOR_SECONDS)
    except (OSError, UnicodeError) as error:
        what = f"{host} port {port}: {_reason(error)}"
        if not _is_never_meant(error):
            raise CannotListenError(what) from error
        raise ConfigError(
            f"metrics cannot be served at {what}; name another port with --ft-metrics-port (0: any that is free), or "
            "another address with --ft-metrics-host"
        ) from error


def _listener(host: str, port: int, end: float) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    while True:
        try:
            return socket.create_server(
                address[:2] if family == socket.AF_INET else address,
                family=family,
                backlog=_BACKLOG,
                dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= end:
                raise
        time.sleep(_PAUSE_SECONDS)


def _is_never_meant(error: OSError | UnicodeError) -> bool:
    if isinstance(error, socket.gaierror):
        return error.errno != socket.EAI_AGAIN
    return isinstance(error, UnicodeError) or error.errno in _NEVER_MEANT


def serve(listener: socket.socket, settings: ExporterSettings, write_event: Callable[..., Any]) -> MetricsExporter:
    """Start what serves metrics, and say where, or that none are served. See :class:`MetricsExporter`."""
    host, port = address_of(listener)  # before: an exporter that cannot be started closes it
    exporter = MetricsExporter(listener, settings, write_event)
    if exporter.pid is not None:
        write_event("metrics", host=host, port=port)
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        announce(f"metrics at {where}", level=INFO, event="metrics")
    return exporter


def tell_not_served(reason: str, write_event: Callable[..., Any]) -> None:
    """Say that no metrics are served, and why.

    Args:
        reason: For people.
        write_event: Called with an event and its facts, for the log.
    """
    announce(f"no metrics are served: {reason}. The job goes on without", event="metrics")
    write_event("metrics_lost", reason=reason)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)  # Python's text repeats the address
    return getattr(error, "strerror", None) or str(error)


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Return host and port of a listening socket."""
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


class MetricsExporter:
    """One process that serves metrics, started again when it ends, but not for ever.

    To be used by the thread that lives as long as this process: the exporter ends with the thread that has started it.
    Nothing here waits for the exporter but :meth:`close`.

    Args:
        listener: Where it serves; owned from now on.
        settings: What it is told, but for the listener.
        tell: Called with an event and its facts, for the log.
    """

    def __init__(
        self, listener: socket.socket, settings: ExporterSettings, tell: Callable[..., Any] = lambda *_, **__: None
    ) -> None:
        self._listener = listener
        self._settings = settings._replace(listener=listener.fileno())
        self._tell = tell
        self._in_a_row = 0
        self._has_told = False
        self._left_behind: list[subprocess.Popen[bytes]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._started = self._looked = 0.0
        self._start()

    @property
    def pid(self) -> int | None:
        """The process, as of now; None where there is none any more."""
        return None if self._process is None else self._process.pid

    @property
    def pids(self) -> set[int]:
        """The process, and those before it that were killed and are not gone."""
        self._left_behind = [process for process in self._left_behind if process.poll() is None]
        return {process.pid for process in (*self._left_behind, self._process) if process is not None}

    def due_seconds(self) -> float | None:
        """Return in how many seconds to call :meth:`tend`; None where there is nothing to look after."""
        return None if self._process is None else max(0.0, self._looked + _LOOK_SECONDS - time.monotonic())

    def tend(self) -> None:
        """Do what :meth:`ensure` does, where it is time for that; whoever waits for something calls this."""
        if self.due_seconds() == 0.0:
            self._looked = time.monotonic()
            self.ensure()

    def ensure(self) -> None:
        """Start another process where the last one has ended or is stopped; say so the first time."""
        if self._process is None or (state := state_of(self._process)) is None:
            return
        former = self._process
        former.kill()
        if former.poll() is None:
            self._left_behind.append(former)
        reason = f"(pid {former.pid}) {'was stopped' if state == 'stopped' else state}"
        if time.monotonic() - self._started >= _SOUND_SECONDS:
            self._in_a_row = 0
        self._in_a_row += 1
        if self._in_a_row > _MOST_IN_A_ROW:
            self._give_up(f"{reason}, as {_MOST_IN_A_ROW} before it")
            return
        self._start()
        if self._process is not None:
            self._tell("metrics_replaced", reason=reason)
            if not self._has_told:
                self._has_told = True
                announce(f"the metrics exporter {reason}; another one serves from now on (said once)", event="metrics")

    def close(self) -> None:
        """End the process, within a bound, and close the port."""
        self._listener.close()
        for process in (*self._left_behind, self._process):
            if process is not None:
                process.kill()
                try:
                    process.wait(_LONGEST_END_SECONDS)
                except subprocess.TimeoutExpired:
                    announce(f"the metrics exporter (pid {process.pid}) does not end", event="metrics")
        self._left_behind, self._process = [], None

    def _start(self) -> None:
        self._started = time.monotonic()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, HOME, self._settings.to_text()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if self._in_a_row else None,  # a mistake is told once
                pass_fds=[self._listener.fileno(), self._settings.history, *self._settings.shared_output],
                start_new_session=True,
            )
        except OSError as error:
            self._process = None
            self._give_up(f"cannot be started: {error}")

    def _give_up(self, reason: str) -> None:
        self._process = None
        self._listener.close()  # whoever asks is refused, and does not wait for nobody
        tell_not_served(f"the exporter {reason}", self._tell)
