"""What the agent tells and writes about a generation: failures as incidents, restarts as one line."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.agent.after_shutdown import Overstayed
from launcher.agent.monitor_handle import find_py_spy
from launcher.incidents.attribution import assign_blame
from launcher.incidents.incident import Incident, RankReport
from launcher.incidents.phrases import time_of_day
from launcher.monitor.near_miss import late_phrase
from launcher.processes.evidence import Evidence, ProcessLook, look_at, unmonitored, uses_a_gpu
from launcher.records.console import ERROR, WARNING
from launcher.workers.worker_processes import Worker, WorkerProcesses
from resilience_core.environment import PY_SPY_VARIABLE
from resilience_core.monitoring.cell import CellView
from resilience_core.monitoring.error_record import ErrorRecord, is_consequence
from resilience_core.system.plain_files import only_plain

__all__ = [
    "NO_PY_SPY",
    "YOUNG_NS",
    "beyond_mending",
    "closing",
    "ended_unprotected",
    "failure_incident",
    "is_in_a_step",
    "is_same_again",
    "look",
    "level_of",
    "misses_py_spy",
    "monitor_changed",
    "near_miss",
    "restarted",
    "showed_life",
    "tail",
    "what_follows",
    "withdrawn",
    "written",
]

TAIL_LINES = 20
LONGEST_TAIL_BYTES = 8 << 10

NO_PY_SPY = (
    "  note    py-spy is not installed: a signal asked the ranks for their stacks, and a stopped rank does not answer "
    "one; pip install py-spy (said once)"
)
YOUNG_NS = 10_000_000_000
"""A generation that ends sooner after its start has died young."""


def look(
    group: WorkerGroup,
    processes: WorkerProcesses,
    views: Mapping[int, CellView],
    errors: Mapping[int, ErrorRecord],
    asked_ns: Mapping[int, int],
) -> dict[int, Evidence]:
    """Look at every rank, before any is asked to end: afterwards it looks like one that ends by itself.

    Args:
        group: The generation.
        processes: Its processes; at least one has failed.
        views: What every rank's cell said, by local rank.
        errors: The exceptions on record, by local rank.
        asked_ns: When a signal asked for the stack, by local rank. It counts where the rank has shown no sign of life
            since: a wait in C that the signal interrupted may have ended it.

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
            if worker.exit_code is None:
                known[rank] = known[rank]._replace(has_gpu=uses_a_gpu(worker.pid))
    return known


def failure_incident(
    group: WorkerGroup,
    pids: Mapping[int, int],
    known: Mapping[int, Evidence],
    views: Mapping[int, CellView],
    failures: Mapping[int, ProcessFailure],
    tails: Mapping[int, Sequence[str]],
    generation: int,
    seen_ns: int,
    overstayed: Mapping[int, Overstayed],
) -> Incident:
    """The incident of workers that exited.

    Args:
        group: The generation.
        pids: By local rank.
        known: What :func:`look` has found, by rank.
        views: What every rank's cell said, by local rank.
        failures: Torch's records of those that failed, by rank.
        tails: The last lines of standard error, by local rank, as far as they could be read.
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
    blame = assign_blame(list(known.values()), has_others=(group.group_world_size or 1) > 1)
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
                stderr_tail=tuple(tails.get(evidence.local_rank, ())),
                stack=overstayed[evidence.local_rank].stack if evidence.local_rank in overstayed else (),
            )
            for rank, evidence in known.items()
        ),
        seen_ns=seen_ns,
    )


def what_follows(taken: int, allowed: int) -> str:
    """One line about what a failure leads to.

    Args:
        taken: How many restarts there were before.
        allowed: ``--max-restarts``.
    """
    if taken < allowed:
        return f"restart {taken + 1} of {allowed} follows"
    if allowed == 0:
        return "no restart follows (--max-restarts 0)"
    return f"no restart is left (--max-restarts {allowed})"


def misses_py_spy(incident: Incident) -> bool:
    """Whether there would be more to tell about a hang with py-spy, and nobody has chosen to do without it."""
    return incident.kind == "hang" and find_py_spy() is None and not os.environ.get(PY_SPY_VARIABLE)


def beyond_mending(incident: Incident) -> str | None:
    """Why a restart could only end the same way: a culprit has raised an error in how the job was configured.

    Not to be asked where this configuration has been good enough for an earlier generation: then something else has
    changed, a file system for example, and may change back.
    """
    for rank in incident.culprits:
        if rank.error is not None and rank.error.is_permanent:
            return f"rank {rank.rank} raised {rank.error.first_line()}. No restart can mend that"
    return None


def is_in_a_step(incident: Incident, views: Mapping[int, CellView]) -> bool:
    """Whether a culprit has failed in a step, the first ones of a run included.

    Those have no section, so whoever has closed none but the one before them, ``setup``, is in one of them.
    """
    first = [rank for rank, view in views.items() if view.closings == 1]
    return incident.is_in_a_step or any(rank.local_rank in first for rank in incident.culprits)


def is_same_again(before: Incident | None, now: Incident) -> bool:
    """Whether the culprits raised what the culprits of the generation before raised, at the same iteration."""
    if before is None or before.generation != now.generation - 1:
        return False
    raised = [
        {(rank.message, rank.iteration, rank.section) for rank in incident.culprits if rank.error is not None}
        for incident in (before, now)
    ]
    return bool(raised[1]) and raised[0] == raised[1]


def closing(incident: Incident | None, why: str | None) -> list[str]:
    """The last words about a job that has failed: the incident that ended it, rather than whom we have killed since.

    Args:
        incident: The last generation's, None where it was ended without one.
        why: Why it is not started again.
    """
    lines = [f"the job has failed{f': {why}' if why else ''}"]
    if incident is not None:
        lines += [f"  {line}" for line in incident.headlines()]
        if incident.folder is not None:
            lines.append(f"  report  {os.path.join(incident.folder, 'report.txt')}")
    return lines


def written(incident: Incident, log_folder: str) -> tuple[Incident, str | None]:
    """Write the incident; a log folder that cannot take it costs the report, not the restart."""
    try:
        return incident.write(f"{log_folder}/incidents"), None
    except OSError as error:
        return incident, f"the incident could not be written under {log_folder}: {error.strerror}"


def restarted(generation: int, workers: int, reason: tuple[str, int] | None) -> str:
    """One line about a group that is back.

    Args:
        generation: Its number.
        workers: How many there are on this node.
        reason: What the group was started anew for, and when that was seen here; None where nothing was.
    """
    after = f", {(time.monotonic_ns() - reason[1]) / 1e9:.2f} s after {reason[0]} was seen" if reason else ""
    return f"generation {generation} started: {workers} worker(s) here{after}"


def monitor_changed(change: str, reason: str) -> str:
    """One line about the monitor: ``monitor_replaced``, ``monitor_lost`` or ``monitor_back``."""
    if change == "monitor_replaced":
        return f"the monitor {reason}; a new one watches on, training was not touched"
    if change == "monitor_lost":
        return (
            f"PROTECTION IS OFF: one monitor after the other is lost, the last one {reason}. Training goes on, but a "
            "rank that hangs may not be seen. New ones are started, more and more slowly; it will be said when one "
            "lives on"
        )
    return f"protection is on again {reason}: the monitor lives on, and watches every rank"


def ended_unprotected(since_ns: int) -> str:
    """One line about a job at whose end no monitor had lived on since ``monitor_lost``."""
    now_ns = time.monotonic_ns()
    return (
        f"PROTECTION WAS STILL OFF when the job ended, since {time_of_day(since_ns, now_ns)} "
        f"({(now_ns - since_ns) / 1e9:.1f} s): a rank that hung in that time may not have been seen"
    )


def level_of(change: str) -> int:
    """How loud a change of the monitor is told: that nobody is protected is heard at any ``log_level`` up to ERROR."""
    return ERROR if change == "monitor_lost" else WARNING


def near_miss(miss: Mapping[str, Any], count: int) -> str:
    """One line about a rank whose verdict was withdrawn; ``count`` is how many there were so far."""
    where = f"section '{miss['section']}'" if miss["section"] is not None else miss["cause"]
    late = late_phrase(miss["late_seconds"], miss["late_at_most_seconds"])
    rank = f"near miss {count}: rank {miss['rank']} (pid {miss['pid']})"
    limit = f"({where}, limit {miss['limit_seconds']:g} s)"
    if miss["waited_for"] is not None:
        return f"{rank} waits for rank {miss['waited_for']}, which came back {limit}; it was spared, and is watched on"
    if miss["was_asked"]:
        return (
            f"{rank} came back{late} {limit} when a signal asked it for its stack; it was spared. Either the limit is "
            "too close to what is normal, or it was stuck in a call that any signal ends"
        )
    return (
        f"{rank} came back{late} {limit} before it was signalled; it was spared. The limit is too close to what is "
        "normal"
    )


def stuck(rank: str, state: str, kill_timeout: float) -> str:
    """One line about a rank that was killed and is not gone."""
    return (
        f"{rank} was killed and is not gone ({state}): it counts as failed. It is waited for (--ft-kill-timeout "
        f"{kill_timeout:g}), then replaced all the same; what it holds (memory of a GPU, files, ports) stays held"
    )


def withdrawn(miss: Mapping[str, Any]) -> str:
    """One line about a rank that was to be terminated together with one that is overdue, as was said, and was not."""
    return (
        f"withdrawn: rank {miss['rank']} (pid {miss['pid']}) was not overdue itself, and is not signalled after all; "
        "it is watched on"
    )


def showed_life(view: CellView) -> bool:
    """Whether a rank has sent a heartbeat, used a section or reported an iteration."""
    has_spoken = view.last_heartbeat_ns != view.left_section_ns  # both are set to the same instant at init
    return has_spoken or bool(view.sections) or view.iteration >= 0


def _evidence(worker: Worker, view: CellView, error: ErrorRecord | None) -> Evidence:
    if worker.exit_code is None:
        return Evidence.of_cell(worker.local_rank, view, look_at(worker.pid), error)
    known = Evidence.of_cell(worker.local_rank, view, ProcessLook("Z"), error)
    return known._replace(
        exit_code=worker.exit_code,
        ended_ns=worker.ended_ns or 0,
        has_left=worker.exit_code == 0,
        is_dumping_core=False,
    )


def _report(rank: int, pid: int, view: CellView, known: Evidence, now_ns: int) -> RankReport:
    youngest = max(view.sections, key=lambda section: section.opened_ns, default=None)
    since_ns = youngest.opened_ns if youngest is not None else view.left_section_ns
    iteration = view.iteration if view.iteration >= 0 else None
    has_failed = known.ended_ns != 0 and known.exit_code != 0
    section = youngest.name if youngest is not None else None
    if known.error is not None:
        section = known.error.section or section
        iteration = iteration if known.error.iteration in (None, -1) else known.error.iteration
    return RankReport(
        rank=rank,
        local_rank=known.local_rank,
        pid=pid,
        cause="exit" if has_failed else None,
        section=section,
        open_seconds=(now_ns - since_ns) / 1e9 if since_ns else None,
        iteration=iteration,
        process_state=known.state or None,
        exit_code=known.exit_code,
        message=known.error.first_line() if known.error is not None else None,
        error=known.error,
        unmonitored=unmonitored(view),
    )


def _error_in_file(failure: ProcessFailure, view: CellView, at_ns: int) -> ErrorRecord | None:
    """What a failed worker left in its error file (torch's ``@record``); its time and place are not in there."""
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


def tail(path: str) -> tuple[str, ...]:
    """Return the last lines of a file that a worker's standard error went to; none of what is not a file."""
    try:
        with open(path, "rb", opener=only_plain) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return ()
            file.seek(max(0, status.st_size - LONGEST_TAIL_BYTES))
            lines = file.read(LONGEST_TAIL_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(lines[-TAIL_LINES:])
