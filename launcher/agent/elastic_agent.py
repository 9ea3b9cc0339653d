"""The agent of one node: torch's ``SimpleElasticAgent``, extended at the four methods it leaves abstract.

Torch decides when to start, restart and give up (``_invoke_run``); this class starts workers, waits for what
happens to them, and stops them. Nothing is polled: the wait is one epoll over the workers' pidfds, the monitor's
reports, the ranks' control requests and the launcher's own signals. Only where other nodes could join or leave
does it come back every 100 ms, because only then does torch's loop ask who is waiting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.agent import failure_incident, messages
from launcher.agent.generation import Generation, Outfit
from launcher.agent.progress import ProgressRule, Reached, reached_by
from launcher.agent.rendezvous import GenerationRendezvous
from launcher.incidents.incident import Incident
from launcher.monitor.messages import HangReport, LauncherStopped, MissingParts, Note, Signalled, Spared
from launcher.monitor.near_miss import NearMiss
from launcher.processes.working_folder import said_where_deleted
from launcher.records import console
from launcher.records.console import say
from launcher.workers.worker_processes import Worker, WorkerProcesses
from resilience_core.monitoring.control import WorkloadAction, WorkloadControlRequest
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["Agent"]

T = TypeVar("T")
_Left = tuple[dict[int, ProcessFailure], dict[int, tuple[str, ...]]]  # torch's records and last lines, by local rank
logger = logging.getLogger(__name__)

_PROGRESS = "whether the job makes progress"
_LONGEST_BACK_OFF_SECONDS = 60.0
_CHORES_SECONDS = 1.0
"""How often what nothing wakes the launcher for is done: orphans that have ended are collected, cells are looked at."""
_EARLY_CHORES_SECONDS = 0.25
"""The same until every rank has shown its first sign of life."""
_SHORTEST_CHORES_SECONDS = 0.01
_SETTLING_NS = NS_PER_SECOND // 4
"""How long a new generation has the machine to itself before its successors are parked, and chores are done."""


class Agent(SimpleElasticAgent):
    """Runs the workers of one node.

    Args:
        spec: The job on this node; its rendezvous handler is one of ours.
        outfit: What to work with.
        shutdown_timeout: Seconds that workers get when the scheduler ends the job (``--shutdown-timeout``).
    """

    def __init__(self, spec: WorkerSpec, outfit: Outfit, shutdown_timeout: float) -> None:
        # Older torch has no shutdown_timeout here; ours is used by our own _shutdown in any case.
        super().__init__(spec, exit_barrier_timeout=outfit.config.exit_barrier_timeout)
        self._patience_seconds = shutdown_timeout
        self._outfit = outfit
        self._rendezvous_handler = cast(GenerationRendezvous, spec.rdzv_handler)
        self._current: Generation | None = None
        self._requests: list[tuple[int, WorkloadControlRequest]] = []
        self._progress = ProgressRule(outfit.config)
        self._early_deaths = 0
        self._has_worked = False
        """A rank of an earlier generation has come as far as a section, a heartbeat or an iteration."""
        self._near_misses = 0
        self._incident: Incident | None = None
        self._has_noted_py_spy = False
        self._prepare_at_ns: int | None = None
        self._chores_at_ns = 0
        self._seen_ns = 0
        self._restart_reason: tuple[str, int] | None = None
        """What the next generation is started for, and when that was seen here."""
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

    @property
    def has_started(self) -> bool:
        """Whether workers were started at all."""
        return self._current is not None

    @property
    def furthest(self) -> Reached:
        """How far the job came in the generations that have ended."""
        return self._progress.furthest

    @property
    def culprits(self) -> list[int]:
        """The ranks that are to blame for the end of the last generation; empty where nobody is named."""
        if self._incident is None or self._incident.generation != self.generation:
            return []
        return [rank.rank for rank in self._incident.culprits]

    @property
    def failures(self) -> int:
        """How many generations have failed; the nodes of a job agree on it."""
        return self._rendezvous_handler.failures

    def last_words(self) -> list[str]:
        """What to say about a job that has failed; no more about a job that ends otherwise."""
        spec = self._worker_group.spec
        is_of_the_last = self._incident is not None and self._incident.generation == self.generation
        why = self.ended_because
        if why is None and is_of_the_last:
            why = messages.what_follows(spec.max_restarts - self._remaining_restarts, spec.max_restarts)
        return messages.closing(self._incident if is_of_the_last else None, why)

    # ---- torch's seam -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Time a phase for torch's event log, unless that goes nowhere, as it does by default.

        An event asks the resolver for this machine's full name each time, which takes seconds where a name server
        does not answer, and costs a millisecond where one does.
        """
        if not self._has_event_log:
            yield
            return
        with super().record_duration(state):
            yield

    @property
    def _has_event_log(self) -> bool:
        return getattr(self._worker_group.spec, "event_log_handler", "null") != "null"

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        # One budget for the whole job: what the nodes agreed on, not what this agent happened to see.
        self._remaining_restarts = worker_group.spec.max_restarts - self._rendezvous_handler.failures
        self._outfit.events.write("rendezvous", generation=self.generation, nodes=worker_group.group_world_size)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        with self._outfit.signals.deferred():
            restart_count = spec.max_restarts - self._remaining_restarts
            self._current = Generation(self.generation, worker_group, self._outfit, restart_count)
            self._prepare_at_ns = self._chores_at_ns = time.monotonic_ns() + _SETTLING_NS
            if self.generation > 0:
                say(messages.restarted(self.generation, len(worker_group.workers), self._restart_reason))
            self._restart_reason = None
            if self._has_event_log:
                return dict(self._current.processes.pids())
            for worker in worker_group.workers:
                worker.id = self._current.processes.workers[worker.local_rank].pid
            return {}  # torch would make an event of each; see record_duration

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._current is not None
        processes = self._current.processes
        with self._outfit.signals.deferred():
            self._wait(self._current)
            self._outfit.signals.raise_pending()
            if (ended := self._ended_on_request()) is not None:
                return ended
            processes.collect_exits()
            self._read_reports()  # a verdict is told before its signal: who was condemned has failed, even with 0
            if processes.failed:
                return self._failed(self._current, worker_group)
            if processes.running:
                return RunResult(state=WorkerState.HEALTHY)
            self._note_progress(self._current)
            self._outfit.events.write("finished", generation=self.generation)
            self._current.stop_judging()
            return RunResult(
                state=WorkerState.SUCCEEDED, return_values={w.global_rank: None for w in worker_group.workers}
            )

    def _stop_workers(self, worker_group: WorkerGroup, is_restart: bool = False) -> None:  # the flag: torch 2.4
        """End a generation that is to be replaced.

        After a failure, here or on another node, the ranks have nothing left to save. Where only the membership has
        changed they have, and get as long as when the job is ended.
        """
        if self._current is None:
            return
        seen_ns = time.monotonic_ns()
        seconds = self._outfit.config.failure_stop_timeout
        failed_elsewhere = self._rendezvous_handler.failed_elsewhere()
        may_save = not self._current.processes.failed and not failed_elsewhere
        if self._restart_reason is None:  # nothing has failed here
            what = "the failure of another node" if failed_elsewhere else "the change of nodes"
            self._restart_reason = (what, seen_ns)
        if may_save:
            seconds = max(seconds, self._patience_seconds)
            why = "the nodes have changed" if self.ended_because is None else "the job ends"
            say(f"{why}: generation {self._current.number} has up to {seconds:g} s to save and end")
        with self._outfit.signals.deferred():
            self._read_reports()  # a verdict that was told before is one
            self._current.stop_judging()
            self._current.end(signal.SIGTERM, seconds, self._wait_for)
            if may_save:  # the iterations until it had ended count, too
                self._note_progress(self._current)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """End the job: on a signal to the launcher, or when torch's loop has returned or raised."""
        if self._current is None:
            return
        processes = self._current.processes
        with self._outfit.signals.deferred():
            asked = len(processes.running)
            if asked:
                seconds = self._patience_seconds
                say(f"{signal.Signals(death_sig).name} to {asked} worker(s); waiting up to {seconds:g} s")
            self._current.end(
                death_sig, self._patience_seconds, self._wait_for, spares_leftovers=not asked, is_last=True
            )
            if asked:  # they go on until they heed the signal
                self._note_progress(self._current)
            self.ended_cleanly = not processes.failed
            self._outfit.events.write("shut_down", generation=self.generation, cleanly=self.ended_cleanly)

    # ---- waiting ----------------------------------------------------------------------------------------

    def _wait(self, current: Generation) -> None:
        """Wait until a worker ends, somebody speaks, a signal comes, or something else is due."""
        due = [self._rendezvous_handler.look_seconds] if self._rendezvous_handler.has_peers else []
        if self._prepare_at_ns is not None:
            settling_ns = max(0, self._prepare_at_ns - time.monotonic_ns())
            due.append(settling_ns / NS_PER_SECOND)
            if settling_ns == 0:
                self._prepare_at_ns = None
                self._rendezvous_handler.prepare()
                self._outfit.starter.prepare(len(current.processes.workers))
        if current.condemned or current.overstayed:
            said, seconds = current.kill_lingering()
            if said:
                say(*said)
            if seconds is not None:
                due.append(seconds)
        due.append(self._do_chores(current))
        self._wait_for([worker.pidfd for worker in current.processes.running], min(due))

    def _do_chores(self, current: Generation) -> float:
        """Do what nothing wakes the launcher for, if it is due; each reads files, and so not at every wake-up.

        Returns:
            In how many seconds to come back.
        """
        left_ns = self._chores_at_ns - time.monotonic_ns()
        if left_ns > 0:
            return left_ns / NS_PER_SECOND
        current.reap_orphans()
        current.tell_phases()
        if said := current.look_after_the_unmonitored():
            say(*said)
        seconds = _CHORES_SECONDS if current.has_told_phases else _EARLY_CHORES_SECONDS
        if (next_look := current.next_look_seconds()) is not None:
            seconds = max(_SHORTEST_CHORES_SECONDS, min(seconds, next_look))
        self._chores_at_ns = time.monotonic_ns() + int(seconds * NS_PER_SECOND)
        return seconds

    def _wait_for(self, pidfds: Collection[int], timeout_seconds: float | None) -> set[int]:
        """Wait for pidfds, and serve whoever else speaks meanwhile.

        Returns:
            The pidfds of those that have ended.
        """
        outfit = self._outfit
        reports, requests = outfit.monitor.channel.fileno(), outfit.control.fileno()
        idle = outfit.starter.descriptors()
        poller = select.poll()
        for descriptor in {*pidfds, *idle, reports, requests, outfit.signals.descriptor}:
            poller.register(descriptor, select.POLLIN)
        tending_seconds = outfit.starter.due_seconds()
        due = min((each for each in (timeout_seconds, tending_seconds) if each is not None), default=None)
        timeout = None if due is None else max(0, round(due * 1000 + 0.5))
        ready = {descriptor for descriptor, _ in poller.poll(timeout)}
        if outfit.signals.descriptor in ready:
            outfit.signals.drain()
            self._forward()
        if ready.intersection(idle) or outfit.starter.due_seconds() == 0:
            outfit.starter.tend()
        if reports in ready:
            self._read_reports()
        if requests in ready:
            self._requests += outfit.control.read()
        return ready.intersection(pidfds)

    def _forward(self) -> None:
        """Pass on what a scheduler announces an end with, to those ranks that would not be killed by it."""
        for number in self._outfit.signals.take_forwarded():
            told = self._current.processes.tell(number) if self._current is not None else []
            say(f"{number.name} passed on to local ranks {told}" if told else f"{number.name}: no rank handles it")
            self._outfit.events.write("forwarded", generation=self.generation, signal=number.name, local_ranks=told)

    def _read_reports(self) -> None:
        assert self._current is not None
        for report in self._outfit.monitor.read_reports():
            if isinstance(report, MissingParts):
                self._current.mend()
            elif isinstance(report, Note):
                say(report.text)
                self._outfit.events.write("note", generation=report.generation, text=report.text)
            elif isinstance(report, Spared):
                self._spared(report.generation, report.near_misses)
            elif isinstance(report, LauncherStopped):
                self._outfit.events.write("launcher_stopped", seen_ns=report.seen_ns)
            elif isinstance(report, Signalled):
                self._outfit.events.write("signalled", **report._asdict())
            elif report.generation == self._current.number:
                self._take_verdict(self._current, report)

    def _take_verdict(self, current: Generation, report: HangReport) -> None:
        """Condemn, and tell the incident, unless it comes too late to be the one that ends the generation."""
        incident = report.incident
        is_another = current.is_being_ended or bool(current.condemned)
        current.condemn(report.condemned)
        if is_another:
            if (folder := incident.folder) is not None:
                self._outfit.on_disk("an incident too many", lambda: shutil.rmtree(folder, ignore_errors=True), None)
            return
        self._tell(incident, report.problem)
        if (said := self._outfit.limits.note_verdict(incident)) and self._remaining_restarts > 0:
            say(*said)

    def _spared(self, generation: int, near_misses: Sequence[NearMiss]) -> None:
        """Take verdicts back that the monitor has withdrawn before its signal.

        Only a rank that was overdue is a near miss; of one that was to end with it, no more is said than what takes
        back words that were said before.
        """
        for miss in near_misses:
            if self._current is not None and self._current.number == generation:
                self._current.acquit(miss.local_rank)
            if miss.was_late:
                self._near_misses += 1
                say(messages.near_miss(miss, self._near_misses))
                self._outfit.events.write("near_miss", generation=generation, count=self._near_misses, **miss._asdict())
            elif miss.was_announced:
                say(messages.withdrawn(miss))
                self._outfit.events.write("withdrawn", generation=generation, **miss._asdict())

    def _tell(self, incident: Incident, problem: str | None = None) -> None:
        is_same_again = failure_incident.is_same_again(self._incident, incident)
        self._incident = incident
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
        if (
            not self._has_noted_py_spy
            and self._outfit.config.capture_stacks
            and failure_incident.misses_py_spy(incident)
        ):
            self._has_noted_py_spy = True
            say(failure_incident.NO_PY_SPY)
        if is_same_again:
            say("  note    the same error as in the generation before, at the same place: it does not look like chance")

    # ---- ending -----------------------------------------------------------------------------------------

    def _failed(self, current: Generation, group: WorkerGroup) -> RunResult:
        """A worker has failed: stop its peers, write down what is known, decide whether to go on."""
        with self._outfit.events.gathering(), console.gathering():
            failures, showed_life = self._note_failure(current, group)
        if self._remaining_restarts > 0:
            self._back_off_from_a_crash_loop(current, showed_life)
        else:
            self._rendezvous_handler.end(f"a rank failed on {os.uname().nodename} and no restart is left")
        return RunResult(state=WorkerState.FAILED, failures=failures)

    def _note_failure(self, current: Generation, group: WorkerGroup) -> tuple[dict[int, ProcessFailure], bool]:
        processes = current.processes
        self._seen_ns = time.monotonic_ns()
        self._restart_reason = ("the failure", self._seen_ns)
        first = processes.failed
        views = current.views()
        known = failure_incident.look(group, processes, views, current.errors(), current.asked_ns())
        # The peers take longest to die, so they begin before anything is read, written or said.
        current.ask_to_end(signal.SIGTERM)
        asked_ns = time.monotonic_ns()
        failed = [worker.local_rank for worker in first]
        self._outfit.events.write("seen", at_ns=self._seen_ns, generation=current.number, failed=failed)
        self._outfit.events.write("asked", at_ns=asked_ns, generation=current.number)
        nothing: _Left = ({}, {})
        records, tails = self._outfit.on_disk(
            "what the ranks have left", lambda: (_records(processes, first), _tails(processes.stderrs)), nothing
        )
        failures = {
            group.workers[w.local_rank].global_rank: records.get(w.local_rank) or processes.failure(w, error_file="")
            for w in first
        }
        incident = failure_incident.failure_incident(
            group, processes.pids(), known, views, failures, tails, current.number, self._seen_ns, current.overstayed
        )
        if not current.condemned:
            self._tell(*self._written(incident))
        self._rendezvous_handler.note_failure()
        reached, in_a_step = (
            reached_by(views.values()),
            failure_incident.is_in_a_step(self._incident or incident, views),
        )
        why = self._asked_of_progress(lambda: self._progress.generation_ended(reached, in_a_step=in_a_step))
        if not self._has_worked:  # else the same configuration has been good enough before
            why = failure_incident.beyond_mending(self._incident or incident) or why
        showed_life = any(map(failure_incident.showed_life, views.values()))
        self._has_worked |= showed_life
        allowed = group.spec.max_restarts
        if why is not None and self._remaining_restarts > 0:
            self._give_up(why, self._outfit.config.no_restart_exit_code)
        else:
            doubt = self._progress.doubt() if self._remaining_restarts > 0 else None
            follows = messages.what_follows(allowed - self._remaining_restarts, allowed)
            say(*filter(None, (follows, doubt)), *said_where_deleted())
        return failures, showed_life

    def _written(self, incident: Incident) -> tuple[Incident, str | None]:
        folder = self._outfit.log_folder
        problem: str | None = f"the incident could not be written under {folder}"
        return self._outfit.on_disk(
            "the incident", lambda: failure_incident.written(incident, folder), (incident, problem)
        )

    def _note_progress(self, current: Generation) -> None:
        reached = reached_by(current.views().values())
        self._asked_of_progress(lambda: self._progress.note(reached))

    def _asked_of_progress(self, call: Callable[[], T]) -> T | None:
        """The result of a call to the rule, which waits for a disk only where it reads a file."""
        return self._outfit.on_disk(_PROGRESS, call, None) if self._progress.reads_a_file else call()

    def _give_up(self, why: str, exit_code: int) -> None:
        self.ended_because = why
        self.exit_code = exit_code
        self._remaining_restarts = 0
        self._outfit.events.write("given_up", generation=self.generation, why=why)
        say(f"giving up: {why}")
        self._rendezvous_handler.end(why)

    def _back_off_from_a_crash_loop(self, current: Generation, showed_life: bool) -> None:
        """Wait before a restart when several generations in a row died young without a sign of life."""
        config = self._outfit.config
        died_young = self._seen_ns - current.started_ns < failure_incident.YOUNG_NS and not showed_life
        self._early_deaths = self._early_deaths + 1 if died_young else 0
        excess = self._early_deaths - config.restart_backoff_after
        if not config.restart_backoff_after or excess < 0:
            return
        seconds = min(2.0**excess, _LONGEST_BACK_OFF_SECONDS)
        say(f"{self._early_deaths} generations in a row died within 10 s of their start; waiting {seconds:g} s")
        self._outfit.events.write("backing_off", generation=current.number, seconds=seconds)
        current.end(signal.SIGTERM, config.failure_stop_timeout, self._wait_for)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._wait_for([], left)
            self._outfit.signals.raise_pending()

    def _ended_on_request(self) -> RunResult | None:
        """End the generation where a rank or another node asks for it."""
        while self._requests:
            if (result := self._obey(*self._requests.pop(0))) is not None:
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


def _records(processes: WorkerProcesses, failed: Collection[Worker]) -> dict[int, ProcessFailure]:
    """Torch's records by local rank, but for those whose error files cannot be read."""
    records = {}
    for worker in failed:
        try:
            records[worker.local_rank] = processes.failure(worker)
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("the error file of local rank %s: %s; going on without", worker.local_rank, error)
    return records


def _tails(paths: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    return {local_rank: failure_incident.tail(path) for local_rank, path in paths.items()}
