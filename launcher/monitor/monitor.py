"""The monitor side-process: one per node, one RankMonitor per local rank, no torch.

Its parent tells it whom to watch over a socket pair (:mod:`launcher.monitor.messages`, pidfds attached). It looks at
the cells, and on a verdict writes down what is known, terminates, and tells its parent. It holds no state that
matters: one that is killed is replaced, and the next one carries on from the cells.

When its parent dies it ends the sessions of the ranks it was told about, removes the run folder and goes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from launcher.incidents.incident_writer import SLOWEST_WRITE_SECONDS, IncidentWriter
from launcher.incidents.machine import MachineEvidence
from launcher.incidents.source_lines import SourceReader
from launcher.monitor.comebacks import Comebacks
from launcher.monitor.deadline_rules import DeadlineRules, Findings
from launcher.monitor.last_duties import clean_up, remove_folders
from launcher.monitor.lost_time import MONITOR, LostTime
from launcher.monitor.messages import (
    Forget,
    LauncherStopped,
    Look,
    MissingParts,
    MonitorSettings,
    Note,
    RunFolders,
    Signalled,
    Stop,
    Watch,
    WatchOrder,
)
from launcher.monitor.other_nodes import answer_briefly, busy_until_ns, look_for_others, reporter_to
from launcher.monitor.parent_channel import ParentChannel
from launcher.monitor.rank_monitor import RankMonitor
from launcher.monitor.replacement_rules import StoppedLauncher
from launcher.monitor.termination import terminate
from launcher.processes.background import Background
from launcher.processes.exit_codes import SUCCEEDED
from launcher.processes.handles import has_exited, send_signal
from launcher.processes.proc import process_status
from launcher.records import console
from launcher.records.console import announce
from resilience_core.protocol.cell import Cell, CellError
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.prctl import die_with_parent, set_process_name

if TYPE_CHECKING:
    from launcher.monitor.fencing import Fence

__all__ = ["Monitor", "main"]

_LOOK_FOR_PARTS_NS = NS_PER_SECOND // 2


class Monitor:
    """The loop: sleep until the nearest deadline, look, believe only what is seen twice, act."""

    def __init__(self, settings: MonitorSettings) -> None:
        self._settings = settings
        self._channel, self._parent = ParentChannel(settings.channel), settings.parent_pidfd
        self._ranks: dict[tuple[int, int], RankMonitor] = {}
        self._sessions: dict[int, set[int]] = {}  # by generation
        # Generations of which the launcher was told a verdict: it ends all of their ranks, whoever else is late.
        self._settled: set[int] = set()
        self._parent_is_alive, self._told_to_stop = True, False
        self._look_for_parts_ns = 0
        self._missing: collections.deque[list[str]] = collections.deque(maxlen=1)
        # A thread of its own: where the run folder is on a file system that hangs, only this one does.
        self._parts_looker = Background("ft_parts", 1)
        self._parts_looker.start()
        self._fence = self._start_fence(settings.lease)
        self._parent_pid, self._stopped = os.getppid(), StoppedLauncher()
        self._lost = LostTime(settings.lost_time)
        self._writer, self._sources, self._comebacks = IncidentWriter(settings.log_folder), SourceReader(), Comebacks()
        self._machine = MachineEvidence([settings.log_folder], nvml_bindings=settings.nvml_bindings)
        pause, smallest_ns = (lambda ns: time.sleep(ns / NS_PER_SECOND)), settings.config.smallest_limit_ns
        self._rules: DeadlineRules[RankMonitor] = DeadlineRules(self._clock, pause, self._lost.freezes, smallest_ns)
        self._looked: Findings[RankMonitor] = Findings([], {}, 0)  # what all ranks said when they were last looked at
        self._poll = select.epoll()
        for heard in (self._channel, self._parent):
            self._poll.register(heard, select.EPOLLIN)

    def run(self) -> None:
        """Watch until told to stop, or the parent dies."""
        self._clock()
        while not self._told_to_stop and self._parent_is_alive:
            now_ns = self._clock()
            kills_ns = [rank.kill_at_ns for rank in self._ranks.values() if rank.kill_at_ns is not None]
            look_at_ns = min([now_ns + self._rules.time_until_next_look(self._judged(), now_ns), *kills_ns])
            beat_ns = self._lost.suit_limit(self._rules.smallest_limit_ns)
            while not self._listen(min(beat_ns, look_at_ns - now_ns)):
                now_ns = self._clock()
                if now_ns >= look_at_ns:
                    break
            now_ns = self._clock()
            self._kill_survivors(now_ns)
            findings = self._rules.look(self._judged())
            self._comebacks.look(self._judged())
            if findings is not None:
                self._condemn(findings)
            self._look_for_parts(now_ns)
            for rank in self._ranks.values():
                while rank.notes:
                    self._channel.tell(Note(rank.order.generation, rank.notes.pop(0)))
            self._channel.send_unsent()
        if not self._parent_is_alive:
            self._clean_up_after_parent()
        self._writer.finish(SLOWEST_WRITE_SECONDS)

    def _start_fence(self, lease: int | None) -> Fence | None:
        if lease is None:
            return None
        from launcher.monitor.fencing import start_fence  # a node without a lease does without

        return start_fence(lease, self._channel.tell, lambda: self._settings.run_folders)

    def _clock(self) -> int:
        now_ns = time.monotonic_ns()
        self._lost.beat(MONITOR, now_ns)
        return now_ns

    def _judged(self) -> list[RankMonitor]:
        """Return those whose limits count: of a generation that is being ended there are no more verdicts."""
        return [rank for rank in self._ranks.values() if rank.order.generation not in self._settled]

    # ---- acting -----------------------------------------------------------------------------------------

    def _condemn(self, findings: Findings[RankMonitor]) -> None:
        generation, config = findings.cases[0].rank.order.generation, self._settings.config
        if self._channel.is_being_ended(generation):
            self._handle_orders()
            return
        self._lost.announce_work(busy_until_ns(findings.seen_ns, config))
        everybody = [rank for rank in self._ranks.values() if rank.order.generation == generation]
        report = reporter_to(self._channel, self._machine, everybody, findings, config, self._comebacks)
        means = self._rules, self._settings, self._writer, self._sources, report, self._comebacks
        signalled = terminate(findings, everybody, *means)
        self._lost.announce_work(0)
        self._looked = findings
        if signalled:
            signalled_ns = self._clock()
            for rank in signalled:
                rank.kill_at_ns = signalled_ns + int(config.failure_stop_timeout * NS_PER_SECOND)
            if self._settings.owns_ranks:
                self._settled.add(generation)
            self._channel.tell(Signalled(generation, signalled_ns, findings.seen_ns))
        self._handle_orders()

    def _look_for_others(self, order: Look) -> None:
        ranks = [rank for rank in self._judged() if rank.order.generation == order.generation]
        self._comebacks.look(ranks, read=True)
        if order.is_brief:
            answer_briefly(order.generation, ranks, self._looked, self._channel, self._comebacks)
            return
        self._lost.announce_work(busy_until_ns(self._clock(), self._settings.config))
        means = self._settings, self._sources, self._channel, self._machine, self._comebacks
        self._looked = look_for_others(order, ranks, *means)
        self._lost.announce_work(0)

    def _kill_survivors(self, now_ns: int) -> None:
        """Kill condemned ranks that survive their termination signal."""
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
            self._channel.tell(MissingParts(tuple(self._missing.popleft())))
        if now_ns < self._look_for_parts_ns or not self._settings.parts:
            return
        self._look_for_parts_ns = now_ns + _LOOK_FOR_PARTS_NS
        self._look_at_parent(now_ns)
        self._machine.look({})
        # A cell that has been opened is not looked up any more.
        unopened = [r.order.cell for r in self._ranks.values() if (view := r.view()) is not None and view.pid == 0]
        paths = [*self._settings.parts, *unopened]

        def look() -> None:
            if missing := [path for path in paths if not os.path.exists(path)]:
                self._missing.append(missing)

        if self._parts_looker.is_started:
            self._parts_looker.submit(look)  # no room: the last look hangs

    # ---- the parent -------------------------------------------------------------------------------------

    def _look_at_parent(self, now_ns: int) -> None:
        status = process_status(self._parent_pid)
        if self._stopped.look(now_ns, status is not None and status.is_stopped and not status.is_traced):
            said = f"the launcher (pid {self._parent_pid}) is stopped: hung ranks are found and ended, but nothing is "
            said += f"restarted until it goes on (kill -CONT {self._parent_pid})"
            announce(said, event="launcher_stopped")
            self._channel.tell(LauncherStopped(now_ns))

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
                self._channel.read()
                if self._channel.is_closed:
                    with contextlib.suppress(FileNotFoundError):  # known already
                        self._poll.unregister(self._channel)
                self._handle_orders()
        return bool(heard)

    def _handle_orders(self) -> None:
        for order, descriptors in self._channel.take():
            if isinstance(order, Watch):
                self._watch(order.order, descriptors, order.is_leader)
            elif isinstance(order, RunFolders):
                self._settings = self._settings._replace(run_folders=order.run_folders, parts=order.parts)
            elif isinstance(order, Forget):
                self._forget(order.generation)
                if order.is_over:
                    self._sessions.pop(order.generation, None)
                    self._settled.discard(order.generation)
                    if self._fence is not None:
                        self._fence.forget(order.generation)
            elif isinstance(order, Look):
                self._look_for_others(order)
            elif isinstance(order, Stop):
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
            self._channel.tell(Note(order.generation, f"rank {order.rank} is not watched: {why}"))
            cell = None
        worker_pidfd = descriptors.pop(0) if descriptors else None
        if cell is not None:
            self._ranks[key] = RankMonitor(order, cell, worker_pidfd, time.monotonic_ns())
        if is_session_leader:
            self._sessions.setdefault(order.generation, set()).add(order.pid)
        if self._fence is not None:
            self._fence.add(*key, order.pid if is_session_leader else 0, worker_pidfd)

    def _forget(self, generation: int) -> None:
        for key in [key for key in self._ranks if key[0] == generation]:
            self._ranks.pop(key).close()

    def _clean_up_after_parent(self) -> None:
        if not self._settings.owns_ranks:
            remove_folders(self._settings.run_folders)
            return
        pidfds = {pidfd for rank in self._ranks.values() for pidfd in rank.pidfds()}
        clean_up(pidfds, set().union(*self._sessions.values()), self._settings.run_folders)


def main(settings_text: str) -> None:
    """Run as a process of its own; ``launcher.agent.monitor_handle`` starts it.

    Args:
        settings_text: :class:`MonitorSettings` as a text.
    """
    set_process_name("ft_monitor")
    # A monitor that is stopped when its parent dies must wake to clean up after it.
    die_with_parent(signal.SIGCONT)
    settings = MonitorSettings.from_text(settings_text)
    console.follow(console.State(settings.config.log_level, settings.config.log_format, settings.names_node), "monitor")
    console.start(settings.console)
    Monitor(settings).run()
    console.finish(0.1)
    # Nothing here needs an interpreter's orderly end, and the launcher waits for ours.
    os._exit(SUCCEEDED)
