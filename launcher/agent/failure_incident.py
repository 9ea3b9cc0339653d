"""What the agent tells and writes about a generation: failures as incidents, restarts as one line."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping

from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.agent.after_shutdown import Overstayed
from launcher.agent.py_spy import find_py_spy
from launcher.incidents.attribution import attribute
from launcher.incidents.frames import Thread
from launcher.incidents.incident import Incident
from launcher.incidents.output_tails import OutputTail
from launcher.incidents.rank_report import RankReport, rank_report
from launcher.processes.evidence import Evidence, ProcessLook, kernel_wait, look_at, uses_a_gpu
from launcher.workers.worker_processes import WorkerProcess, WorkerProcesses
from resilience_core.environment import PY_SPY_VARIABLE
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.error_record import ErrorRecord, is_consequence

__all__ = [
    "NO_PY_SPY",
    "beyond_mending",
    "failure_incident",
    "is_in_a_step",
    "is_same_again",
    "look",
    "misses_py_spy",
    "has_reported",
    "stopped_on_purpose",
    "with_machine",
    "with_stacks",
]

NO_PY_SPY = (
    "  note    py-spy is not installed: the ranks were asked for their stacks, and one that is stopped tells nothing; "
    "pip install py-spy (said once)"
)


def look(
    group: WorkerGroup,
    processes: WorkerProcesses,
    views: Mapping[int, CellView],
    errors: Mapping[int, ErrorRecord],
    asked_ns: Mapping[int, int],
    gpu_users: Collection[int] = (),
) -> dict[int, Evidence]:
    """Look at every rank, before any is asked to end: afterwards it looks like one that ends by itself.

    Args:
        group: The generation.
        processes: Its processes; at least one has failed.
        views: What every rank's cell said, by local rank.
        errors: The exceptions on record, by local rank.
        asked_ns: When a signal asked for the stack, by local rank. It counts where the rank has shown no sign of life
            since: a wait in C that the signal interrupted may have ended it.
        gpu_users: Local ranks that were seen with a GPU while they lived.

    Returns:
        What is known, by rank. No disk is touched.
    """
    workers = {worker.global_rank: processes.workers[worker.local_rank] for worker in group.workers}
    known = {rank: _evidence(w, views[w.local_rank], errors.get(w.local_rank)) for rank, w in workers.items()}
    for rank, each in known.items():
        if (asked := asked_ns.get(each.local_rank, 0)) > each.last_sign_ns:
            known[rank] = each._replace(asked_ns=asked)
    if any(evidence.exit_code == -signal.SIGABRT for evidence in known.values()):
        # Only then it matters; a rank that uses a GPU has hundreds of descriptors open.
        for rank, worker in workers.items():
            has_gpu = worker.local_rank in gpu_users or (worker.exit_code is None and uses_a_gpu(worker.pid))
            known[rank] = known[rank]._replace(has_gpu=has_gpu)
    return known


def failure_incident(
    group: WorkerGroup,
    pids: Mapping[int, int],
    known: Mapping[int, Evidence],
    views: Mapping[int, CellView],
    failures: Mapping[int, ProcessFailure],
    outputs: Mapping[int, OutputTail],
    generation: int,
    seen_ns: int,
    overstayed: Mapping[int, Overstayed],
) -> Incident:
    """Return the incident of workers that exited.

    Args:
        group: The generation.
        pids: By local rank.
        known: What :func:`look` has found, by rank.
        views: What every rank's cell said, by local rank.
        failures: Torch's records of those that failed, by rank.
        outputs: What was written last, by local rank, as far as that could be read.
        generation: Its number.
        seen_ns: ``CLOCK_MONOTONIC`` when the exit was seen.
        overstayed: Who was killed by us, and why, by local rank.
    """
    known = dict(known)
    for rank, failure in failures.items():
        if known[rank].error is None:
            known[rank] = known[rank]._replace(
                error=_error_in_file(failure, views[failure.local_rank], known[rank].ended_ns)
            )
    blame = attribute(list(known.values()), has_others=(group.group_world_size or 1) > 1)
    if killed := {n: overstayed[n] for n in blame.local_ranks if n in overstayed}:
        blame = blame._replace(local_ranks=tuple(killed), why=next(iter(killed.values())).why)
    stopped = sum(not evidence.ended_ns for evidence in known.values())
    return Incident(
        kind="failure",
        generation=generation,
        why=blame.why,
        action=f"{stopped} peer(s) asked to end" if stopped else "no peer is left to end",
        ranks=tuple(
            _report(rank, pids[evidence.local_rank], views[evidence.local_rank], evidence, seen_ns)._replace(
                is_culprit=evidence.local_rank in blame.local_ranks,
                stdout_tail=outputs.get(evidence.local_rank, OutputTail()).stdout,
                stderr_tail=outputs.get(evidence.local_rank, OutputTail()).stderr,
                stack=overstayed[evidence.local_rank].stack if evidence.local_rank in overstayed else (),
            )
            for rank, evidence in known.items()
        ),
        seen_ns=seen_ns,
    )


def with_stacks(incident: Incident, stacks: Mapping[int, tuple[Thread, ...]]) -> Incident:
    """Return an incident with the stacks that ranks have written as they died, by local rank."""
    ranks = tuple(rank._replace(stack=rank.stack or stacks.get(rank.local_rank, ())) for rank in incident.ranks)
    return incident._replace(ranks=ranks)


def with_machine(incident: Incident, kills: Mapping[int, str | None], machine: tuple[str, ...]) -> Incident:
    """Return an incident with what the machine tells of it.

    Args:
        incident: Of workers that exited.
        kills: What the kernel has done for want of memory, by local rank (:mod:`launcher.incidents.memory_kills`).
        machine: See :class:`Incident`.
    """
    ranks = tuple(
        rank._replace(memory_kill=kills.get(rank.local_rank)) if rank.cause == "exit" else rank
        for rank in incident.ranks
    )
    why = incident.why
    killed = [rank for rank in ranks if rank.is_culprit]
    if killed and all(rank.memory_kill is not None and rank.exit_code == -signal.SIGKILL for rank in killed):
        why = why.replace("killed by SIGKILL", "killed by the kernel, out of memory")
    return incident._replace(ranks=ranks, why=why, machine=machine)


def misses_py_spy(incident: Incident) -> bool:
    """Return whether there would be more to tell about a hang with py-spy, and nobody has chosen to do without it."""
    return incident.kind == "hang" and find_py_spy() is None and not os.environ.get(PY_SPY_VARIABLE)


def beyond_mending(incident: Incident) -> str | None:
    """Return why a restart could only end the same way: a culprit has raised an error in how the job was configured.

    Not to be asked where this configuration has been good enough for an earlier generation: then something else has
    changed, a file system for example, and may change back.
    """
    for rank in incident.culprits:
        if rank.error is not None and rank.error.is_permanent:
            return f"rank {rank.rank} raised {rank.error.first_line()}. No restart can mend that"
    return None


def stopped_on_purpose(incident: Incident) -> str | None:
    """Return who has ended the training on purpose, and why; None where nobody has.

    What was caught is no longer in the incident (:mod:`launcher.agent.deliberate_stops`).
    """
    for rank in incident.culprits or incident.ranks:
        if rank.error is not None and rank.error.is_deliberate and rank.exit_code != 0:
            reason = " ".join(rank.error.message.split())
            return f"rank {rank.rank} has stopped the training: {reason}"
    return None


def is_in_a_step(incident: Incident, views: Mapping[int, CellView]) -> bool:
    """Return whether a culprit has failed in a step, the first ones of a run included.

    Those have no section, so whoever has closed none but the one before them, ``setup``, is in one of them.
    """
    first = [rank for rank, view in views.items() if view.closings == 1]
    return incident.is_in_a_step or any(rank.local_rank in first for rank in incident.culprits)


def is_same_again(before: Incident | None, now: Incident) -> bool:
    """Return whether the culprits raised what the culprits of the generation before raised, at the same iteration."""
    if before is None or before.generation != now.generation - 1:
        return False
    raised = [
        {(rank.message, rank.iteration, rank.section) for rank in incident.culprits if rank.error is not None}
        for incident in (before, now)
    ]
    return bool(raised[1]) and raised[0] == raised[1]


def has_reported(views: Mapping[int, CellView]) -> bool:
    """Return whether any rank has sent a heartbeat, used a section or reported an iteration."""
    return any(_has_reported(view) for view in views.values())


def _has_reported(view: CellView) -> bool:
    has_spoken = view.last_heartbeat_ns != view.left_section_ns  # both are set to the same instant at init
    return has_spoken or bool(view.sections) or view.iteration >= 0


def _evidence(worker: WorkerProcess, view: CellView, error: ErrorRecord | None) -> Evidence:
    if worker.exit_code is None:
        known = Evidence.of_cell(worker.local_rank, view, look_at(worker.pid), error)
        return known._replace(kernel_wait=(kernel_wait(worker.pid) or "") if known.state == "S" else "")
    known = Evidence.of_cell(worker.local_rank, view, ProcessLook("Z"), error)
    return known._replace(
        error=error if error is not None and error.may_be_why(view, worker.exit_code) else None,
        exit_code=worker.exit_code,
        ended_ns=worker.ended_ns or 0,
        has_left=worker.exit_code == 0,
        is_dumping_core=False,
    )


def _report(rank: int, pid: int, view: CellView, known: Evidence, now_ns: int) -> RankReport:
    report = rank_report(rank, pid, view, known, now_ns)
    if known.ended_ns != 0 and known.exit_code != 0:
        report = report._replace(cause="exit")
    if (error := known.error) is not None:
        iteration = report.iteration if error.iteration in (None, -1) else error.iteration
        report = report._replace(section=error.section or report.section, iteration=iteration)
    return report


def _error_in_file(failure: ProcessFailure, view: CellView, at_ns: int) -> ErrorRecord | None:
    """Return what a failed worker left in its error file (torch's ``@record``); its time and place are not in there."""
    data = failure.error_file_data
    said = data.get("message") if isinstance(data, dict) else None
    if not isinstance(said, dict):
        return None
    kind, _, message = str(said.get("message") or "").partition(": ")
    return ErrorRecord(
        type=kind,
        message=message,
        traceback=str((said.get("extraInfo") or {}).get("py_callstack", "")),
        iteration=view.iteration,
        at_ns=at_ns,
        noted_ns=at_ns,
        is_consequence=is_consequence(kind, message),
    )
