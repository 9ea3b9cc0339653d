"""Start a zygote by fork or by exec, read its messages, and end it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence

import attrs

from launcher.processes.handles import has_exited
from launcher.processes.message_format import MessageError
from launcher.records import console
from launcher.workers.parked import ParkedWorker, end_process, is_stopped
from launcher.zygote.import_time import import_environment, is_read_at_import
from launcher.zygote.protocol import (
    SETTINGS,
    Handover,
    Park,
    Refused,
    ZygoteReport,
    ZygoteSettings,
    packet_pair,
    receive_message,
    send_message,
)
from launcher.zygote.zygote import serve
from resilience_core.system.installation import HOME

__all__ = ["STARVED_SECONDS", "ZygoteHandle"]

STARVED_SECONDS = 5.0
"""How long forking a worker may take, and how long one may take to run that gets no processor."""

logger = logging.getLogger(__name__)

# Our own folder comes last, where it can shadow nothing, and is taken away before the script runs, which may not find
# it in a new interpreter either; the first place is kept for the script's folder.
_PROGRAM = (
    "import sys; sys.path[0] = '/dev/null'; home = sys.argv.pop(1); added = home not in sys.path; "
    "added and sys.path.append(home); from launcher.zygote.zygote import main; main(home if added else None)"
)


@attrs.define(eq=False)
class ZygoteHandle:
    """A zygote process, as the launcher controls it. No method of an instance blocks for longer than a kill takes."""

    channel: socket.socket
    pid: int
    pidfd: int
    has_reported: bool = False
    is_gone: bool = False
    is_closed: bool = False
    was_seen_stopped: bool = False
    was_waited_for: bool = False
    unsafe: str | None = None
    left_out: dict[str, str] = attrs.field(factory=dict)
    import_time: dict[str, str] = attrs.field(factory=dict)
    reads: frozenset[str] = frozenset()
    refused: str | None = None
    """Why it could not fork when it was asked; None when nothing new is known."""
    asked: int = 0
    """Workers that were asked for and have not come."""
    asked_at: float = 0.0
    """When it was last asked, or last answered, by the clock of whoever asks."""

    def __attrs_post_init__(self) -> None:
        self.channel.setblocking(False)

    @classmethod
    def by_fork(cls, preload: Sequence[str], inherited: Collection[int]) -> ZygoteHandle | Handover:
        """Fork this process, which has imported torch and nothing that would not survive.

        Args:
            preload: What the zygote is to import.
            inherited: Descriptors that this process was started with.

        Returns:
            The zygote; or, in a worker that the zygote has forked in its turn, what that is to become.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = packet_pair()
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            os.setsid()  # a Ctrl-C at the terminal is for the launcher alone
            return serve(theirs, launcher, preload, inherited)
        theirs.close()
        return cls(ours, pid, os.pidfd_open(pid))

    @classmethod
    def by_exec(cls, preload: Sequence[str], import_time: Mapping[str, str | None]) -> ZygoteHandle:
        """Start a zygote as a new interpreter; it reports when it has imported everything.

        Args:
            preload: What it is to import.
            import_time: All variables that are read at import, and others that it shall find (None: shall not).
        """
        inherited = {name: value for name, value in os.environ.items() if not is_read_at_import(name)}
        merged = {**inherited, **import_time}
        ours, theirs = packet_pair()
        with theirs:
            settings = SETTINGS.encode(ZygoteSettings(theirs.fileno(), os.getpid(), tuple(preload), console.state()[:]))
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, HOME, settings.decode()],
                env={name: value for name, value in merged.items() if value is not None},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        process.returncode = 0  # collected by us
        return cls(ours, process.pid, os.pidfd_open(process.pid))

    def receive(self, now: float) -> list[ParkedWorker]:
        """Read what it has sent: its report, and workers that it has forked.

        Args:
            now: Monotonic seconds.
        """
        found: list[ParkedWorker] = []
        while not self.is_gone:
            try:
                packet = receive_message(self.channel)
            except BlockingIOError:
                break
            except MessageError as error:
                logger.warning("what the zygote says cannot be read, workers are spawned: %s", error)
                packet = None
            if packet is None:
                self.is_gone = True
            elif isinstance(packet.message, ZygoteReport):
                self._take_report(packet.message)
            else:
                self.asked -= 1
                self.asked_at = now
                self.refused = packet.message.why if isinstance(packet.message, Refused) else self.refused
                # None come where this process may open no more: the worker finds its link closed, and ends.
                found += [ParkedWorker(socket.socket(fileno=each)) for each in packet.descriptors]
        return found

    def ask(self, count: int, now: float) -> None:
        """Ask for so many parked workers.

        Args:
            count: How many.
            now: Monotonic seconds.
        """
        with contextlib.suppress(OSError):  # whether it is dead or stopped is asked elsewhere
            send_message(self.channel, Park(count))
            self.asked += count
            self.asked_at = now

    def finds(self, environment: Mapping[str, str]) -> bool:
        """Return whether its imports found what imports in this environment would find."""
        return import_environment(environment, self.reads) == self.import_time

    @property
    def has_exited(self) -> bool:
        """Return whether the process has ended, or has closed its end."""
        return self.is_gone or has_exited(self.pidfd)

    @property
    def is_stopped(self) -> bool:
        """Return whether it is stopped or traced, and so would not answer."""
        return is_stopped(self.pid)

    def problem(self, now: float, has_unready: bool, *, is_due: bool, at_once: bool) -> str | None:
        """Return what is wrong with it. A stop counts when two looks in a row find it, or one with ``at_once``.

        Args:
            now: Monotonic seconds.
            has_unready: Whether workers that it has forked are not ready yet.
            is_due: Whether this is a regular look.
            at_once: Whether one look has to do.
        """
        if self.has_exited:
            return "was lost"
        if is_due or at_once:
            is_stopped = self.is_stopped
            if is_stopped and (self.was_seen_stopped or at_once):
                return "was stopped"
            self.was_seen_stopped = is_stopped
        if (self.asked or has_unready) and now - self.asked_at > STARVED_SECONDS:
            return f"has not forked a worker for {STARVED_SECONDS:g} s"
        return None

    def close(self) -> list[ParkedWorker]:
        """Kill the process and its forks that have not reported yet, and collect it.

        Returns:
            Workers that it has sent and nobody has taken yet; none where it was closed before.
        """
        if self.is_closed:
            return []
        self.is_closed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        end_process(self.pid, self.pidfd)
        found = self.receive(self.asked_at)
        self.channel.close()
        return found

    def _take_report(self, report: ZygoteReport) -> None:
        self.has_reported = True
        self.unsafe = report.unsafe
        self.left_out = report.left_out
        self.import_time = report.import_time
        self.reads = frozenset(report.reads)
