"""The monitor side-process: one per node, one RankMonitor per local rank, no torch.

It is told whom to watch by its parent over a socket pair (JSON messages, pidfds attached, never pickle), looks
at the cells, and on a verdict writes down what is known, terminates, and tells its parent. It holds no state
that matters: one that is killed is replaced, and the next one carries on from the cells.

When its parent dies it ends the sessions of the ranks it was told about, removes the run folder and goes.
"""

from __future__ import annotations

import array
import collections
import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from launcher.incidents.incident import Incident
from launcher.incidents.incident_writer import SLOWEST_WRITE_SECONDS, IncidentWriter
from launcher.incidents.source_lines import SourceReader
from launcher.monitor.keeping import StoppedLauncher
from launcher.monitor.lost_time import MONITOR, LostTime
from launcher.monitor.near_miss import NearMiss
from launcher.monitor.rank_monitor import RankMonitor, WatchOrder
from launcher.monitor.rounds import Findings, Rounds
from launcher.monitor.termination import Reporter, condemn
from launcher.processes.background import Background
from launcher.processes.handles import end_sessions, has_exited, send_signal
from launcher.processes.leftovers import end_marked
from launcher.processes.proc import process_status
from launcher.records import console
from launcher.records.console import say
from resilience_core.monitoring.cell import Cell, CellError
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.prctl import die_with_parent, set_process_name

__all__ = ["MESSAGE_SIZE", "Monitor", "main"]

MESSAGE_SIZE = 1 << 16
_MOST_UNSENT = 64
_LOOK_FOR_PARTS_NS = NS_PER_SECOND // 2


class Monitor:
    """The loop: sleep until the nearest deadline, look, believe only what is seen twice, act."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._channel = socket.socket(fileno=settings["channel"])
        self._parent = settings["parent_pidfd"]
        self._ranks: dict[tuple[int, int], RankMonitor] = {}
        self._sessions: dict[int, set[int]] = {}  # by generation
        self._settled: set[int] = set()
        """Generations of which the launcher was told a verdict: it ends all of their ranks, whoever else is late."""
        self._orders: collections.deque[tuple[dict[str, Any], list[int]]] = collections.deque()
        """What the parent has said and what is still to be done; a verdict in preparation is not disturbed by it."""
        self._unsent: collections.deque[bytes] = collections.deque(maxlen=_MOST_UNSENT)
        self._parent_is_alive = True
        self._told_to_stop = False
        self._look_for_parts_ns = 0
        self._missing: collections.deque[list[str]] = collections.deque(maxlen=1)
        # A thread of its own: where the run folder is on a file system that hangs, only this one does.
        self._parts_looker = Background("ft_parts", 1)
        self._parts_looker.start()
        self._parent_pid = os.getppid()
        self._stopped = StoppedLauncher()
        self._lost = LostTime(settings["lost_time"])
        self._writer = IncidentWriter(settings["log_folder"])
        self._sources = SourceReader()
        self._rounds: Rounds[RankMonitor] = Rounds(
            self._clock,
            lambda ns: time.sleep(ns / NS_PER_SECOND),
            self._lost.freezes,
            _smallest_limit_ns(settings["config"]),
        )
        self._poll = select.epoll()
        self._poll.register(self._channel, select.EPOLLIN)
        self._poll.register(self._parent, select.EPOLLIN)

    def run(self) -> None:
        """Watch until told to stop, or the parent dies."""
        self._clock()
        while not self._told_to_stop and self._parent_is_alive:
            now_ns = self._clock()
            look_at_ns = now_ns + self._rounds.time_until_next_look(self._judged(), now_ns)
            kills_ns = [rank.kill_at_ns for rank in self._ranks.values() if rank.kill_at_ns is not None]
            look_at_ns = min([look_at_ns, *kills_ns])
            beat_ns = self._lost.suit_limit(self._rounds.smallest_limit_ns)
            while not self._listen(min(beat_ns, look_at_ns - now_ns)):
                now_ns = self._clock()
                if now_ns >= look_at_ns:
                    break
            now_ns = self._clock()
            self._kill_survivors(now_ns)
            findings = self._rounds.look(self._judged())
            if findings is not None:
                self._condemn(findings)
            self._look_for_parts(now_ns)
            for rank in self._ranks.values():
                while rank.notes:
                    self._tell({"note": rank.notes.pop(0), "generation": rank.order.generation})
            self._send_unsent()
        if not self._parent_is_alive:
            self._clean_up_after_parent()
        self._writer.finish(SLOWEST_WRITE_SECONDS)

    def _clock(self) -> int:
        now_ns = time.monotonic_ns()
        self._lost.beat(MONITOR, now_ns)
        return now_ns

    def _judged(self) -> list[RankMonitor]:
        """Those whose limits count: of a generation that is being ended there are no more verdicts."""
        return [rank for rank in self._ranks.values() if rank.order.generation not in self._settled]

    # ---- acting -----------------------------------------------------------------------------------------

    def _condemn(self, findings: Findings[RankMonitor]) -> None:
        generation, config = findings.cases[0].rank.order.generation, self._settings["config"]
        if self._is_being_ended(generation):
            self._obey()
            return
        longest_seconds = 2 * config["stack_capture_timeout"] + SLOWEST_WRITE_SECONDS  # stacks, and their source
        self._lost.announce_work(findings.seen_ns + int(longest_seconds * NS_PER_SECOND))

        def tell_incident(incident: Incident, condemned: Sequence[int], problem: str | None) -> None:
            report = {"incident": incident.to_json(), "condemned": condemned, "problem": problem}
            self._tell({**report, "generation": generation})

        def tell_near_misses(near_misses: Sequence[NearMiss]) -> None:
            self._tell({"near_misses": [miss._asdict() for miss in near_misses], "generation": generation})

        reporter = Reporter(tell_incident, tell_near_misses, lambda: self._is_being_ended(generation))
        everybody = [rank for rank in self._ranks.values() if rank.order.generation == generation]
        signalled = condemn(findings, everybody, self._rounds, self._settings, self._writer, self._sources, reporter)
        self._lost.announce_work(0)
        if signalled:
            signalled_ns = self._clock()
            for rank in signalled:
                rank.kill_at_ns = signalled_ns + int(config["failure_stop_timeout"] * NS_PER_SECOND)
            if self._settings["owns_ranks"]:
                self._settled.add(generation)
            self._tell({"signalled_ns": signalled_ns, "verdict_ns": findings.seen_ns, "generation": generation})
        self._obey()

    def _kill_survivors(self, now_ns: int) -> None:
        """A condemned rank that survives its termination signal is killed."""
        for rank in self._ranks.values():
            if rank.kill_at_ns is not None and now_ns >= rank.kill_at_ns:
                rank.kill_at_ns = None
                view = rank.view()
                # A successor that has taken over the cell meanwhile is not the one that was condemned.
                pidfd = rank.pidfd(view) if view is not None and rank.is_condemned(view) else None
                if pidfd is not None and not has_exited(pidfd):
                    send_signal(pidfd, signal.SIGKILL)

    def _look_for_parts(self, now_ns: int) -> None:
        """Report what is missing from the run folder, again and again until the parent has mended it."""
        while self._missing:
            self._tell({"missing": self._missing.popleft()})
        if now_ns < self._look_for_parts_ns or not self._settings["parts"]:
            return
        self._look_for_parts_ns = now_ns + _LOOK_FOR_PARTS_NS
        self._look_at_parent(now_ns)
        # A cell that has been opened is not looked up any more.
        unopened = [r.order.cell for r in self._ranks.values() if (view := r.view()) is not None and view.pid == 0]
        paths = [*self._settings["parts"], *unopened]

        def look() -> None:
            if missing := [path for path in paths if not os.path.exists(path)]:
                self._missing.append(missing)

        if self._parts_looker.is_started:
            self._parts_looker.submit(look)  # no room: the last look hangs

    # ---- the parent -------------------------------------------------------------------------------------

    def _look_at_parent(self, now_ns: int) -> None:
        status = process_status(self._parent_pid)
        if self._stopped.look(now_ns, status is not None and status.is_stopped):
            say(
                f"the launcher (pid {self._parent_pid}) is stopped: hung ranks are found and ended, but nothing is "
                f"restarted until it goes on (kill -CONT {self._parent_pid})"
            )
            self._tell({"launcher_stopped_ns": now_ns})

    def _listen(self, sleep_ns: int) -> bool:
        """Sleep, but hear the parent; whether it was heard."""
        # epoll counts in milliseconds. Less than one is slept without hearing the parent: a look that waits for the
        # next whole one is half a millisecond late on average.
        milliseconds, rest_ns = divmod(max(0, sleep_ns), 1_000_000)
        heard = self._poll.poll(milliseconds / 1000)
        if not heard and not milliseconds:
            time.sleep(rest_ns / NS_PER_SECOND)
        for descriptor, _ in heard:
            if descriptor == self._parent:
                self._parent_is_alive = False
            else:
                self._read_orders()
                self._obey()
        return bool(heard)

    def _is_being_ended(self, generation: int) -> bool:
        """Whether the launcher has said meanwhile that it ends a generation, which it does before it signals a rank."""
        self._read_orders()
        return any(message.get("forget") == generation for message, _ in self._orders)

    def _read_orders(self) -> None:
        while True:
            try:
                raw, descriptors = _receive(self._channel)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it died with reports unread; what it has sent before can still be read
                continue
            if not raw:
                with contextlib.suppress(FileNotFoundError):  # known already
                    self._poll.unregister(self._channel)
                return
            self._orders.append((json.loads(raw), descriptors))

    def _obey(self) -> None:
        while self._orders:
            message, descriptors = self._orders.popleft()
            if "watch" in message:
                self._watch(WatchOrder(**message["watch"]), descriptors, message["is_leader"])
            elif "run_folders" in message:
                self._settings.update(message)
            elif "forget" in message:
                self._forget(message["forget"])
                if message["is_over"]:
                    self._sessions.pop(message["forget"], None)
                    self._settled.discard(message["forget"])
            elif "stop" in message:
                self._told_to_stop = True

    def _watch(self, order: WatchOrder, descriptors: list[int], is_session_leader: bool) -> None:
        """Watch a rank from now on.

        Args:
            order: Which, and what to hold it to.
            descriptors: Its cell, and the pidfd of its worker where that is known.
            is_session_leader: Whether that worker leads a session, to be ended should the parent die.
        """
        key = (order.generation, order.local_rank)
        if key in self._ranks and self._ranks[key].is_told_again(order, descriptors):
            return  # as a successor may be: what it has done since is not undone
        if key in self._ranks:
            self._ranks.pop(key).close()
        try:
            cell = Cell.from_descriptor(descriptors.pop(0))
        except (IndexError, CellError) as error:  # without room for one more descriptor the kernel drops them
            why = "no descriptor of its cell arrived" if isinstance(error, IndexError) else str(error)
            self._tell({"note": f"rank {order.rank} is not watched: {why}", "generation": order.generation})
            cell = None
        worker_pidfd = descriptors.pop(0) if descriptors else None
        if cell is not None:
            self._ranks[key] = RankMonitor(order, cell, worker_pidfd, time.monotonic_ns())
        if is_session_leader:
            self._sessions.setdefault(order.generation, set()).add(order.pid)

    def _forget(self, generation: int) -> None:
        for key in [key for key in self._ranks if key[0] == generation]:
            self._ranks.pop(key).close()

    def _tell(self, message: dict[str, Any]) -> None:
        self._unsent.append(json.dumps(message).encode("utf-8"))
        self._send_unsent()

    def _send_unsent(self) -> None:
        """Send what the parent has room for; the rest waits for one of the next rounds."""
        while self._unsent:
            try:
                self._channel.send(self._unsent[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):  # nobody is left to be told
                self._unsent.clear()
                return
            except OSError as error:  # too long for one message; the parent sees the ranks end all the same
                say(f"the monitor could not report an incident: {error.strerror}")
            self._unsent.popleft()

    def _clean_up_after_parent(self) -> None:
        if self._settings["owns_ranks"]:
            for rank in self._ranks.values():
                view = rank.view()
                pidfd = rank.pidfd(view) if view is not None else None
                if pidfd is not None:
                    send_signal(pidfd, signal.SIGKILL)
            end_sessions(set().union(*self._sessions.values()), timeout_seconds=5.0)
        for path in self._settings["run_folders"]:
            _remove_folder(path)
        if self._settings["owns_ranks"]:
            # Last, since to look at a process that is stuck may take for ever.
            end_marked(self._settings["run_folders"], timeout_seconds=5.0)


def _smallest_limit_ns(config: dict[str, Any]) -> int:
    names = ("initial_rank_heartbeat_timeout", "rank_heartbeat_timeout", "rank_out_of_section_timeout")
    limits = [*(config[name] for name in names), *config["rank_section_timeouts"].values()]
    return int(min((limit for limit in limits if limit is not None), default=0) * NS_PER_SECOND)


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One message and the descriptors that came with it."""
    room = socket.CMSG_SPACE(4 * array.array("i").itemsize)
    raw, ancillary, _, _ = channel.recvmsg(MESSAGE_SIZE, room, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return raw, list(descriptors)


def _remove_folder(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def main(settings_text: str) -> None:
    """Run as a process of its own; ``launcher.agent.monitor_handle`` starts it.

    Args:
        settings_text: JSON: ``channel``, ``parent_pidfd`` and ``lost_time`` (inherited descriptors), ``run_folders``,
            ``parts`` (paths that must exist), ``log_folder``, ``owns_ranks``, ``py_spy``, ``config``.
    """
    set_process_name("ft_monitor")
    # A monitor that is stopped when its parent dies must wake to clean up after it.
    die_with_parent(signal.SIGCONT)
    settings = json.loads(settings_text)
    console.set_level(settings["config"]["log_level"])
    console.start()
    Monitor(settings).run()
    console.finish(0.1)
    # Nothing here needs an interpreter's orderly end, and the launcher waits for ours.
    os._exit(0)
