"""The agent of one node: torch's ``SimpleElasticAgent``, extended at the four methods it leaves abstract.

Torch decides when to start, restart and give up (``_invoke_run``); this class starts workers, waits for what happens
to them, and stops them. Nothing is polled: the wait is one ``poll`` over the workers' pidfds, the monitor's reports,
the ranks' control requests and the launcher's own signals. Only where other nodes could join or leave does it come back
every 100 ms, because only then does torch's loop ask who is waiting.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from typing import Any, cast

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState

from launcher.agent import announcements
from launcher.agent.agreement import GenerationRendezvous
from launcher.agent.generation import Generation
from launcher.agent.incident_log import IncidentLog
from launcher.agent.job_stories import JobStories
from launcher.agent.monitor_reports import take_reports
from launcher.agent.periodic_tasks import PeriodicTasks
from launcher.agent.progress import Reached
from launcher.agent.quiet_agent import QuietAgent
from launcher.agent.resources import AgentResources
from launcher.agent.restart_policy import RestartPolicy
from launcher.agent.waiting import forward_signals, wait_for
from launcher.agent.worker_exits import Exits, collect_exits, end_requests, save_incident
from launcher.processes.exit_codes import FAILED
from launcher.processes.working_folder import said_where_deleted
from launcher.records.console import ERROR, announce, gathering
from resilience_core.protocol.control import WorkloadAction, WorkloadControlRequest

__all__ = ["FaultTolerantAgent"]


class FaultTolerantAgent(QuietAgent):
    """Runs the workers of one node.

    Args:
        spec: The job on this node; its rendezvous handler is one of ours.
        resources: What to work with.
        shutdown_timeout: Seconds that workers get when the scheduler ends the job (``--shutdown-timeout``).
    """

    def __init__(self, spec: WorkerSpec, resources: AgentResources, shutdown_timeout: float) -> None:
        # Older torch has no shutdown_timeout here, and our own _shutdown uses ours.
        super().__init__(spec, exit_barrier_timeout=resources.config.exit_barrier_timeout)
        self._patience_seconds = shutdown_timeout
        self._resources = resources
        self._rendezvous_handler = cast(GenerationRendezvous, spec.rdzv_handler)
        self._current: Generation | None = None
        self._requests: list[tuple[int, WorkloadControlRequest]] = []
        self._policy = RestartPolicy(resources)
        self.stories = JobStories(resources, self._rendezvous_handler.exchange)
        self.incidents = IncidentLog(resources, self.stories)
        self._periodic_tasks = PeriodicTasks()
        self._failure_seen_ns = 0
        self._restart_reason: tuple[str, int] | None = None
        """What the next generation is started for, and when that was seen here."""
        self.ended_because: str | None = None  # although restarts were left
        self.exit_code: int | None = None  # goes with it
        self.excludes_this_node_only = False
        """This node was asked to go while the others carry on."""
        self.ended_cleanly = False
        """Every worker that was running when the job was asked to end has ended with 0."""

    @property
    def generation(self) -> int:
        """The current generation, from 0; agreed by all nodes."""
        return self._rendezvous_handler.generation

    @property
    def has_started(self) -> bool:
        """Return whether workers were started at all."""
        return self._current is not None

    @property
    def furthest(self) -> Reached:
        """How far the job came in the generations that have ended."""
        return self._policy.furthest

    @property
    def failures(self) -> int:
        """How many generations have failed; the nodes of a job agree on it."""
        return self._rendezvous_handler.failures

    def tell_end(self) -> None:
        """Tell people that the job has failed, and why."""
        allowed = self._worker_group.spec.max_restarts
        self.incidents.tell_end(self.generation, self.ended_because, allowed, self._remaining_restarts)

    # ---- torch's seam -----------------------------------------------------------------------------------

    def _rendezvous(self, worker_group: WorkerGroup) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._resources.signals.raise_pending()  # one that came while ranks were stopped
        super()._rendezvous(worker_group)  # pyright: ignore[reportCallIssue] - torch's decorator has no types
        # One budget for the whole job: what the nodes agreed on, not what this agent happened to see.
        self._remaining_restarts = worker_group.spec.max_restarts - self._rendezvous_handler.failures
        self._resources.events.write("rendezvous", generation=self.generation, nodes=worker_group.group_world_size)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        with self._resources.signals.deferred():
            restart_count = spec.max_restarts - self._remaining_restarts
            self._current = Generation(self.generation, worker_group, self._resources, restart_count)
            self._periodic_tasks.generation_started()
            self.stories.began(self._current, worker_group)
            if self.generation > 0:
                self._current.tell_restart(self._restart_reason)
            self._restart_reason = None
            if self._has_event_log:
                return dict(self._current.processes.pids())
            for worker in worker_group.workers:
                worker.id = self._current.processes.workers[worker.local_rank].pid
            return {}  # torch would make an event of each; see record_duration

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._current is not None
        processes = self._current.processes
        with self._resources.signals.deferred():
            self._wait(self._current)
            self._resources.signals.raise_pending()
            if (ended := self._ended_on_request()) is not None:
                return ended
            processes.collect_exits()
            self._read_reports()  # a verdict is told before its signal: who was condemned has failed, even with 0
            if processes.failed and (self._current.is_fenced or self._rendezvous_handler.is_cut_off()):
                self._rendezvous_handler.note_cut_off()
                return RunResult(state=WorkerState.HEALTHY)  # and the group starts anew, which costs no restart
            if processes.failed:
                return self._failed(self._current, worker_group)
            if processes.running:
                return RunResult(state=WorkerState.HEALTHY)
            if not self._current.is_being_ended:
                self._policy.note(self._current.views())
                self._resources.events.write("finished", generation=self.generation)
                self._current.stop_judging()
            if not self._rendezvous_handler.finished():
                return RunResult(state=WorkerState.HEALTHY)
            values = {w.global_rank: None for w in worker_group.workers}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)

    def _stop_workers(self, worker_group: WorkerGroup, is_restart: bool = False) -> None:  # the flag: torch 2.4
        """End a generation that is to be replaced.

        After a failure, here or on another node, the ranks have nothing left to save. Where only the membership has
        changed they have, and get as long as when the job is ended.
        """
        if self._current is None:
            return
        seen_ns, number, processes = time.monotonic_ns(), self._current.number, self._current.processes
        seconds = self._resources.config.failure_stop_timeout
        failed_elsewhere = self._rendezvous_handler.failed_elsewhere()
        may_save = not processes.failed and not failed_elsewhere
        with self._resources.signals.deferred():
            self._read_reports()  # a verdict that was told before is one
        if self._restart_reason is None:  # nothing has ended here
            what = "the failure of another node" if failed_elsewhere else "the change of nodes"
            if (why_over := self._rendezvous_handler.why_over()) and self.ended_because is None:
                announce(f"generation {number} is over: {why_over}", event="over", generation=number)
            self._restart_reason = ("the failure" if processes.condemned else what, processes.failed_ns(seen_ns))
        if may_save:
            seconds = max(seconds, self._patience_seconds)
            goes_on = self.ended_because is None or self.excludes_this_node_only
            why = "the nodes have changed" if goes_on else "the job ends"
            said = f"{why}: generation {number} has up to {seconds:g} s to save and end"
            announce(said, event="stopping", generation=number)
        with self._resources.signals.deferred():
            if failed_elsewhere:
                self.stories.look(self._wait_for, self.incidents.for_all, self._rendezvous_handler.told_of_failure_ns())
            self._requests += end_requests(self._current, self._resources, seconds)
            self._current.stop(signal.SIGTERM, seconds, self._wait_for)
            if may_save:  # the iterations until it had ended count, too
                self._policy.note(self._current.views())

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """End the job: on a signal to the launcher, or when torch's loop has returned or raised."""
        if self._current is None:
            return
        processes, seconds = self._current.processes, self._patience_seconds
        if self._resources.signals.first is not None:
            self._rendezvous_handler.leaving(f"{death_sig.name} to the launcher of {os.uname().nodename}")
        with self._resources.signals.deferred():
            if asked := len(processes.running):
                said = f"{signal.Signals(death_sig).name} to {asked} worker(s); waiting up to {seconds:g} s"
                announce(said, event="stopping", generation=self.generation)
            self._current.stop(death_sig, seconds, self._wait_for, spares_leftovers=not asked, is_last=True)
            if asked:  # they go on until they heed the signal
                self._policy.note(self._current.views())
            self.ended_cleanly = not processes.failed
            self.incidents.settle(self.generation, is_over=True, is_done=self.ended_cleanly and not asked)
            self._resources.events.write("shut_down", generation=self.generation, cleanly=self.ended_cleanly)

    # ---- waiting ----------------------------------------------------------------------------------------

    def _wait(self, current: Generation) -> None:
        """Wait until a worker ends, somebody speaks, a signal comes, or something else is due."""
        due = [self._rendezvous_handler.look_seconds] if self._rendezvous_handler.has_peers else []
        if (settling_seconds := self._periodic_tasks.settling_seconds()) is not None:
            due.append(settling_seconds)
            if settling_seconds == 0:
                self._rendezvous_handler.prepare()
                self._resources.starter.ensure_ready(len(current.processes.workers))
        due.append(self._periodic_tasks.do(current))
        due += filter(None, [self.stories.tell_overdue(), self.incidents.settle(current.number)])
        self._rendezvous_handler.note_saves(current.views)
        self._wait_for([*(w.pidfd for w in current.processes.running), *self._rendezvous_handler.descriptors], min(due))

    def _wait_for(self, pidfds: Collection[int], timeout_seconds: float | None) -> set[int]:
        """Wait for pidfds, and serve whoever else speaks meanwhile.

        Returns:
            The pidfds of those that have ended.
        """
        woken = wait_for(self._resources, [*pidfds, self.stories.descriptor], timeout_seconds)
        self.stories.pass_on()
        if woken.by_signal:
            forward_signals(self._resources, self._current)
        if woken.by_report:
            self._read_reports()
        if woken.by_request:
            self._requests += self._resources.control.read()
        return woken.ended - {self.stories.descriptor}

    def _read_reports(self) -> None:
        assert self._current is not None
        is_left = self._remaining_restarts > 0
        take_reports(self._resources, self._current, self.incidents, self.stories, restarts_are_left=is_left)

    # ---- ending -----------------------------------------------------------------------------------------

    def _failed(self, current: Generation, group: WorkerGroup) -> RunResult:
        """Handle the failure of a worker: stop its peers, write down what is known, decide whether to go on."""
        with self._resources.events.gathering(), gathering():
            exits = self._note_failure(current, group)
        if self._remaining_restarts > 0:
            self._policy.wait_in_crash_loop(current, self._failure_seen_ns, exits.views, self._wait_for)
        elif self.ended_because is None:  # else the others have been told why
            self._rendezvous_handler.end(f"{announcements.what_failed(current.condemned)} and no restart is left")
        return RunResult(state=WorkerState.FAILED, failures=exits.failures)

    def _note_failure(self, current: Generation, group: WorkerGroup) -> Exits:
        self._failure_seen_ns = time.monotonic_ns()
        self._restart_reason = ("the failure", current.processes.failed_ns(self._failure_seen_ns))
        told_ns = self._rendezvous_handler.told_of_failure_ns()
        exits = collect_exits(current, group, self._resources, self._failure_seen_ns)
        self.stories.failed(self.incidents.for_all(exits.incident, current.condemned), told_ns=told_ns)
        if not current.condemned:
            self.incidents.tell(*save_incident(exits.incident, self._resources))
        self.stories.over(current.number)
        self._rendezvous_handler.note_failure(announcements.what_failed(current.condemned))
        incident = exits.told_as(self.incidents.last)
        why = self._policy.why_not_again(incident, exits.views)
        allowed = group.spec.max_restarts
        if why is not None:  # whether or not a restart is left
            self._give_up(why, self._policy.exit_code)
        elif self._remaining_restarts > 0:  # that none is left is told as what has ended the job
            said = announcements.what_follows(allowed - self._remaining_restarts, allowed)
            for line in filter(None, (said, self._policy.doubt(), *said_where_deleted())):
                announce(line, event="restart", generation=current.number)
        return exits

    def _give_up(self, why: str, exit_code: int) -> None:
        self.ended_because, self.exit_code, self._remaining_restarts = why, exit_code, 0
        self._resources.events.write("given_up", generation=self.generation, why=why)
        self._rendezvous_handler.end(why)

    def _ended_on_request(self) -> RunResult | None:
        """End the generation where a rank or another node asks for it."""
        while self._requests:
            if (result := self._handle_request(*self._requests.pop(0))) is not None:
                return result
        if (why := self._rendezvous_handler.ended_by_peer()) is not None:
            self.stories.look(self._wait_for, self.incidents.for_all, self._rendezvous_handler.told_of_failure_ns())
            self._give_up(f"another node has ended the job: {why}", FAILED)
            return RunResult(state=WorkerState.FAILED)
        if (why := self._rendezvous_handler.unhealthy()) is not None:
            return self._exclude_this_node(why)
        return None

    def _handle_request(self, rank: int, request: WorkloadControlRequest) -> RunResult | None:
        said = self.incidents.tell_request(self.generation, rank, request)
        if request.action is WorkloadAction.Continue:
            return None
        if request.action is WorkloadAction.ShutdownWorkload or not self._rendezvous_handler.has_peers:
            self.stories.requested(self.generation, rank, said.partition(" requests ")[2])
            self._give_up(said, FAILED)
            return RunResult(state=WorkerState.FAILED)
        return self._exclude_this_node(said)

    def _exclude_this_node(self, why: str) -> RunResult:
        announce(f"this node leaves the job: {why}", level=ERROR, event="leaving")
        self._rendezvous_handler.leaving(why)
        self.ended_because, self.exit_code = why, FAILED
        self._remaining_restarts, self.excludes_this_node_only = 0, True
        return RunResult(state=WorkerState.FAILED)
