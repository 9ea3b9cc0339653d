"""The launcher's handle of the process that calls a command or a URL (:mod:`launcher.notices.caller`)."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from launcher.notices.caller import LAST_SECONDS, MESSAGE_SIZE, TOLD
from launcher.notices.notice import encoded
from launcher.processes.child_state import state_of
from launcher.processes.proc import process_status
from resilience_core.system.installation import HOME

__all__ = ["CallerHandle"]

# -I -S: neither environment nor site-packages, which the process does not need; the commands get the environment.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from launcher.notices.caller import main; main(sys.argv[2:])"
_SLACK_SECONDS = 0.3
_KILLING_SECONDS = 2.2
"""How long it may take more, to kill what it has started."""
_KILL_SECONDS = 1.0
_MOST_IN_A_ROW = 5
_SOUND_SECONDS = 600.0
"""A process that has lived for so long is none of those that end one after the other."""
_LOOK_SECONDS = 1.0
"""How often it is looked at, and replaced, at most."""


class CallerHandle:
    """Start the process, and another one where it has ended or is stopped; any thread may tell it of an event.

    All but :meth:`tell` is for the thread that lives as long as this process: what it starts ends with it.

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
        self._target, self._timeout_seconds = target, timeout_seconds
        # Their end stays open here: what the process has not read when it is lost is read by the one after it.
        self._channel, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._last_told = 0
        self._in_a_row = 0
        self._left_behind: list[subprocess.Popen[bytes]] = []
        self._is_given_up = False
        self._started = self._looked = 0.0
        self._process = self._start()
        self._listener = threading.Thread(target=self._listen, name="ft_on_event", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The process, or the last one where there is none any more."""
        return self._process.pid

    @property
    def pids(self) -> set[int]:
        """The process, and those before it that were killed and are not gone."""
        self._left_behind = [process for process in self._left_behind if process.poll() is None]
        return {process.pid for process in (*self._left_behind, self._process)}

    def due_seconds(self) -> float | None:
        """Return in how many seconds to call :meth:`tend`; None where there is nothing to look after."""
        return None if self._is_given_up else max(0.0, self._looked + _LOOK_SECONDS - time.monotonic())

    def tend(self) -> None:
        """Start another process where the last one has ended or is stopped, where it is time to look."""
        if self.due_seconds() == 0.0:
            self._looked = time.monotonic()
            self._ensure()

    def _start(self) -> subprocess.Popen[bytes]:
        self._started = time.monotonic()
        settings = (str(self._theirs.fileno()), self._target, str(self._timeout_seconds), str(self._last_told))
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, HOME, *settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[self._theirs.fileno()],
            start_new_session=True,
        )

    def _ensure(self) -> None:
        if self._is_given_up or (state := state_of(self._process)) is None:
            return
        former = self._process
        former.kill()
        if former.poll() is None:
            self._left_behind.append(former)
        if time.monotonic() - self._started >= _SOUND_SECONDS:
            self._in_a_row = 0
        self._in_a_row += 1
        what = f"process {former.pid}, which tells events, {'was stopped' if state == 'stopped' else f'has {state}'}"
        why_not = f", as {_MOST_IN_A_ROW} before it" if self._in_a_row > _MOST_IN_A_ROW else ""
        if not why_not:
            try:
                self._process = self._start()
            except OSError as error:
                why_not = f", and no other can be started ({error.strerror})"
        if why_not:
            self._is_given_up = True
            self._theirs.close()
            self._on_problem(f"--ft-on-event: {what}{why_not}; no event is told any more. The job is not affected")
            return
        said = f"{what}; another one goes on. What it had taken and not told is lost: the next document says how many"
        self._complain("replaced", said)

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
        self._ensure()  # what waits is told yet
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
        for former in self._left_behind:
            with contextlib.suppress(subprocess.TimeoutExpired):
                former.wait(_KILL_SECONDS)
        with contextlib.suppress(OSError):  # it was given up
            self._channel.shutdown(socket.SHUT_RDWR)  # its end may be open in a process that does not go
        self._theirs.close()
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
                return
            if raw.startswith(TOLD):
                self._last_told = int(raw.removeprefix(TOLD))
            else:
                self._on_problem(raw.decode(errors="replace"))
