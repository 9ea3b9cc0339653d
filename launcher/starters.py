"""Where worker processes come from, as the agent sees it: spawned, or warm from the zygote."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from launcher.nursery import Zygote, import_environment
from launcher.processes import has_exited, open_pidfd, send_signal, wait_for_exit
from launcher.workers import Launch, spawn_worker
from launcher.zygote_protocol import WorkerOrder, read_at_import, receive_frame, send_frame

__all__ = ["SpawnStarter", "WarmStarter", "WorkerStarter"]

_PATIENCE_SECONDS = 10.0
_MOST_FAILURES = 3


class WorkerStarter(Protocol):
    """Starts workers; each is the leader of its own session and a child of this process."""

    def start(self, launch: Launch) -> int:
        """Start one and return its pid."""

    def prepare(self, count: int) -> None:
        """Have so many ready for the next generation."""

    def descriptors(self) -> list[int]:
        """What becomes readable when :meth:`tend` has something to do."""

    def tend(self) -> None:
        """Mend what was lost."""

    def children(self) -> set[int]:
        """Pids that are this starter's to collect."""

    def close(self) -> None:
        """End whatever idles."""


class SpawnStarter:
    """A new interpreter for every worker."""

    def start(self, launch: Launch) -> int:
        """See :class:`WorkerStarter`."""
        return spawn_worker(launch)

    def prepare(self, count: int) -> None:
        """See :class:`WorkerStarter`; there is nothing to be had ahead."""

    def descriptors(self) -> list[int]:
        """See :class:`WorkerStarter`."""
        return []

    def tend(self) -> None:
        """See :class:`WorkerStarter`."""

    def children(self) -> set[int]:
        """See :class:`WorkerStarter`."""
        return set()

    def close(self) -> None:
        """See :class:`WorkerStarter`."""


@attrs.define(eq=False)
class _Parked:
    """A worker that waits for its order."""

    link: socket.socket
    pid: int = 0
    pidfd: int = -1


class WarmStarter:
    """Parked workers from a zygote; a spawned one where none can be had.

    Args:
        zygote: The first one.
        preload: What a new zygote must import.
        say: Told once why warm start is not possible, and of every loss that was mended.
    """

    def __init__(self, zygote: Zygote, preload: Sequence[str], say: Callable[[str], None]) -> None:
        self._zygote: Zygote | None = zygote
        self._preload = preload
        self._say = say
        self._parked: deque[_Parked] = deque()
        self._asked = 0
        self._wanted = 0
        self._import_time: dict[str, str] | None = None
        self._failures = 0
        self._is_off = False

    def start(self, launch: Launch) -> int:
        """See :class:`WorkerStarter`."""
        order = _order(launch)
        if order is None:
            self._switch_off("the workers are not started with this launcher's own Python")
            return spawn_worker(launch)
        parked = self._take(order)
        if parked is None:
            return spawn_worker(launch)
        pid = parked.pid
        try:
            send_frame(parked.link, order._asdict())
        except OSError:  # it died in this very moment
            self._discard(parked)
            return spawn_worker(launch)
        parked.link.close()
        os.close(parked.pidfd)
        return pid

    def prepare(self, count: int) -> None:
        """See :class:`WorkerStarter`."""
        self._wanted = count
        missing = count - len(self._parked) - self._asked
        if self._zygote is not None and missing > 0:
            with contextlib.suppress(OSError):  # a dead one is found and mended by tend()
                send_frame(self._zygote.channel, {"park": missing})
                self._asked += missing

    def descriptors(self) -> list[int]:
        """See :class:`WorkerStarter`."""
        found = [parked.pidfd for parked in self._parked]
        if self._zygote is not None:
            found += [self._zygote.channel.fileno()] if self._asked or not self._zygote.has_reported else []
            found.append(self._zygote.pidfd)
        return found

    def tend(self) -> None:
        """See :class:`WorkerStarter`."""
        for parked in [p for p in self._parked if has_exited(p.pidfd)]:
            self._parked.remove(parked)
            self._discard(parked)
            self._say("a parked worker was lost; another takes its place")
        zygote = self._zygote
        if zygote is None:
            return
        if has_exited(zygote.pidfd):
            self._replace_zygote("the zygote was lost; a new one is being made, no rank was touched")
            return
        while (self._asked or not zygote.has_reported) and _is_readable(zygote.channel):
            self._hear()
            if self._zygote is not zygote:
                return
        self.prepare(self._wanted)

    def children(self) -> set[int]:
        """See :class:`WorkerStarter`."""
        own = {parked.pid for parked in self._parked}
        return own | ({self._zygote.pid} if self._zygote is not None else set())

    def close(self) -> None:
        """See :class:`WorkerStarter`."""
        self._wanted = 0
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        while self._parked:
            self._discard(self._parked.popleft())

    # ---- parked workers ---------------------------------------------------------------------------------

    def _take(self, order: WorkerOrder) -> _Parked | None:
        """A live parked worker; waits for one that is being made, and gives up rather than hold up the start."""
        wanted = read_at_import(order.environment)
        while True:
            if self._import_time not in (None, wanted):
                # Torch read some of these when the zygote imported it; where they have changed since, start anew.
                self._replace_zygote(None, order.environment)
            while self._parked:
                parked = self._parked.popleft()
                if not has_exited(parked.pidfd):
                    return parked
                self._discard(parked)
            zygote = self._zygote
            if zygote is None or not self._is_ready(zygote):
                return None
            if self._import_time != wanted:
                continue
            if not self._asked:
                self.prepare(max(1, self._wanted))
            if not self._asked or not _wait_readable(zygote, _PATIENCE_SECONDS):
                self._replace_zygote("the zygote does not answer; spawning this worker, a new zygote is being made")
                return None
            self._hear()

    def _is_ready(self, zygote: Zygote) -> bool:
        """Whether the zygote has imported everything. Waits for that, but once: large modules take their time."""
        if not zygote.has_reported and not zygote.was_waited_for:
            zygote.was_waited_for = True
            if _wait_readable(zygote, _PATIENCE_SECONDS):
                self._hear()
            elif self._zygote is zygote:
                self._say("the zygote is still importing; until it is ready, workers are spawned")
        return zygote.has_reported and self._zygote is zygote

    def _hear(self) -> None:
        """Take one message from the zygote: its report, or a parked worker."""
        zygote = self._zygote
        assert zygote is not None
        if not zygote.has_reported:
            zygote.read_report()
            self._import_time = zygote.import_time
            if zygote.unsafe is not None:
                self._switch_off(zygote.unsafe)
            return
        try:
            word, descriptors, _, _ = socket.recv_fds(zygote.channel, len(b"parked"), 1)
        except OSError:
            word, descriptors = b"", []
        if not word or not descriptors:
            self._replace_zygote("the zygote was lost; a new one is being made, no rank was touched")
            return
        self._asked -= 1
        parked = _Parked(socket.socket(fileno=descriptors[0]))
        ready = receive_frame(parked.link)
        pidfd = None if ready is None else open_pidfd(ready["pid"])
        if pidfd is None:
            parked.link.close()
            return
        parked.pid, parked.pidfd = ready["pid"], pidfd
        self._parked.append(parked)

    def _discard(self, parked: _Parked) -> None:
        send_signal(parked.pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(parked.pid, 0)
        os.close(parked.pidfd)
        parked.link.close()

    # ---- the zygote -------------------------------------------------------------------------------------

    def _replace_zygote(self, said: str | None, environment: dict[str, str] | None = None) -> None:
        """Make a new one, by exec; not for ever, where it ends before it is ready or cannot get its variables."""
        is_unready = self._zygote is not None and not self._zygote.has_reported
        self._failures = self._failures + 1 if is_unready or environment is not None else 0
        if self._failures > _MOST_FAILURES:
            self._switch_off("the zygote does not come up")
            return
        if self._zygote is not None:
            self._zygote.close()
        while environment is not None and self._parked:  # they were made with the wrong environment
            self._discard(self._parked.popleft())
        if said is not None:
            self._say(said)
        self._asked = 0
        if environment is not None:
            self._import_time = None
        with import_environment(environment):
            self._zygote = Zygote.by_exec(self._preload)
        self.prepare(self._wanted)

    def _switch_off(self, why: str) -> None:
        if not self._is_off:
            self._is_off = True
            self._say(f"warm start is off: {why}; workers are spawned instead (said once)")
        self.close()


def _order(launch: Launch) -> WorkerOrder | None:
    """The launch as an order, None where only exec will do."""
    program, *arguments = launch.command
    if program != sys.executable or arguments[:1] != ["-u"] or launch.numa_options is not None:
        return None
    is_module = arguments[1] == "-m"
    argv = tuple(arguments[2:] if is_module else arguments[1:])
    if not argv or argv[0].startswith("-"):
        return None
    environment = {**os.environ, **launch.environment}
    return WorkerOrder(argv, is_module, environment, launch.stdout, launch.stderr)


def _is_readable(link: socket.socket) -> bool:
    poller = select.poll()
    poller.register(link, select.POLLIN)
    return bool(poller.poll(0))


def _wait_readable(zygote: Zygote, timeout_seconds: float) -> bool:
    """Whether the zygote speaks before the time is up, and before it dies."""
    ready = wait_for_exit([zygote.channel.fileno(), zygote.pidfd], timeout_seconds)
    return zygote.channel.fileno() in ready
