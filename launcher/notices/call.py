"""One call of a command or a URL: started, watched, and ended with all that it has started.

The process that makes calls is the subreaper of whatever they start, so that everything below a call is found when it
is to be ended, whatever session or group it is in. A command has ended when its own process has ended: what it leaves
running is killed then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping

from launcher.notices.post import post
from launcher.notices.target import Target
from launcher.processes.command_output import CommandOutput
from launcher.processes.handles import end_processes
from launcher.processes.proc import child_pids, process_status
from resilience_core.environment import EVENT_VARIABLE
from resilience_core.system import prctl
from resilience_core.system.proc import set_session_priority

__all__ = ["Call", "CannotCallError"]

_KILL_SECONDS = 2.0
"""How long it is waited for what was killed; what waits in the kernel for longer is left."""
_SHELL_SAYS = {126: " (it cannot be executed)", 127: " (there is no such command)"}


class CannotCallError(Exception):
    """The command could not be started; the text says why."""


class Call:
    """Started by its constructor.

    Args:
        target: What to call.
        document: JSON.
        event: Its name.
        timeout_seconds: How long it may take.

    Raises:
        CannotCallError: It could not be started.
    """

    def __init__(self, target: Target, document: bytes, event: str, timeout_seconds: float) -> None:
        self.event = event
        self.deadline = time.monotonic() + timeout_seconds
        self._timeout = timeout_seconds
        self.pid = 0
        """Its process, which leads a session."""
        self._target = target
        try:
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise CannotCallError(f"cannot be started: {error.strerror}") from error
        try:
            # A file in memory, not a pipe: nobody has to wait for a command that does not read.
            document_file = os.memfd_create("ft_event")
            try:
                os.write(document_file, document)
                os.lseek(document_file, 0, os.SEEK_SET)
                self.pid = self._start(document, document_file, write_end)
            finally:
                os.close(document_file)
            self.pidfd = os.pidfd_open(self.pid)
        except (OSError, subprocess.SubprocessError) as error:  # the latter: in the child, before the command
            os.close(read_end)
            _end_all()  # it may run, and no descriptor was left to watch it
            raise CannotCallError(f"cannot be started: {getattr(error, 'strerror', None) or error}") from error
        finally:
            os.close(write_end)
        self.output = CommandOutput(read_end)

    def end(self, *, has_ended: bool) -> str | None:
        """Kill what is left of it.

        Args:
            has_ended: The process itself has ended before; otherwise its time is up.

        Returns:
            What went wrong, for people; None where it has ended with 0 in time.
        """
        status = None
        if has_ended:
            with contextlib.suppress(ChildProcessError):
                status = os.waitpid(self.pid, 0)[1]
        self.output.read()
        _end_all()
        self.output.read()
        os.close(self.pidfd)
        os.close(self.output.descriptor)
        line = self.output.last_line()
        said = f"; its last line on standard error: {line}" if line else "; it has written nothing to standard error"
        if status is None:
            url = bool(self._target.url)
            return f"has not {'answered' if url else 'ended'} within {self._timeout:g} s and was killed" + (
                "" if url else said
            )
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return None
        if self._target.url:
            return line or f"the process that sends has ended with {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}{said}"
        return f"has ended with {code}{_SHELL_SAYS.get(code, '')}{said}"

    def _start(self, document: bytes, document_file: int, error_output: int) -> int:
        if self._target.url:
            return self._start_post(document, error_output)
        process = subprocess.Popen(
            self._target.command,
            stdin=document_file,
            stdout=subprocess.DEVNULL,
            stderr=error_output,
            env=_environment(self.event, os.environ),
            start_new_session=True,
            preexec_fn=_in_the_child,
        )
        process.returncode = 0  # collected in end(): Popen must neither do so nor complain that nobody did
        return process.pid

    def _start_post(self, document: bytes, error_output: int) -> int:
        """Fork: this process has one thread, and what the child needs is imported already."""
        pid = os.fork()
        if pid != 0:
            return pid
        code = 1
        try:
            os.setsid()
            _in_the_child()
            os.dup2(error_output, 2)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            problem = post(self._target.url, document, self.event, self._timeout)
            if problem is None:
                code = 0
            else:
                os.write(2, " ".join(problem.split()).encode("utf-8", errors="replace") + b"\n")
        finally:
            os._exit(code)


def _in_the_child() -> None:
    """End with us, and come after the launcher and the ranks as we do: the session is new, and has no such priority."""
    prctl.die_with_parent(signal.SIGKILL)
    set_session_priority(os.nice(0))


def _environment(event: str, environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, EVENT_VARIABLE: event}


def _live_children() -> list[int]:
    """Return our children, those included that a call has left to us, without what has ended.

    Their own children become ours when they are killed, and are found at the next look.
    """
    children = child_pids(os.getpid(), [os.getpid()])
    return [pid for pid in children if (status := process_status(pid)) is not None and not status.has_ended]


def _end_all() -> None:
    """Kill whatever was started, and collect what has ended."""
    end_processes(_live_children, _KILL_SECONDS)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
