"""Fence this node: kill its ranks when its lease has run out, whatever the launcher and the monitor's loop do.

A node that is cut off from the majority of nodes must not write any more once its lease is over, because others go on
in its place. The launcher may be stopped then, and the monitor's loop may be taking stacks for seconds, so a thread of
its own reads the deadline (:mod:`launcher.nodes.fence`) and acts. It has its own descriptors of the ranks.

Lost time (:mod:`launcher.monitor.lost_time`) is not given back: while this node stood still, others did not.

The fence is a state and not an event. As long as the deadline is in the past, whatever rank appears is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from launcher.monitor.messages import Fenced
from launcher.nodes.fence import read_lease
from launcher.processes.background import Background
from launcher.processes.handles import end_sessions, send_signal
from launcher.processes.leftovers import end_carriers, end_marked
from launcher.records.console import ERROR, announce
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["Fence", "start_fence"]

_LONGEST_SLEEP_NS = NS_PER_SECOND // 2
"""Between two looks at the word; it may be set to an earlier time."""
_LONGEST_CLOSE_SECONDS = 5.0
_ROUND_SECONDS = 1.0
"""How long one round waits for what it has killed."""
_TRY_AGAIN_NS = NS_PER_SECOND // 20


class _Rank(NamedTuple):
    session: int
    """0 where the worker leads none."""
    pidfd: int | None


class Fence:
    """The thread, and whom it kills.

    Args:
        descriptor: Of the lease's word, inherited.
        tell: Called from the thread, before anybody is killed: the launcher finds the report when it sees a rank end.
        run_folders: Returns the run folders, which mark ranks that the monitor was not told about.
        later_ns: How long after the end of the lease to act.
    """

    def __init__(
        self,
        descriptor: int,
        tell: Callable[[Fenced], object],
        run_folders: Callable[[], Collection[str]],
        later_ns: int = 0,
    ) -> None:
        self._descriptor, self._tell, self._run_folders = descriptor, tell, run_folders
        self._later_ns = later_ns
        self._lock = threading.Lock()
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._known_ns = 0
        """What the word said when it was last whole."""
        self._is_damaged = False
        self._has_failed = False
        self._reported: tuple[int, int] | None = None
        self._is_closed = False
        # Waited for with poll(2), which goes by the monotonic clock; a lock's timeout may not.
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # To look at a process that is stuck may take for ever; then only this one hangs.
        self._searcher = Background("ft_fence_search", 1)
        self._launcher = os.getppid()
        self._thread = threading.Thread(target=self._run, name="ft_fence", daemon=True)

    def start(self) -> None:
        """Start the thread; RuntimeError where the system refuses it."""
        self._thread.start()

    # ---- from the monitor's loop ------------------------------------------------------------------------

    def add(self, generation: int, local_rank: int, session: int, pidfd: int | None) -> None:
        """Have a rank killed when the lease has run out, at once where it has.

        Args:
            generation: Of the rank.
            local_rank: In place of one with the same generation and number.
            session: That its worker leads; 0 for none.
            pidfd: Of its worker, where known; it is copied.
        """
        copy = None
        if pidfd is not None:
            with contextlib.suppress(OSError):  # no descriptor is left: it is found by its session
                copy = os.dup(pidfd)
        with self._lock:
            former = self._ranks.get((generation, local_rank))
            self._ranks[generation, local_rank] = _Rank(session, copy)
            _close(former)
        self._poke()

    def forget(self, generation: int) -> None:
        """Forget the ranks of a generation of which nothing runs any more."""
        with self._lock:
            for key in [key for key in self._ranks if key[0] == generation]:
                _close(self._ranks.pop(key))

    def close(self) -> None:
        """End the thread, after the round that it may be in."""
        self._is_closed = True
        self._poke()
        if self._thread.ident is not None:
            self._thread.join(_LONGEST_CLOSE_SECONDS)
            if self._thread.is_alive():
                return  # it is stuck in a round, and needs its descriptors; the process is about to end
        with self._lock:
            for rank in self._ranks.values():
                _close(rank)
            self._ranks.clear()
        os.close(self._wake)

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wake, 1)

    # ---- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._is_closed:
            try:
                sleep_ns = self._look()
            except Exception as error:  # noqa: BLE001 - no descriptor is left, say; the next look is due, whatever it is
                if not self._has_failed:
                    self._has_failed = True
                    said = f"the fence of this node could not do all that it should: {error!r}; trying on"
                    announce(said, event="fence")
                sleep_ns = _TRY_AGAIN_NS
            # Rounded up, else it would spin in the last millisecond.
            if poll.poll(-(-sleep_ns // 1_000_000)):
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)

    def _look(self) -> int:
        """Kill if the lease has run out; return for how many nanoseconds to sleep at most."""
        left_ns = self._left_ns()
        if left_ns is not None and left_ns <= 0:
            left_ns = self._left_ns()  # believed when it is seen twice
            if left_ns is not None and left_ns <= 0:
                self._kill(-left_ns)
                return _LONGEST_SLEEP_NS
        return _LONGEST_SLEEP_NS if left_ns is None else max(0, min(left_ns, _LONGEST_SLEEP_NS))

    def _left_ns(self) -> int | None:
        """Return how long the lease goes on; None while no fence is in force."""
        word = read_lease(self._descriptor)
        if word is not None:
            self._known_ns, self._is_damaged = word, False
        elif not self._is_damaged:
            self._is_damaged = True
            left = (self._known_ns - time.monotonic_ns()) / NS_PER_SECOND
            stays = f"the deadline that it had, in {left:.1f} s, stays in force" if self._known_ns else "none is known"
            said = f"the file with the lease of this node is damaged: {stays} until it is written again"
            announce(said, event="fence")
        return self._known_ns + self._later_ns - time.monotonic_ns() if self._known_ns else None

    def _kill(self, late_ns: int) -> None:
        with self._lock:
            generation = max((key[0] for key in self._ranks), default=-1)
            if is_new := self._reported != (generation, self._known_ns):
                self._reported = generation, self._known_ns
                self._tell(Fenced(generation, late_ns))
            for rank in self._ranks.values():
                if rank.pidfd is not None:
                    send_signal(rank.pidfd, signal.SIGKILL)
            sessions = {rank.session for rank in self._ranks.values() if rank.session}
        if is_new and generation >= 0:
            announce(
                f"this node is cut off: its lease has run out, {late_ns / NS_PER_SECOND:.3f} s ago, and other nodes "
                "may go on in its place; its ranks are killed, so that nothing is written twice. None is started here "
                "until the launcher holds a lease again",
                level=ERROR,
                event="cut_off",
                generation=generation,
            )
        marks = tuple(self._run_folders())
        left = end_sessions(sessions, _ROUND_SECONDS) | end_carriers(marks, _ROUND_SECONDS)
        if is_new and left:
            said = f"{len(left)} processes of ranks were killed and are not gone: {sorted(left)}"
            announce(said, level=ERROR, event="not_gone", generation=generation)
        self._searcher.start()
        if self._searcher.is_started:
            self._searcher.submit(lambda: _search(marks, self._launcher))  # no room: the last search hangs


def start_fence(
    descriptor: int,
    tell: Callable[[Fenced], object],
    run_folders: Callable[[], Collection[str]],
    later_ns: int = 0,
) -> Fence:
    """Return a :class:`Fence` whose thread runs; the arguments are its.

    Raises:
        RuntimeError: The system refuses a thread.
    """
    fence = Fence(descriptor, tell, run_folders, later_ns)
    fence.start()
    return fence


def _search(marks: Collection[str], launcher: int) -> None:
    with contextlib.suppress(OSError):  # no descriptor is left; the next round searches again
        end_marked(marks, _ROUND_SECONDS, [launcher])


def _close(rank: _Rank | None) -> None:
    if rank is not None and rank.pidfd is not None:
        os.close(rank.pidfd)
