"""A command of the user's: healthy where it ends with 0, otherwise its last line of output is the reason.

The command is a session of its own, all of which is killed when it has ended or its time is up; nothing that it starts
stays. A member that cannot be killed, since it waits in the kernel, is left, and the command is not started again
before that one is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from launcher.health.check import Context
from launcher.processes.command_output import CommandOutput
from launcher.processes.handles import end_sessions, wait_for_exit
from launcher.processes.proc import session_members

__all__ = ["CommandCheck"]

_KILL_SECONDS = 2.0
"""How long it is waited for what was killed."""
_ROUND_SECONDS = 0.5
"""The longest wait between two looks at whether the check was cancelled."""
_SHELL_SAYS = {126: " (it cannot be executed)", 127: " (there is no such command)"}


class CommandCheck:
    """A command for ``/bin/sh``.

    Args:
        command: As the user has written it.
        timeout_seconds: How long it may run.
    """

    name = "command"

    def __init__(self, command: str, timeout_seconds: float) -> None:
        self._command, self._timeout = command, timeout_seconds
        self.bound_seconds = timeout_seconds + 2 * _KILL_SECONDS
        self._left: subprocess.Popen[bytes] | None = None

    def check(self, context: Context) -> str | None:
        """Run it once."""
        context.tell(f"starting {self._command!r}")
        if (left := self._left) is not None and (left.poll() is None or session_members([left.pid])):
            return (
                f"{self._command!r} was killed before, and what it has started has not ended (session {left.pid}): it "
                "waits in the kernel for a device or a file system (dmesg)"
            )
        self._left = None
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **context.environment()},
                start_new_session=True,
            )
        except OSError as error:
            return f"{self._command!r} cannot be started: {error.strerror}; see ulimit -u and /bin/sh"
        context.tell(f"{self._command!r} runs as process {process.pid}")
        assert process.stdout is not None
        output = CommandOutput(process.stdout.fileno())
        pidfd = -1
        try:
            # The process is not collected before its session has ended, so that nobody else can have its number.
            pidfd = os.pidfd_open(process.pid)
            has_ended = self._wait(pidfd, output, context)
            output.read()
        finally:
            context.tell(f"killing {self._command!r}, session {process.pid}")
            if end_sessions([process.pid], _KILL_SECONDS):
                self._left = process
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_SECONDS)
            process.stdout.close()
            if pidfd >= 0:
                os.close(pidfd)
        return self._judged(process.returncode, output.last_line(), has_ended=has_ended)

    def _wait(self, pidfd: int, output: CommandOutput, context: Context) -> bool:
        end = time.monotonic() + self._timeout
        while (left := end - time.monotonic()) > 0 and not context.is_cancelled():
            waited_for = [pidfd] if output.has_ended else [pidfd, output.descriptor]
            ready = wait_for_exit(waited_for, min(left, _ROUND_SECONDS))
            if pidfd in ready:
                return True
            if ready:
                output.read()
        return False

    def _judged(self, code: int | None, line: str, *, has_ended: bool) -> str | None:
        said = f"its last line: {line}" if line else "it has written nothing"
        if not has_ended or code is None:
            return (
                f"{self._command!r} has not ended within {self._timeout:g} s and was killed; {said}; see what it waits "
                "for, or raise health_check_timeout"
            )
        if code == 0:
            return None
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"{self._command!r} was ended by {signal.Signals(-code).name}; {said}"
        return f"{self._command!r} has ended with {code}{_SHELL_SAYS.get(code, '')}; {said}"
