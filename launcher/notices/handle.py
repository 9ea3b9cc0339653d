"""The launcher's handle of the process that calls a command or a URL (:mod:`launcher.notices.caller`)."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from launcher.notices.caller import LAST_SECONDS, MESSAGE_SIZE
from launcher.notices.notice import encoded
from launcher.processes.proc import process_status
from resilience_core.system.installation import HOME

__all__ = ["CallerHandle"]

# -I -S: neither environment nor site-packages, which the process does not need; the commands get the environment.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from launcher.notices.caller import main; main(sys.argv[2:])"
_SLACK_SECONDS = 0.3
_KILLING_SECONDS = 2.2
"""How long it may take more, to kill what it has started."""
_KILL_SECONDS = 1.0


class CallerHandle:
    """Start the process; any thread may tell it of an event.

    Args:
        target: What to call, as the user has written it.
        timeout_seconds: How long one call may take.
        on_problem: Called, in a thread of its own, with what went wrong, for people.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, target: str, timeout_seconds: float, on_problem: Callable[[str], None]) -> None:
        self._on_problem = on_problem
        self._is_closing = False
        self._complaints: set[str] = set()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, HOME, str(theirs.fileno()), target, str(timeout_seconds)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, name="ft_on_event", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def tell(self, document: Mapping[str, Any]) -> None:
        """Hand over a document; never wait. One that there is no room for is missing in what the next one counts."""
        raw = encoded(document)
        try:
            if len(raw) > MESSAGE_SIZE:  # would be cut off where it is received
                raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
            self._channel.send(raw, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:  # it is stopped, and its socket is full
            what = f"process {self.pid}, which tells events, does not go on; events are dropped until it does"
            self._complain("full", what)
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.ENOBUFS, errno.ENOMEM):  # else it has ended, which was said
                what = f"an event of {len(raw)} bytes cannot be handed over ({error.strerror}) and is not told"
                self._complain("refused", what)

    def close(self) -> None:
        """Wait until what is waiting was told, within a bound, and end the process; a second call does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        with contextlib.suppress(OSError):  # it has ended before
            self._channel.shutdown(socket.SHUT_WR)
        if not self._has_ended(LAST_SECONDS + _SLACK_SECONDS) and not self._has_ended(_KILLING_SECONDS):
            status = process_status(self.pid)
            is_stopped = status is not None and status.is_stopped
            why = "was stopped" if is_stopped else "did not end in time"
            what = f"process {self.pid}, which tells events, {why} and is killed"
            self._on_problem(f"--ft-on-event: {what}; what it has not told is lost")
            self._process.kill()
            try:
                self._process.wait(_KILL_SECONDS)
            except subprocess.TimeoutExpired:
                self._on_problem(f"--ft-on-event: process {self.pid}, which tells events, was killed and is not gone")
        self._listener.join(_KILL_SECONDS)
        self._channel.close()

    def _complain(self, kind: str, text: str) -> None:
        if kind not in self._complaints:
            self._complaints.add(kind)
            self._on_problem(f"--ft-on-event: {text} (said once)")

    def _has_ended(self, timeout_seconds: float) -> bool:
        """Return whether it ends within a bound; one that is stopped is not waited for."""
        status = process_status(self.pid)
        if status is not None and status.is_stopped:
            return False
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _listen(self) -> None:
        while True:
            try:
                raw = self._channel.recv(MESSAGE_SIZE)
            except OSError:
                raw = b""
            if not raw:
                break
            self._on_problem(raw.decode(errors="replace"))
        if not self._is_closing:
            self._on_problem(
                f"--ft-on-event: process {self.pid}, which tells events, has ended; no event is told any more. The job "
                "is not affected"
            )
