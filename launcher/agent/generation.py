"""One generation of workers on this node: its cells, its processes, its end.

Everything that could leak from one generation to the next (cells, processes, who is condemned, time stamps) is a
field of an object that ends with it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

import attrs
from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.multiprocessing import LogsSpecs, PContext
from torch.distributed.elastic.utils.api import macros

from launcher.agent.after_shutdown import AfterShutdown, Leaving, Overstayed
from launcher.agent.control_socket import ControlSocket
from launcher.agent.instrumented import names_the_client, script_of
from launcher.agent.job_limits import JobLimits, spared, unmonitored
from launcher.agent.messages import stuck
from launcher.agent.monitor_handle import MonitorProcess
from launcher.agent.signals import SignalInbox
from launcher.agent.upkeep import Upkeep
from launcher.agent.worker_environment import log_line_prefix, monitor_environment, worker_environment
from launcher.monitor.messages import WatchOrder
from launcher.monitor.verdict import judge
from launcher.processes.background import Background, NotDoneError
from launcher.processes.evidence import state_phrase
from launcher.processes.handles import adopts_orphans, has_exited, send_signal
from launcher.processes.leftovers import Orphans
from launcher.processes.proc import process_status
from launcher.records.event_log import EventLog
from launcher.workers.spawn import Launch
from launcher.workers.starters import WorkerStarter
from launcher.workers.worker_processes import WorkerProcesses
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.monitoring.cell import SHUT_DOWN, CellView
from resilience_core.monitoring.error_record import ErrorRecord
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.proc import own_pid_namespace, process_start_time

__all__ = ["Generation", "Outfit", "accepted_by"]

T = TypeVar("T")
logger = logging.getLogger(__name__)

_LONGEST_DISK_SECONDS = 0.5
_LONGEST_PHASES_SECONDS = 60.0
_LONGEST_LAST_KILL_SECONDS = 5.0
_EVIDENCE_SECONDS = 0.25
"""How often is looked whether a rank has initialised monitoring, where a startup limit waits for that."""


@attrs.frozen(kw_only=True)
class Outfit:
    """What an agent works with; made by ``launcher.agent.job``, closed by it."""

    config: FaultToleranceConfig
    upkeep: Upkeep
    log_folder: str
    monitor: MonitorProcess
    signals: SignalInbox
    events: EventLog
    disk: Background
    """Whatever touches the log folder is done by this one."""
    starter: WorkerStarter
    logs_specs: LogsSpecs
    log_line_prefix_template: str | None = None
    limits: JobLimits = attrs.field(
        default=attrs.Factory(lambda outfit: JobLimits(outfit.config), takes_self=True), init=False
    )

    orphans: Orphans | None = attrs.field(
        default=attrs.Factory(
            lambda outfit: Orphans(lambda: outfit.upkeep.folder.paths) if adopts_orphans() else None, takes_self=True
        ),
        init=False,
    )
    """None where this process adopts nobody: a launcher inside somebody else's process."""

    @property
    def control(self) -> ControlSocket:
        """The launcher's ear for requests of ranks."""
        return self.upkeep.control

    def on_disk(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        """The result of what must touch a disk; ``otherwise`` where the disk does not answer or cannot be read."""
        try:
            return self.disk.call(call, _LONGEST_DISK_SECONDS)
        except (NotDoneError, OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("%s: %s; going on without", what, error)
            return otherwise


class Generation:
    """Started by its constructor; watched by the monitor until it ends.

    Args:
        number: From 0, the same on all nodes.
        group: Torch's worker group, after the rendezvous.
        outfit: What to work with.
        restart_count: This agent's own count, for the variable that torchrun exports.
    """

    def __init__(self, number: int, group: WorkerGroup, outfit: Outfit, restart_count: int) -> None:
        self.number = number
        self.started_ns = time.monotonic_ns()
        self._condemned_ns: dict[int, int] = {}
        self._killed: set[int] = set()
        self._group = group
        self._is_last = restart_count >= group.spec.max_restarts
        self._outfit = outfit
        self._is_over = False
        self.is_being_ended = False
        """The monitor was told to judge it no more."""
        self._last_views: dict[int, CellView] = {}
        self._phases_told = False
        self._orders: dict[int, WatchOrder] = {}
        self._has_spared = False
        self._after_shutdown = AfterShutdown(outfit.config, self._leaving, outfit.monitor.freezes)
        self._cells = outfit.upkeep.make_cells(number, {w.local_rank: w.global_rank for w in group.workers})
        self.processes = self._make_processes(restart_count)
        self.processes.start()
        self._have_them_watched()
        outfit.events.write("started", generation=number, pids=self.processes.pids())

    # ---- while it lives ---------------------------------------------------------------------------------

    def views(self) -> dict[int, CellView]:
        """What every local rank's cell says, or said last."""
        return self._last_views if self._is_over else self._cells.views()

    def errors(self) -> dict[int, ErrorRecord]:
        """The exceptions that local ranks have put on record."""
        return self._cells.errors()

    def asked_ns(self) -> dict[int, int]:
        """When a signal asked local ranks for their stacks, as far as they have answered."""
        return self._cells.asked_ns()

    def mend(self) -> None:
        """Make anew what ranks find by path, where somebody has removed it."""
        replaced = self._outfit.upkeep.mend(None if self._is_over else self._cells)
        for local_rank in replaced if not self.is_being_ended else ():
            order = self._orders[local_rank]
            self._outfit.monitor.watch(order, self._cells[local_rank], is_session_leader=True)

    def tell_phases(self) -> None:
        """Log when each rank reached its first line, its monitor, and its first sign of life, once all have.

        With ``seen``, ``asked``, ``stopped``, ``rendezvous`` and ``started`` this is where the time of a restart went.
        A rank that never reports (no monitoring, or spawned and without a client) leaves its stamps at null.
        """
        stamps = self._cells.stamps()
        complete = all(each["first_sign_ns"] for each in stamps.values())
        is_late = time.monotonic_ns() - self.started_ns > _LONGEST_PHASES_SECONDS * NS_PER_SECOND
        if not self._phases_told and (complete or is_late or self._is_over):
            self._phases_told = True
            self._outfit.events.write("phases", generation=self.number, ranks=stamps)

    def look_after_the_unmonitored(self) -> list[str]:
        """Hold ranks to a startup limit as soon as that may count; say once whom nobody watches.

        Returns:
            What to say, most often nothing.
        """
        outfit, config, now_ns = self._outfit, self._outfit.config, time.monotonic_ns()
        knew = outfit.limits.has_used_the_client
        outfit.limits.note_starts(self.started_ns, self._initialised_ns())
        if outfit.limits.has_used_the_client != knew and config.rank_startup_timeout is not None:
            self._have_them_watched(from_ns=now_ns)
        running = {worker.local_rank for worker in self.processes.running}
        unseen = running - self._monitored() - set(self._held())
        ranks = {worker.global_rank for worker in self._group.workers if worker.local_rank in unseen}
        elapsed = (now_ns - self.started_ns) / NS_PER_SECOND
        said: list[str] = []
        startup = config.rank_startup_timeout
        if ranks and startup is not None and not self._has_spared and elapsed >= startup:
            self._has_spared = True
            said.append(spared(ranks, startup, script_of(self._command)[0] or "the command"))
        after = config.unmonitored_notice_after
        if after is not None and elapsed >= after and not outfit.limits.has_noted_the_unmonitored:
            outfit.limits.has_noted_the_unmonitored = True
            if ranks:
                said += unmonitored(ranks, len(ranks) == len(self._group.workers), after)
        said += self._after_shutdown.look(now_ns)
        if not outfit.limits.has_noted_the_leaving and (notice := self._after_shutdown.unlimited(now_ns)) is not None:
            outfit.limits.has_noted_the_leaving = True
            said.append(notice)
        return said

    def _leaving(self) -> dict[int, Leaving]:
        views, ranks = self.views(), {worker.local_rank: worker.global_rank for worker in self._group.workers}
        return {
            worker.local_rank: Leaving(ranks[worker.local_rank], worker.pid, worker.pidfd)
            for worker in self.processes.running
            if worker.local_rank in views and views[worker.local_rank].state == SHUT_DOWN
        }

    @property
    def overstayed(self) -> Mapping[int, Overstayed]:
        """Local ranks that were killed since their processes went on after they had shut monitoring down."""
        return self._after_shutdown.killed

    def next_look_seconds(self) -> float | None:
        """When :meth:`look_after_the_unmonitored` has something to do next; None when it never will."""
        if len(self._monitored()) == len(self._cells):
            return self._after_shutdown.due_seconds
        config, elapsed = self._outfit.config, (time.monotonic_ns() - self.started_ns) / NS_PER_SECOND
        due = [] if (seconds := self._after_shutdown.due_seconds) is None else [seconds]
        if config.unmonitored_notice_after is not None and not self._outfit.limits.has_noted_the_unmonitored:
            due.append(max(0.0, config.unmonitored_notice_after - elapsed))
        if config.rank_startup_timeout is not None and not self._has_spared:
            due.append(max(0.0, config.rank_startup_timeout - elapsed))
        if config.rank_startup_timeout is not None and not self._outfit.limits.has_used_the_client:
            due.append(_EVIDENCE_SECONDS)
        return min(due, default=None)

    def _initialised_ns(self) -> dict[int, int | None]:
        return {local_rank: stamps["initialised_ns"] for local_rank, stamps in self._cells.stamps().items()}

    def _monitored(self) -> set[int]:
        return {local_rank for local_rank, at_ns in self._initialised_ns().items() if at_ns is not None}

    @property
    def has_told_phases(self) -> bool:
        """Whether :meth:`tell_phases` has nothing left to do."""
        return self._phases_told

    # ---- the condemned ----------------------------------------------------------------------------------

    @property
    def condemned(self) -> set[int]:
        """Local ranks whose verdict stands."""
        return self.processes.condemned

    def condemn(self, local_ranks: Collection[int]) -> None:
        """Note a verdict of the monitor's, which terminates the ranks."""
        for local_rank in local_ranks:
            self._condemned_ns[local_rank] = time.monotonic_ns()
            self.processes.condemned.add(local_rank)

    def acquit(self, local_rank: int) -> None:
        """Note that the monitor has spared a rank after all."""
        self.processes.condemned.discard(local_rank)

    def kill_lingering(self) -> tuple[list[str], float | None]:
        """Kill workers that live on although the rank inside of them was terminated: a shell, a wrapper.

        The rank has ``failure_stop_timeout`` to heed its signal, and whoever is around it as long again to end. A
        worker that is not gone as long after it was killed here is stuck: it has failed.

        Returns:
            What to say, and in how many seconds to come back, None when nobody lingers.
        """
        patience_ns = int(2 * self._outfit.config.failure_stop_timeout * NS_PER_SECOND)
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
                said.append(stuck(rank, state_phrase(worker.pid), self._outfit.config.kill_timeout))
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
        if self._outfit.orphans is not None:
            self._outfit.orphans.reap(self._own_children())

    def _orphaned_sessions(self) -> set[int]:
        orphans = self._outfit.orphans
        return orphans.sessions(self._own_children()) if orphans is not None else set()

    def _own_children(self) -> set[int]:
        return {*self._outfit.monitor.pids, *self._outfit.starter.children(), *self.processes.unreaped()}

    # ---- ending -----------------------------------------------------------------------------------------

    def stop_judging(self) -> None:
        """Tell the monitor that this generation is being ended; what it finds of it from now on is no verdict.

        Before any of its ranks is signalled: one that we have killed must not be found dead by the monitor.
        """
        self.is_being_ended = True
        self._outfit.monitor.forget(self.number)

    def ask_to_end(self, death_signal: signal.Signals) -> None:
        """Signal the workers that still run, without waiting; those that would not answer are killed."""
        self.stop_judging()
        self.processes.ask_to_end(death_signal, self.condemned | self._overdue())

    def end(
        self,
        death_signal: signal.Signals,
        timeout_seconds: float,
        wait: Callable[[Collection[int], float], set[int]],
        spares_leftovers: bool = False,
        is_last: bool = False,
    ) -> None:
        """End every worker, whatever the workers started, and all traces; a second call does nothing.

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
        outfit, config = self._outfit, self._outfit.config
        self.stop_judging()
        self.processes.stop(
            death_signal,
            timeout_seconds,
            kill_seconds=min(config.kill_timeout, _LONGEST_LAST_KILL_SECONDS) if is_last else config.kill_timeout,
            rest_seconds=config.failure_stop_timeout if is_last else 0.0,
            at_once=self.condemned | self._overdue(),
            spares_leftovers=spares_leftovers,
            wait=wait,
            is_insisted=lambda: outfit.signals.is_insisted,
            is_hurried=lambda: outfit.signals.is_insisted or (not is_last and outfit.signals.first is not None),
        )
        if self.processes.left and outfit.orphans is not None:
            outfit.orphans.give_up(self.processes.left)
        self.processes.close(death_signal, 0)  # the tails of --tee
        self._last_views = self.views()
        self._is_over = True
        self.tell_phases()
        outfit.limits.note_starts(self.started_ns, self._initialised_ns())
        outfit.monitor.forget(self.number, is_over=True)
        self._cells.drop()
        self.reap_orphans()
        outfit.events.write("stopped", generation=self.number)

    def _owner(self, local_rank: int) -> int | None:
        """The pid of the process that reports for a local rank; None when none does, or where it has no pid here."""
        view = self._cells.view(local_rank) if len(self._cells) else None
        if view is None or view.pid == 0 or view.pid_namespace not in (0, own_pid_namespace()):
            return None
        status = process_status(view.pid)
        is_it = status is not None and status.state not in "ZX" and process_start_time(view.pid) == view.start_time
        return view.pid if is_it else None

    def _overdue(self) -> set[int]:
        now_ns = time.monotonic_ns()
        freezes = self._outfit.monitor.freezes(now_ns)  # after a thaw everybody seems late, and would lose its save
        return {
            worker.local_rank
            for worker in self.processes.running
            if judge(self._cells.view(worker.local_rank), now_ns, freezes) is not None
        }

    # ---- starting ---------------------------------------------------------------------------------------

    def _make_processes(self, restart_count: int) -> WorkerProcesses:
        group, spec, outfit = self._group, self._group.spec, self._outfit
        environments: dict[int, dict[str, str]] = {}
        launches: dict[int, Launch] = {}
        for worker in group.workers:
            environments[worker.local_rank] = {
                **worker_environment(spec, group, worker, restart_count),
                **monitor_environment(
                    cell=self._cells[worker.local_rank].path,
                    config_file=outfit.upkeep.config_file,
                    control_socket=outfit.control.path,
                    generation=self.number,
                    launcher_pid=os.getpid(),
                ),
                **outfit.limits.environment(),
            }
            arguments = macros.substitute(list(spec.args), str(worker.local_rank))
            launches[worker.local_rank] = Launch(
                command=(cast(str, spec.entrypoint), *map(str, arguments)),
                environment=environments[worker.local_rank],
                local_rank=worker.local_rank,
                numa_options=getattr(spec, "numa_options", None),
            )
        template = outfit.log_line_prefix_template
        return WorkerProcesses(
            launches,
            outfit.starter.start_all,
            self._orphaned_sessions,
            self._owner,
            **accepted_by(
                PContext.__init__,
                name=spec.role,
                entrypoint=spec.entrypoint,
                args={local_rank: tuple(launch.command[1:]) for local_rank, launch in launches.items()},
                envs=environments,
                logs_specs=outfit.logs_specs,
                log_line_prefixes=(
                    {w.local_rank: log_line_prefix(template, spec, w) for w in group.workers} if template else None
                ),
                duplicate_stdout_filters=getattr(spec, "duplicate_stdout_filters", None),
                duplicate_stderr_filters=getattr(spec, "duplicate_stderr_filters", None),
            ),
        )

    def _have_them_watched(self, from_ns: int | None = None) -> None:
        """Give the monitor its orders; once more, later, for ranks that are held to a startup limit from then on."""
        uses_client = False
        if self._outfit.config.rank_startup_timeout is not None:
            uses_client = names_the_client(self._command)
        for worker in self._group.workers:
            limit = self._outfit.limits.startup(worker.local_rank, uses_client, self._is_last)
            since_ns = self.started_ns
            if from_ns is not None:
                if limit is None or worker.local_rank in self._monitored() | set(self._held()):
                    continue
                if since_ns + limit.seconds * NS_PER_SECOND < from_ns:
                    since_ns = from_ns
            order = WatchOrder(
                generation=self.number,
                local_rank=worker.local_rank,
                rank=worker.global_rank,
                cell=self._cells[worker.local_rank].path,
                pid=self.processes.workers[worker.local_rank].pid,
                startup_at_ns=0 if limit is None else since_ns + int(limit.seconds * NS_PER_SECOND),
                started_ns=since_ns,
                has_others=(self._group.group_world_size or 1) > 1,
                startup_origin=limit.origin if limit is not None else None,
                startup_advice=limit.advice if limit is not None else None,
                startup_is_learned=limit is not None and limit.is_learned,
            )
            self._orders[worker.local_rank] = order
            self._outfit.monitor.watch(order, self._cells[worker.local_rank], is_session_leader=True)

    @property
    def _command(self) -> tuple[str, ...]:
        return (cast(str, self._group.spec.entrypoint), *map(str, self._group.spec.args))

    def _held(self) -> list[int]:
        return [local_rank for local_rank, order in self._orders.items() if order.startup_at_ns]


def accepted_by(function: Any, **arguments: Any) -> dict[str, Any]:
    """Those arguments that this version of torch knows; the options behind newer ones exist only in newer parsers."""
    known = _parameters(function)
    return {name: value for name, value in arguments.items() if name in known}


@functools.cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
