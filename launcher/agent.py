"""The agent of one node: torch's ``SimpleElasticAgent``, extended at the four methods it leaves abstract.

Torch decides when to start, restart and give up (``_invoke_run``); this class starts workers, waits for what
happens to them, and stops them. Nothing is polled: the wait is one epoll over the workers' pidfds, the monitor's
reports, the ranks' control requests and the launcher's own signals. Only where other nodes could join or leave
does it come back every 100 ms, because only then does torch's loop ask who is waiting.
"""

from __future__ import annotations

import inspect
import math
import os
import select
import signal
import time
from collections.abc import Collection
from typing import Any, cast

import attrs
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import LogsSpecs, PContext
from torch.distributed.elastic.utils.api import macros

from launcher import story
from launcher.console import say
from launcher.control_socket import ControlSocket
from launcher.environment import log_line_prefix, monitor_environment, worker_environment
from launcher.event_log import EventLog
from launcher.folders import RunFolder
from launcher.incident import Incident
from launcher.monitor_process import MonitorProcess
from launcher.processes import reap_adopted
from launcher.progress import ProgressRule
from launcher.rendezvous import GenerationRendezvous
from launcher.signals import SignalInbox
from launcher.starters import WorkerStarter
from launcher.verdict import judge
from launcher.watch import WatchOrder
from launcher.workers import Launch, Worker, WorkerProcesses
from resilience_core.cell import Cell
from resilience_core.config import FaultToleranceConfig
from resilience_core.control import WorkloadAction, WorkloadControlRequest

__all__ = ["Agent", "Outfit"]

_MEMBERSHIP_CHECK_SECONDS = 0.1
_NS = 1_000_000_000
_SETTLING_NS = _NS // 4
"""How long a new generation has the machine to itself before its successors are parked."""


@attrs.frozen(kw_only=True)
class Outfit:
    """What an agent works with; made by the command line, closed by it."""

    config: FaultToleranceConfig
    run_folder: RunFolder
    log_folder: str
    config_file: str
    monitor: MonitorProcess
    control: ControlSocket
    signals: SignalInbox
    events: EventLog
    starter: WorkerStarter
    logs_specs: LogsSpecs
    log_line_prefix_template: str | None = None


class Agent(SimpleElasticAgent):
    """Runs the workers of one node.

    Args:
        spec: The job on this node; its rendezvous handler is one of ours.
        outfit: What to work with.
        shutdown_timeout: Seconds that workers get when the scheduler ends the job (``--shutdown-timeout``).
    """

    def __init__(self, spec: WorkerSpec, outfit: Outfit, shutdown_timeout: float) -> None:
        # Older torch has no shutdown_timeout here; ours is used by our own _shutdown in any case.
        super().__init__(spec)
        self._wait_for_workers_seconds = shutdown_timeout
        self._outfit = outfit
        self._rendezvous_handler = cast(GenerationRendezvous, spec.rdzv_handler)
        self._processes: WorkerProcesses | None = None
        self._cells: dict[int, Cell] = {}
        self._condemned: set[int] = set()
        self._progress = ProgressRule(outfit.config)
        self._early_deaths = 0
        self._started_ns = 0
        self._prepare_at_ns: int | None = None
        self._seen_ns = 0
        self.ended_because: str | None = None
        """Why the job was ended although restarts were left; None otherwise."""
        self.exit_code: int | None = None
        """The exit code that goes with it."""
        self.leaves_the_others_alone = False
        """This node was asked to go while the others carry on."""
        self.ended_cleanly = False
        """Every worker that was running when the job was asked to end has ended with 0."""

    @property
    def generation(self) -> int:
        """The current generation, from 0; agreed by all nodes."""
        return self._rendezvous_handler.generation

    # ---- torch's seam -----------------------------------------------------------------------------------

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        # One budget for the whole job: what the nodes agreed on, not what this agent happened to see.
        self._remaining_restarts = worker_group.spec.max_restarts - self._rendezvous_handler.failures
        self._outfit.events.write("rendezvous", generation=self.generation, nodes=worker_group.group_world_size)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._outfit.signals.deferred():
            self._condemned = set()
            self._started_ns = time.monotonic_ns()
            self._make_cells(worker_group)
            self._processes = self._make_processes(worker_group)
            self._processes.start()
            self._watch_workers(worker_group)
            pids = self._processes.pids()
            self._prepare_at_ns = time.monotonic_ns() + _SETTLING_NS
            self._outfit.events.write("started", generation=self.generation, pids=pids)
            if self.generation > 0:
                say(story.restarted(self.generation, worker_group.spec, len(pids), self._seen_ns))
            return dict(pids)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._processes is not None
        with self._outfit.signals.deferred():
            self._wait(_MEMBERSHIP_CHECK_SECONDS if self._rendezvous_handler.has_peers else None)
            self._outfit.signals.raise_pending()
            self._read_reports()
            if (ended := self._ended_on_request()) is not None:
                return ended
            self._processes.collect_exits()
            if self._processes.failed:
                return self._failed(worker_group)
            if self._processes.running:
                return RunResult(state=WorkerState.HEALTHY)
            self._outfit.events.write("finished", generation=self.generation)
            self._outfit.monitor.forget(self.generation)
            return RunResult(
                state=WorkerState.SUCCEEDED, return_values={w.global_rank: None for w in worker_group.workers}
            )

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """End a generation that is to be replaced: its ranks have nothing left to save."""
        with self._outfit.signals.deferred():
            self._outfit.monitor.forget(self.generation)
            self._end_generation(signal.SIGTERM, self._outfit.config.failure_stop_timeout)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """End the job: on a signal to the launcher, or when torch's loop has returned or raised."""
        if self._processes is None:
            return
        with self._outfit.signals.deferred():
            asked = len(self._processes.running)
            if asked:
                say(f"{signal.Signals(death_sig).name} to {asked} worker(s); waiting up to {self._patience:g} s")
            processes = self._processes
            self._end_generation(death_sig, self._patience, spares_leftovers=not asked)
            self.ended_cleanly = not processes.failed
            self._outfit.events.write("shut_down", generation=self.generation, cleanly=self.ended_cleanly)

    @property
    def _patience(self) -> float:
        return self._wait_for_workers_seconds

    # ---- starting ---------------------------------------------------------------------------------------

    def _make_cells(self, group: WorkerGroup) -> None:
        for worker in group.workers:
            path = self._outfit.run_folder.cell(self.generation, worker.local_rank)
            cell = Cell.create(path, rank=worker.global_rank, generation=self.generation)
            self._cells[worker.local_rank] = cell

    def _make_processes(self, group: WorkerGroup) -> WorkerProcesses:
        spec, outfit = group.spec, self._outfit
        restart_count = spec.max_restarts - self._remaining_restarts
        environments: dict[int, dict[str, str]] = {}
        launches: dict[int, Launch] = {}
        for worker in group.workers:
            environments[worker.local_rank] = {
                **worker_environment(spec, group, worker, restart_count),
                **monitor_environment(
                    cell=self._cells[worker.local_rank].path,
                    config_file=outfit.config_file,
                    control_socket=outfit.control.path,
                    generation=self.generation,
                    launcher_pid=os.getpid(),
                ),
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
            outfit.starter.start,
            **_accepted(
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

    def _watch_workers(self, group: WorkerGroup) -> None:
        assert self._processes is not None
        limit = self._outfit.config.rank_startup_timeout
        for worker in group.workers:
            process = self._processes.workers[worker.local_rank]
            order = WatchOrder(
                generation=self.generation,
                local_rank=worker.local_rank,
                rank=worker.global_rank,
                cell=self._cells[worker.local_rank].path,
                pid=process.pid,
                startup_at_ns=0 if limit is None else self._started_ns + int(limit * _NS),
                started_ns=self._started_ns,
            )
            self._outfit.monitor.watch(order, is_session_leader=True)

    # ---- waiting ----------------------------------------------------------------------------------------

    def _wait(self, timeout_seconds: float | None) -> None:
        """Wait until a worker ends, somebody speaks, a signal comes, or the time is up."""
        assert self._processes is not None
        if self._prepare_at_ns is not None:
            settling = max(0, self._prepare_at_ns - time.monotonic_ns())
            timeout_seconds = min(settling / _NS, math.inf if timeout_seconds is None else timeout_seconds)
            if settling == 0:
                self._prepare_at_ns = None
                self._outfit.starter.prepare(len(self._processes.workers))
        self._wait_for([worker.pidfd for worker in self._processes.running], timeout_seconds)

    def _wait_for(self, pidfds: Collection[int], timeout_seconds: float | None) -> set[int]:
        outfit = self._outfit
        poller = select.poll()
        for descriptor in (
            *pidfds,
            outfit.monitor.channel.fileno(),
            outfit.control.fileno(),
            outfit.signals.descriptor,
        ):
            poller.register(descriptor, select.POLLIN)
        for descriptor in (idle := set(outfit.starter.descriptors())):
            poller.register(descriptor, select.POLLIN)
        timeout = None if timeout_seconds is None else max(0, round(timeout_seconds * 1000 + 0.5))
        ready = {descriptor for descriptor, _ in poller.poll(timeout)}
        if outfit.signals.descriptor in ready:
            outfit.signals.drain()
        if ready & idle:
            outfit.starter.tend()
        return ready & set(pidfds)

    def _read_reports(self) -> None:
        for report in self._outfit.monitor.read_reports():
            if report["generation"] != self.generation:
                continue
            if "incident" in report:
                incident = Incident.from_json(report["incident"])
                self._condemned |= set(report["condemned"])
                self._tell(incident, report["problem"])
            else:
                self._outfit.events.write("signalled", **report)

    def _tell(self, incident: Incident, problem: str | None = None) -> None:
        say(*incident.story(), *([f"  note    {problem}"] if problem else []))
        self._outfit.events.write(
            incident.kind,
            generation=incident.generation,
            culprits=[rank.rank for rank in incident.culprits],
            condemned=[rank.rank for rank in incident.condemned],
            deadline_ns=incident.deadline_ns,
            seen_ns=incident.seen_ns,
            folder=incident.folder,
        )

    # ---- ending -----------------------------------------------------------------------------------------

    def _failed(self, group: WorkerGroup) -> RunResult:
        """A worker has failed: stop its peers, write down what is known, decide whether to go on."""
        assert self._processes is not None
        processes = self._processes
        self._seen_ns = time.monotonic_ns()
        first = processes.failed
        views = {local_rank: cell.view() for local_rank, cell in self._cells.items()}
        self._outfit.events.write("seen", generation=self.generation, failed=[w.local_rank for w in first])
        self._read_reports()  # a verdict is told before its signal, so it is there by now
        # The peers take longest to die, so they begin before anything is written or said.
        self._outfit.monitor.forget(self.generation)
        processes.ask_to_end(signal.SIGTERM, self._condemned | self._overdue(processes.running))
        if not self._condemned:
            failures = [processes.failure(worker) for worker in first]
            incident = story.failure_incident(group, failures, views, self.generation, self._seen_ns)
            self._tell(*story.written(incident, self._outfit.log_folder))
        failures_by_rank = {group.workers[w.local_rank].global_rank: processes.failure(w) for w in first}
        result = RunResult(state=WorkerState.FAILED, failures=failures_by_rank)
        self._rendezvous_handler.failures += 1
        iterations = [view.iteration for view in views.values() if view.iteration >= 0]
        why = self._progress.generation_ended(max(iterations, default=None))
        if why is not None and self._remaining_restarts > 0:
            self._give_up(why, self._outfit.config.no_restart_exit_code)
        if self._remaining_restarts > 0:
            self._back_off_from_a_crash_loop(any(map(story.showed_life, views.values())))
        else:
            self._rendezvous_handler.end(f"a rank failed on {os.uname().nodename} and no restart is left")
        return result

    def _give_up(self, why: str, exit_code: int) -> None:
        self.ended_because = why
        self.exit_code = exit_code
        self._remaining_restarts = 0
        self._outfit.events.write("given_up", generation=self.generation, why=why)
        say(f"giving up: {why}")
        self._rendezvous_handler.end(why)

    def _back_off_from_a_crash_loop(self, showed_signs_of_life: bool) -> None:
        """Wait before a restart when several generations in a row died young without a sign of life."""
        config = self._outfit.config
        died_young = self._seen_ns - self._started_ns < story.YOUNG_NS and not showed_signs_of_life
        self._early_deaths = self._early_deaths + 1 if died_young else 0
        excess = self._early_deaths - config.restart_backoff_after
        if not config.restart_backoff_after or excess < 0:
            return
        seconds = min(2.0**excess, 60.0)
        say(f"{self._early_deaths} generations in a row died within 10 s of their start; waiting {seconds:g} s")
        self._outfit.events.write("backing_off", generation=self.generation, seconds=seconds)
        self._end_generation(signal.SIGTERM, config.failure_stop_timeout)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._wait_for([], left)
            self._outfit.signals.raise_pending()

    def _ended_on_request(self) -> RunResult | None:
        """End the generation where a rank or another node asks for it."""
        for rank, request in self._outfit.control.read():
            if (result := self._obey(rank, request)) is not None:
                return result
        why = self._rendezvous_handler.ended_by_peer()
        if why is not None:
            self._give_up(f"another node has ended the job: {why}", 1)
            return RunResult(state=WorkerState.FAILED)
        return None

    def _obey(self, rank: int, request: WorkloadControlRequest) -> RunResult | None:
        said = f"rank {rank} requests {request.action.value}: {request.description or 'no reason given'}"
        self._outfit.events.write(
            "request", generation=self.generation, rank=rank, action=request.action.value, why=request.description
        )
        say(said)
        if request.action is WorkloadAction.Continue:
            return None
        if request.action is WorkloadAction.ShutdownWorkload or not self._rendezvous_handler.has_peers:
            self._give_up(said, 1)
        else:
            self.ended_because = said
            self.exit_code = 1
            self._remaining_restarts = 0
            self.leaves_the_others_alone = True
        return RunResult(state=WorkerState.FAILED)

    def _end_generation(
        self, death_signal: signal.Signals, timeout_seconds: float, spares_leftovers: bool = False
    ) -> None:
        if self._processes is None or not self._cells:
            return
        processes = self._processes
        processes.stop(
            death_signal,
            timeout_seconds,
            at_once=self._condemned | self._overdue(processes.running),
            spares_leftovers=spares_leftovers,
            wait=self._wait_for,
            is_insisted=lambda: self._outfit.signals.is_insisted,
        )
        processes.close(death_signal, 0)
        self._outfit.monitor.forget(self.generation)
        for cell in self._cells.values():
            cell.close()
        self._cells = {}
        self._outfit.run_folder.drop_cells(self.generation)
        reap_adopted({self._outfit.monitor.pid, *self._outfit.starter.children()})
        self._outfit.events.write("stopped", generation=self.generation)

    def _overdue(self, workers: Collection[Worker]) -> set[int]:
        now_ns = time.monotonic_ns()
        return {w.local_rank for w in workers if judge(self._cells[w.local_rank].view(), now_ns) is not None}


def _accepted(function: Any, **arguments: Any) -> dict[str, Any]:
    """Those arguments that this version of torch knows; newer options are only reachable from its own parser."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in known}
