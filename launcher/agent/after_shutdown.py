"""Ranks that have shut monitoring down and whose processes go on: in an exit that hangs, or in work that takes long.

``shutdown_workload_monitoring()`` means that a rank may take as long as it likes: a last checkpoint may be on its way
to a store that is far away, and nothing from outside tells that from a thread that never ends. So by default nobody is
killed; once in a job it is said that nobody watches. ``--ft-rank-exit-timeout`` is for those who know how long the
rest may take.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from launcher.agent.py_spy import find_py_spy
from launcher.incidents.frames import Thread, main_thread
from launcher.incidents.phrases import SHORT_STACK
from launcher.incidents.stacks import take_stacks
from launcher.monitor.lost_time import Freeze, moved_by_ns
from launcher.processes.evidence import look_at
from launcher.processes.handles import has_exited, send_signal
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["LOOK_SECONDS", "NOTICE_SECONDS", "AfterShutdown", "Leaving", "Overstayed"]

LOOK_SECONDS = 1.0
NOTICE_SECONDS = 300.0


class Leaving(NamedTuple):
    """A worker that runs although its rank has shut monitoring down."""

    rank: int
    pid: int
    pidfd: int


class Overstayed(NamedTuple):
    """One that was killed."""

    why: str
    stack: tuple[Thread, ...]


class AfterShutdown:
    """The clocks of one generation's ranks.

    Args:
        config: The limit, and whether stacks may be taken.
        leaving: Who they are at this moment, by local rank.
        freezes: When everybody lost time, oldest first, as of an instant.
    """

    def __init__(
        self,
        config: FaultToleranceConfig,
        leaving: Callable[[], Mapping[int, Leaving]],
        freezes: Callable[[int], Iterable[Freeze]],
    ) -> None:
        self._config = config
        self._leaving = leaving
        self._freezes = freezes
        self._since_ns: dict[int, int] = {}
        self.killed: dict[int, Overstayed] = {}
        """By local rank."""
        self._next_look_ns = 0

    @property
    def due_seconds(self) -> float | None:
        """In how many seconds to look again; None where nothing depends on it."""
        return LOOK_SECONDS if self._config.rank_exit_timeout is not None else None

    def look(self, now_ns: int) -> list[str]:
        """Kill whoever has had its time; no more than once a second, since each look reads all cells.

        Returns:
            What to say, most often nothing.
        """
        if now_ns < self._next_look_ns:
            return []
        self._next_look_ns = now_ns + int(LOOK_SECONDS * NS_PER_SECOND)
        # One that monitors again begins anew.
        self._since_ns = {local_rank: self._since_ns.get(local_rank, now_ns) for local_rank in self._leaving()}
        said: list[str] = []
        for local_rank in self._overdue(now_ns):
            said += self._kill(local_rank)
        return said

    def unlimited(self, now_ns: int) -> str | None:
        """Return what to say about ranks that nothing limits and that take long; None where there are none."""
        if self._config.rank_exit_timeout is not None or self._config.unmonitored_notice_after is None:
            return None
        late = [n for n, since_ns in self._since_ns.items() if now_ns - since_ns >= NOTICE_SECONDS * NS_PER_SECOND]
        leaving = self._leaving() if late else {}
        names = ", ".join(str(leaving[local_rank].rank) for local_rank in sorted(late) if local_rank in leaving)
        if not names:
            return None
        return (
            f"rank {names} has shut monitoring down {NOTICE_SECONDS:g} s ago and its process goes on: a hang of it is "
            "not seen from here on. That may be right, a last upload takes its time; --ft-rank-exit-timeout SECONDS "
            "limits it (said once)"
        )

    def _overdue(self, now_ns: int) -> list[int]:
        if self._config.rank_exit_timeout is None or not self._since_ns:
            return []
        limit_ns, freezes = int(self._config.rank_exit_timeout * NS_PER_SECOND), list(self._freezes(now_ns))
        return [
            local_rank
            for local_rank, since_ns in self._since_ns.items()
            if local_rank not in self.killed
            and now_ns >= since_ns + limit_ns + moved_by_ns(since_ns, since_ns + limit_ns, freezes)
        ]

    def _kill(self, local_rank: int) -> list[str]:
        seen = self._leaving().get(local_rank)
        stack = self._stack_of(seen.pid) if seen is not None else ()
        leaving = self._leaving().get(local_rank)  # it may have begun to monitor again, or have ended, meanwhile
        if leaving is None or has_exited(leaving.pidfd) or _is_ending(leaving.pid):
            return []
        if not send_signal(leaving.pidfd, signal.SIGKILL):
            return []
        limit = f"limit {self._config.rank_exit_timeout:g} s (configured: --ft-rank-exit-timeout)"
        self.killed[local_rank] = Overstayed(
            f"it had shut monitoring down and its process did not end; {limit}; SIGKILL", stack
        )
        thread = main_thread(stack)
        return [
            f"rank {leaving.rank} (pid {leaving.pid}) has shut monitoring down and its process has not ended; {limit}; "
            "SIGKILL. A thread that is no daemon, or an atexit function, may be stuck",
            *(f"  stack   {frame}" for frame in (thread.frames[:SHORT_STACK] if thread is not None else ())),
        ]

    def _stack_of(self, pid: int) -> tuple[Thread, ...]:
        """Return where it stands; only py-spy tells, since it has stopped to answer."""
        py_spy = find_py_spy() if self._config.capture_stacks else None
        if py_spy is None:
            return ()
        return take_stacks({0: pid}, py_spy=py_spy, timeout_seconds=self._config.stack_capture_timeout).get(0, ())


def _is_ending(pid: int) -> bool:
    """Return whether it ends by itself already, which a signal would not change."""
    look = look_at(pid)
    return look is None or look.exit_code is not None
