"""The monitor side-process: one per node, one RankMonitor per local rank, no torch.

It is told whom to watch by its parent over a socket pair (JSON messages, pidfds attached, never pickle), looks
at the cells, and on a verdict writes down what is known, terminates, and tells its parent. It holds no state
that matters: one that is killed is replaced, and the next one carries on from the cells.

When its parent dies it ends the sessions of the ranks it was told about, removes the run folder and goes.
"""

from __future__ import annotations

import array
import ctypes
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from launcher.condemn import condemn
from launcher.incident import Incident
from launcher.processes import end_sessions, has_exited, send_signal
from launcher.watch import RankMonitor, WatchOrder
from resilience_core.cell import SHUT_DOWN, UNUSED

__all__ = ["Monitor", "main"]

NS = 1_000_000_000
LONGEST_SLEEP_NS = NS // 2
"""How long a limit that was just learned may go unnoticed; costs two looks a second."""
OVERSLEPT_NS = NS // 4
DUE_TOGETHER_NS = NS // 10
SECOND_LOOK_SECONDS = 0.001
MESSAGE_SIZE = 1 << 16


class Monitor:
    """The loop: sleep until the nearest deadline, look, believe only what is seen twice, act."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._smallest_configured_ns = _smallest_limit_ns(settings["config"])
        self._channel = socket.socket(fileno=settings["channel"])
        self._parent = settings["parent_pidfd"]
        self._ranks: dict[tuple[int, int], RankMonitor] = {}
        self._sessions: dict[int, set[int]] = {}  # by generation
        self._parent_is_alive = True
        self._told_to_stop = False
        self._alive = _liveness_word(settings["alive"])
        self._poll = select.epoll()
        self._poll.register(self._channel, select.EPOLLIN)
        self._poll.register(self._parent, select.EPOLLIN)

    def run(self) -> None:
        """Watch until told to stop, or the parent dies."""
        looked_ns = time.monotonic_ns()
        while not self._told_to_stop and self._parent_is_alive:
            sleep_ns = self._time_until_next_look(time.monotonic_ns())
            self._listen(sleep_ns)
            now_ns = time.monotonic_ns()
            self._alive[0] = now_ns
            # From look to look, not from the moment of falling asleep: a freeze may hit anywhere in between.
            if now_ns - looked_ns - sleep_ns > OVERSLEPT_NS:
                for rank in self._ranks.values():
                    rank.give_back(now_ns - looked_ns)
            looked_ns = now_ns
            if self._look(now_ns):
                looked_ns = time.monotonic_ns()
        if not self._parent_is_alive:
            self._clean_up_after_parent()

    # ---- looking ----------------------------------------------------------------------------------------

    def _time_until_next_look(self, now_ns: int) -> int:
        wake_ns = now_ns + LONGEST_SLEEP_NS
        for rank in self._ranks.values():
            view = rank.view()
            if rank.kill_at_ns is not None:
                wake_ns = min(wake_ns, rank.kill_at_ns)
            if rank.is_condemned(view) or rank.is_gone(view):
                continue  # a successor that takes over the cell is found at one of the regular looks
            wake_ns = min(wake_ns, rank.next_deadline_ns(view))
            # A rank that has not claimed its cell yet may open a section at any moment, under the configured limits.
            smallest_ns = view.smallest_limit_ns if view.state != UNUSED else self._smallest_configured_ns
            if smallest_ns and view.state != SHUT_DOWN:
                wake_ns = min(wake_ns, now_ns + smallest_ns // 2)
        return max(0, wake_ns - now_ns)

    def _look(self, now_ns: int) -> bool:
        """Judge every rank; condemn who is late.

        Returns:
            Whether something was done that takes time.
        """
        self._kill_survivors(now_ns)
        watched = [r for r in self._ranks.values() if not (r.is_condemned(v := r.view()) or r.is_gone(v))]
        late = [rank for rank in watched if rank.verdict(rank.view(), now_ns) is not None]
        if not late:
            return False
        first_look = {rank: rank.verdict(rank.view(), now_ns) for rank in late}
        time.sleep(SECOND_LOOK_SECONDS)
        later_ns = time.monotonic_ns()
        if later_ns - now_ns > OVERSLEPT_NS:
            return False  # frozen between the looks: the next round gives the time back first
        late = [r for r in late if r.verdict(v := r.view(), later_ns) == first_look[r] and not r.is_gone(v)]
        if late:
            self._condemn(late, watched, later_ns)
        return bool(late)

    def _condemn(self, late: list[RankMonitor], watched: list[RankMonitor], now_ns: int) -> None:
        doomed = late + [
            rank
            for rank in watched
            if rank not in late
            and rank.next_deadline_ns(view := rank.view()) <= now_ns + DUE_TOGETHER_NS
            and not rank.is_gone(view)
        ]
        generation = doomed[0].order.generation
        # Also those that have ended: one that left early may be what the others wait for.
        everybody = [rank for rank in self._ranks.values() if rank.order.generation == generation]

        def tell(incident: Incident, problem: str | None) -> None:
            condemned = [rank.order.local_rank for rank in doomed]
            report = {"incident": incident.to_json(), "condemned": condemned, "problem": problem}
            self._tell({**report, "generation": generation})

        condemn(doomed, everybody, now_ns, self._settings, tell)
        signalled_ns = time.monotonic_ns()
        for rank in doomed:
            rank.kill_at_ns = signalled_ns + int(self._settings["config"]["failure_stop_timeout"] * NS)
        self._tell({"signalled_ns": signalled_ns, "verdict_ns": now_ns, "generation": generation})

    def _kill_survivors(self, now_ns: int) -> None:
        """A condemned rank that survives its termination signal is killed."""
        for rank in self._ranks.values():
            if rank.kill_at_ns is not None and now_ns >= rank.kill_at_ns:
                rank.kill_at_ns = None
                pidfd = rank.pidfd(rank.view())
                if pidfd is not None and not has_exited(pidfd):
                    send_signal(pidfd, signal.SIGKILL)

    # ---- the parent -------------------------------------------------------------------------------------

    def _listen(self, sleep_ns: int) -> None:
        # Rounded up: waking a little after the deadline finds it passed, waking before finds nothing.
        for descriptor, _ in self._poll.poll((sleep_ns + 999_999) // 1_000_000 / 1000):
            if descriptor == self._parent:
                self._parent_is_alive = False
            else:
                self._read_orders()

    def _read_orders(self) -> None:
        while True:
            try:
                raw, descriptors = _receive(self._channel)
            except BlockingIOError:
                return
            if not raw:
                self._poll.unregister(self._channel)
                return
            message = json.loads(raw)
            if "watch" in message:
                self._watch(
                    WatchOrder(**message["watch"]),
                    descriptors[0] if descriptors else None,
                    message["is_leader"],
                )
            elif "forget" in message:
                self._forget(message["forget"])
                if message["is_over"]:
                    self._sessions.pop(message["forget"], None)
            elif "stop" in message:
                self._told_to_stop = True

    def _watch(self, order: WatchOrder, worker_pidfd: int | None, is_session_leader: bool) -> None:
        key = (order.generation, order.local_rank)
        if key in self._ranks:
            self._ranks.pop(key).close()
        self._ranks[key] = RankMonitor(order, worker_pidfd, time.monotonic_ns())
        if is_session_leader:
            self._sessions.setdefault(order.generation, set()).add(order.pid)

    def _forget(self, generation: int) -> None:
        for key in [key for key in self._ranks if key[0] == generation]:
            self._ranks.pop(key).close()

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(json.dumps(message).encode("utf-8"), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            # The parent is busy or gone. It sees the ranks end all the same, and the incident is on disk.
            print(f"ft_launcher: the monitor could not report an incident: {error}", file=sys.stderr)

    def _clean_up_after_parent(self) -> None:
        if not self._settings["owns_ranks"]:
            _remove_folder(self._settings["run_folder"])
            return
        for rank in self._ranks.values():
            pidfd = rank.pidfd(rank.view())
            if pidfd is not None:
                send_signal(pidfd, signal.SIGKILL)
        end_sessions(set().union(*self._sessions.values()), timeout_seconds=5.0)
        _remove_folder(self._settings["run_folder"])


def _smallest_limit_ns(config: dict[str, Any]) -> int:
    names = ("initial_rank_heartbeat_timeout", "rank_heartbeat_timeout", "rank_out_of_section_timeout")
    limits = [*(config[name] for name in names), *config["rank_section_timeouts"].values()]
    return int(min((limit for limit in limits if limit is not None), default=0) * NS)


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One message and the descriptors that came with it."""
    room = socket.CMSG_SPACE(4 * array.array("i").itemsize)
    raw, ancillary, _, _ = channel.recvmsg(MESSAGE_SIZE, room, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return raw, list(descriptors)


def _liveness_word(path: str) -> memoryview:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(descriptor, 8)).cast("q")
    finally:
        os.close(descriptor)


def _remove_folder(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def main(settings_text: str) -> None:
    """Run as a process of its own; ``launcher.monitor_process`` starts it.

    Args:
        settings_text: JSON: ``channel`` and ``parent_pidfd`` (inherited descriptors), ``alive`` (the liveness
            word's file), ``run_folder``, ``log_folder``, ``owns_ranks``, ``py_spy``, ``config``.
    """
    with open("/proc/self/comm", "w") as file:
        file.write("ft_monitor")
    # A monitor that is stopped when its parent dies must wake to clean up after it.
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGCONT), 0, 0, 0)
    Monitor(json.loads(settings_text)).run()
    # Nothing here needs an interpreter's orderly end, and the launcher waits for ours.
    os._exit(0)
