"""One generation of workers on this node: its cells, its processes, its end.

Everything that could leak from one generation to the next (cells, processes, who is condemned, time stamps) is a
field of an object that ends with it.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Collection, Mapping

from torch.distributed.elastic.agent.server.api import WorkerGroup

from launcher.agent.after_shutdown import Overstayed
from launcher.agent.announcements import restarted, stuck
from launcher.agent.rank_watch import RankWatch
from launcher.agent.resources import AgentResources
from launcher.agent.worker_launches import make_processes
from launcher.processes.evidence import state_phrase
from launcher.processes.handles import has_exited, send_signal
from launcher.processes.proc import process_status
from launcher.records.console import announce
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.error_record import ErrorRecord
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.proc import own_pid_namespace, process_start_time

__all__ = ["Generation"]

logger = logging.getLogger(__name__)

_LONGEST_PHASES_SECONDS = 60.0
_LONGEST_LAST_KILL_SECONDS = 5.0


class Generation:
    """Started by its constructor; watched by the monitor until it ends.

    Args:
        number: From 0, the same on all nodes.
        group: Torch's worker group, after the rendezvous.
        resources: What to work with.
        restart_count: This agent's own count, for the variable that torchrun exports.
    """

    def __init__(self, number: int, group: WorkerGroup, resources: AgentResources, restart_count: int) -> None:
        self.number = number
        self.started_ns = time.monotonic_ns()
        self._condemned_ns: dict[int, int] = {}
        self._killed: set[int] = set()
        self._group = group
        self._resources = resources
        self._is_over = False
        self.is_being_ended = False
        """The monitor was told to judge it no more."""
        self.is_fenced = False
        """The monitor has killed its ranks because this node's lease had run out: it was cut off, they did not fail."""
        self._last_views: dict[int, CellView] = {}
        self._phases_told = False
        ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
        self._cells = resources.run_folder_keeper.make_cells(number, ranks)
        self.processes = make_processes(
            number, group, resources, self._cells, restart_count, self._orphaned_sessions, self._owner
        )
        self.processes.start()
        self._ranks_started_ns = time.monotonic_ns()  # one moment for all that is told of it
        is_last = restart_count >= group.spec.max_restarts
        self._watch = RankWatch(number, group, resources, self._cells, self.processes, self.started_ns, is_last)
        resources.events.write(
            "started",
            at_ns=self._ranks_started_ns,
            generation=number,
            pids=self.processes.pids(),
            nodes=group.group_world_size,
            node_rank=group.group_rank,
            restarts=restart_count,
            restarts_left=group.spec.max_restarts - restart_count,
        )
        resources.machine.begin_anew()
        resources.figures.generation_started()

    def tell_restart(self, reason: tuple[str, int] | None) -> None:
        """Tell that another generation has been replaced by this one.

        Args:
            reason: What the group was restarted for, and when that was seen here (``CLOCK_MONOTONIC``); None where this
                node has not been part of the generation before.
        """
        cause, since_ns = reason or (None, 0)
        seconds = None if reason is None else (self._ranks_started_ns - since_ns) / NS_PER_SECOND
        workers = len(self._group.workers)
        announce(restarted(self.number, workers, cause, seconds), event="started", generation=self.number)
        self._resources.events.write("restarted", generation=self.number, workers=workers, cause=cause, seconds=seconds)

    # ---- while it lives ---------------------------------------------------------------------------------

    def views(self) -> dict[int, CellView]:
        """Return what every local rank's cell says, or said last."""
        return self._last_views if self._is_over else self._cells.views()

    def errors(self) -> dict[int, ErrorRecord]:
        """Return the exceptions that local ranks have put on record."""
        return self._cells.errors()

    def asked_ns(self) -> dict[int, int]:
        """Return when a signal asked local ranks for their stacks, as far as they have answered."""
        return self._cells.asked_ns()

    def mend(self) -> None:
        """Make anew what ranks find by path, where somebody has removed it."""
        replaced = self._resources.run_folder_keeper.mend(None if self._is_over else self._cells)
        if not self.is_being_ended:
            self._watch.repeat(replaced)

    def log_phases(self) -> None:
        """Log when each rank reached its first line, its monitor, and its first sign of life, once all have.

        With ``seen``, ``asked``, ``stopped``, ``rendezvous`` and ``started`` this is where the time of a restart went.
        A rank that never reports (no monitoring, or spawned and without a client) leaves its stamps at null.
        """
        stamps = self._cells.stamps()
        complete = all(each["first_sign_ns"] for each in stamps.values())
        is_late = time.monotonic_ns() - self.started_ns > _LONGEST_PHASES_SECONDS * NS_PER_SECOND
        if not self._phases_told and (complete or is_late or self._is_over):
            self._phases_told = True
            self._resources.events.write("phases", generation=self.number, ranks=stamps)

    def note_figures(self) -> None:
        """Write down what the ranks have done, if it is time, where readers find it."""
        self._resources.figures.note(self.number, self._cells.raw)
        self._resources.events.look_after()

    def look_at_machine(self) -> None:
        """Note what has to be known of the machine before a rank dies."""
        self._resources.machine.look({worker.local_rank: worker.pid for worker in self.processes.running})

    def look_after_the_unmonitored(self) -> list[str]:
        """See :meth:`RankWatch.look_after_the_unmonitored`."""
        return self._watch.look_after_the_unmonitored()

    def next_look_seconds(self) -> float | None:
        """See :meth:`RankWatch.next_look_seconds`."""
        return self._watch.next_look_seconds()

    @property
    def overstayed(self) -> Mapping[int, Overstayed]:
        """Local ranks that were killed since their processes went on after they had shut monitoring down."""
        return self._watch.overstayed

    @property
    def has_logged_phases(self) -> bool:
        """Return whether :meth:`log_phases` has nothing left to do."""
        return self._phases_told

    # ---- the condemned ----------------------------------------------------------------------------------

    @property
    def condemned(self) -> set[int]:
        """Local ranks whose verdict stands."""
        return self.processes.condemned

    def condemn(self, local_ranks: Collection[int], seen_ns: int) -> None:
        """Note a verdict of the monitor's (``CLOCK_MONOTONIC``), which terminates the ranks."""
        self._condemned_ns |= dict.fromkeys(local_ranks, time.monotonic_ns())
        self.processes.condemn(local_ranks, seen_ns)

    def withdraw(self, local_rank: int) -> None:
        """Note that the monitor has spared a rank after all."""
        self.processes.condemned.discard(local_rank)

    def kill_lingering(self) -> tuple[list[str], float | None]:
        """Kill workers that live on although the rank inside of them was terminated: a shell, a wrapper.

        The rank has ``failure_stop_timeout`` to heed its signal, and whoever is around it as long again to end. A
        worker that is not gone as long after it was killed here is stuck: it has failed.

        Returns:
            What to say, and in how many seconds to come back, None when nobody lingers.
        """
        config = self._resources.config
        # The monitor may wait for other nodes before it signals, and spare a rank that comes back meanwhile.
        wait_seconds = config.stack_capture_timeout if (self._group.group_world_size or 1) > 1 else 0.0
        patience_ns = int((2 * config.failure_stop_timeout + wait_seconds) * NS_PER_SECOND)
        now_ns = time.monotonic_ns()
        ranks = {worker.local_rank: worker.global_rank for worker in self._group.workers}
        said: list[str] = []
        due_ns = []
        for worker in self.processes.running:
            local_rank, rank = worker.local_rank, f"rank {ranks[worker.local_rank]} (pid {worker.pid})"
            if local_rank not in self.condemned and local_rank not in self.overstayed:
                continue
            if has_exited(worker.pidfd):  # and is collected next
                continue
            end_ns = self._condemned_ns.setdefault(local_rank, now_ns) + patience_ns
            if end_ns > now_ns:
                due_ns.append(end_ns)
            elif local_rank in self._killed:
                worker.is_stuck, worker.ended_ns = True, now_ns
                due_ns.append(now_ns)
                said.append(stuck(rank, state_phrase(worker.pid), self._resources.config.kill_timeout))
            elif send_signal(worker.pidfd, signal.SIGKILL):
                self._killed.add(local_rank)
                self._condemned_ns[local_rank] = now_ns
                due_ns.append(now_ns + patience_ns)
                what = "" if self._owner(local_rank) == worker.pid else "the worker around "
                said.append(f"{what}{rank} lives on although it was terminated ({state_phrase(worker.pid)}); killed")
        return said, (min(due_ns) - now_ns) / NS_PER_SECOND if due_ns else None

    # ---- orphans ----------------------------------------------------------------------------------------

    def reap_orphans(self) -> None:
        """Collect what descendants have left to this process and what has ended since."""
        if self._resources.second_fence is not None:
            self._resources.second_fence.ensure()
        if self._resources.orphans is not None:
            self._resources.orphans.reap(self._own_children())

    def _orphaned_sessions(self) -> set[int]:
        orphans = self._resources.orphans
        return orphans.sessions(self._own_children()) if orphans is not None else set()

    def _own_children(self) -> set[int]:
        return self._resources.helpers() | self.processes.unreaped()

    # ---- ending -----------------------------------------------------------------------------------------

    def stop_judging(self) -> None:
        """Tell the monitor that this generation is being ended; what it finds of it from now on is no verdict.

        Before any of its ranks is signalled: one that we have killed must not be found dead by the monitor.
        """
        self.is_being_ended = True
        self._resources.monitor.forget(self.number)

    def request_stop(self, death_signal: signal.Signals) -> None:
        """Signal the workers that still run, without waiting; those that would not answer are killed."""
        self.stop_judging()
        self.processes.request_stop(death_signal, self.condemned)

    def stop(
        self,
        death_signal: signal.Signals,
        timeout_seconds: float,
        wait: Callable[[Collection[int], float], set[int]],
        spares_leftovers: bool = False,
        is_last: bool = False,
    ) -> None:
        """End every worker, whatever the workers started, and all traces; a second call does nothing.

        Condemned ranks are killed, all others are asked and may save. Who is condemned is the monitor's decision alone:
        it knows which passed deadlines are no verdict (learned limits that wait for a peer, lost time, a monitor that
        has just started), and whoever it had no time to condemn is asked, which costs at most ``timeout_seconds``.

        Args:
            death_signal: What to ask with.
            timeout_seconds: How long to wait before SIGKILL.
            wait: How to wait for pidfds.
            spares_leftovers: Leave alone what workers that ended by themselves have left running.
            is_last: Nobody succeeds them. What they have started is asked to end, too, and what does not go when it
                is killed is in nobody's way.
        """
        if self._is_over:
            return
        resources, config = self._resources, self._resources.config
        self.stop_judging()
        self.processes.stop(
            death_signal,
            timeout_seconds,
            kill_seconds=min(config.kill_timeout, _LONGEST_LAST_KILL_SECONDS) if is_last else config.kill_timeout,
            rest_seconds=config.failure_stop_timeout if is_last else 0.0,
            at_once=self.condemned,
            spares_leftovers=spares_leftovers,
            wait=wait,
            is_forced=lambda: resources.signals.is_forced,
            is_hurried=lambda: resources.signals.is_forced or (not is_last and resources.signals.first is not None),
        )
        if self.processes.left and resources.orphans is not None:
            resources.orphans.give_up(self.processes.left)
        self.processes.close(death_signal, 0)  # the tails of --tee
        self._last_views = self.views()
        self._is_over = True
        resources.figures.generation_over(self.number, self._cells.raw)
        self.log_phases()
        self._watch.note_starts()
        resources.monitor.forget(self.number, is_over=True)
        self._cells.drop()
        self.reap_orphans()
        resources.events.write("stopped", generation=self.number)

    def _owner(self, local_rank: int) -> int | None:
        """Return the pid of the process that reports for a local rank; None when none does, or it has no pid here."""
        view = self._cells.view(local_rank) if len(self._cells) else None
        if view is None or view.pid == 0 or view.pid_namespace not in (0, own_pid_namespace()):
            return None
        status = process_status(view.pid)
        is_it = status is not None and not status.has_ended and process_start_time(view.pid) == view.start_time
        return view.pid if is_it else None
