"""Collect what is known when workers have exited, and make the incident of it."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.agent import deliberate_stops, failure_incident
from launcher.agent.deliberate_stops import end_requests
from launcher.agent.generation import Generation
from launcher.agent.resources import AgentResources
from launcher.incidents.frames import Thread
from launcher.incidents.incident import Incident
from launcher.incidents.machine import LONGEST_MACHINE_SECONDS
from launcher.incidents.output_tails import OutputTail, output_tail
from launcher.incidents.stacks_from_inside import fatal_stack
from launcher.workers.worker_processes import WorkerProcess, WorkerProcesses
from resilience_core.protocol.cell_view import CellView

__all__ = ["Exits", "collect_exits", "end_requests", "save_incident"]

logger = logging.getLogger(__name__)


class _Left(NamedTuple):
    """What ranks have left, by local rank."""

    records: dict[int, ProcessFailure]
    """Torch's."""
    outputs: dict[int, OutputTail]
    """The last lines of standard error."""
    stacks: dict[int, tuple[Thread, ...]]
    """Written as they died of a signal."""


class Exits(NamedTuple):
    """What is known of a generation that has failed."""

    incident: Incident
    """Not written yet."""
    failures: dict[int, ProcessFailure]
    """Torch's records, by global rank."""
    views: Mapping[int, CellView]
    """What every rank's cell said, by local rank."""

    def told_as(self, told: Incident | None) -> Incident:
        """See :func:`launcher.agent.deliberate_stops.told_as`."""
        return deliberate_stops.told_as(told, self.incident)


def collect_exits(current: Generation, group: WorkerGroup, resources: AgentResources, seen_ns: int) -> Exits:
    """Look at every rank, ask the peers to end, and read what those that failed have left.

    It waits only where a rank may have stopped the training on purpose and has not ended, for up to
    ``failure_stop_timeout`` (:mod:`launcher.agent.deliberate_stops`).

    Args:
        current: The generation; at least one of its workers has failed.
        group: Torch's worker group.
        resources: What to work with.
        seen_ns: ``CLOCK_MONOTONIC`` when the failure was seen.
    """
    processes = current.processes
    first = processes.failed
    views = current.views()
    errors, ended_by_us = current.errors(), {*current.condemned, *current.overstayed}
    if any(error.is_deliberate for error in errors.values()):
        errors = deliberate_stops.without_caught(errors, processes.workers, ended_by_us)
    known = failure_incident.look(group, processes, views, errors, current.asked_ns(), resources.machine.gpu_users)
    # The peers take longest to die, so they begin before anything is read, written or said.
    current.request_stop(signal.SIGTERM)
    asked_ns = time.monotonic_ns()
    failed = [worker.local_rank for worker in first]
    resources.events.write("seen", at_ns=seen_ns, generation=current.number, failed=failed)
    resources.events.write("asked", at_ns=asked_ns, generation=current.number)
    cells = {w.local_rank: resources.run_folder_keeper.folder.cell(current.number, w.local_rank) for w in first}
    left = resources.on_disk(
        "what the ranks have left",
        lambda: _Left(_records(processes, first), _outputs(processes), _fatal_stacks(first, cells)),
        _Left({}, {}, {}),
    )
    failures = {
        group.workers[w.local_rank].global_rank: left.records.get(w.local_rank) or processes.failure(w, error_file="")
        for w in first
    }
    seconds = resources.config.failure_stop_timeout
    if awaited := deliberate_stops.await_ends(current, known, resources, seconds):
        known = deliberate_stops.decided(known, awaited, processes.workers, current.errors())
    incident = failure_incident.failure_incident(
        group, processes.pids(), known, views, failures, left.outputs, current.number, seen_ns, current.overstayed
    )
    incident = failure_incident.with_stacks(incident, left.stacks)
    # Those that were killed come first: a kill that was theirs is not one of what another rank needed.
    suspects = sorted(first, key=lambda worker: worker.exit_code != -signal.SIGKILL)
    kills = {
        w.local_rank: resources.machine.memory_kill(w.local_rank, w.pid, was_killed=w.exit_code == -signal.SIGKILL)
        for w in suspects
        if w.local_rank not in ended_by_us
    }
    ranks = {rank.pid: f"rank {rank.rank}" for rank in incident.ranks}
    facts = resources.machine.facts(LONGEST_MACHINE_SECONDS, ranks, current.started_ns)
    incident = failure_incident.with_machine(incident, kills, facts)
    return Exits(incident, failures, views)


def save_incident(incident: Incident, resources: AgentResources) -> tuple[Incident, str | None]:
    """Write an incident; a log folder that cannot take it costs the report, not the restart.

    Returns:
        The incident with its folder, and why it could not be written, for people.
    """
    folder = f"{resources.log_folder}/incidents"
    problem: str | None = f"the incident could not be written under {folder}"

    def write() -> tuple[Incident, str | None]:
        try:
            return incident.write(folder), None
        except OSError as error:
            return incident, f"{problem}: {error.strerror}"

    return resources.on_disk("the incident", write, (incident, problem))


def _records(processes: WorkerProcesses, failed: Collection[WorkerProcess]) -> dict[int, ProcessFailure]:
    """Return torch's records by local rank, but for those whose error files cannot be read."""
    records = {}
    for worker in failed:
        try:
            records[worker.local_rank] = processes.failure(worker)
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("the error file of local rank %s: %s; going on without", worker.local_rank, error)
    return records


def _fatal_stacks(failed: Collection[WorkerProcess], cells: Mapping[int, str]) -> dict[int, tuple[Thread, ...]]:
    died = {w.local_rank: -w.exit_code for w in failed if w.exit_code is not None and w.exit_code < 0}
    return {n: stack for n, number in died.items() if (stack := fatal_stack(f"{cells[n]}.stack", number))}


def _outputs(processes: WorkerProcesses) -> dict[int, OutputTail]:
    return {n: output_tail(stdout, processes.stderrs[n]) for n, stdout in processes.stdouts.items()}
