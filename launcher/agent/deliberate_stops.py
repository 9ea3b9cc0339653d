"""Tell a training that was stopped on purpose from one that has only caught its ``StopTraining``, in any order of ends.

A rank that raises ``StopTraining`` has it on record at once, and may take long to end: ``finally`` blocks, threads,
``atexit``. Its peers lose it meanwhile and fail first, or are condemned. The record says what the rank itself knows
(:mod:`resilience_core.monitoring.error_capture`), and how the rank ends says the rest:

=============  ===============================================  ========================================================
its record     the rank                                         so the training
=============  ===============================================  ========================================================
any            has ended with 0                                 was not stopped: whatever was raised was caught
uncaught       is on its way out, or has ended                  was stopped on purpose, whatever signal ended it at last
withdrawn      whatever it does                                 was not stopped: the exception was caught and freed
neither        had ended before anything was asked of it        was not stopped: an uncaught one would be marked, so
                                                                something caught it, and ``sys.exit``, a signal or
                                                                another exception ended the process
neither        was condemned, or killed since it overstayed     was stopped on purpose: we have ended its way out
neither        runs                                             is decided by its end. It is asked to end with its
                                                                peers, and waited for as long as they may take, then
                                                                killed. A record that became uncaught or was withdrawn
                                                                meanwhile, or an end with 0, counts as above; otherwise
                                                                it was stopped on purpose: we have ended its way out
=============  ===============================================  ========================================================

The last line is wrong for a rank that has caught the exception, still refers to it (it is in the body of the
``except``, or has kept it), and works on when a peer fails. From outside that looks like a ``finally`` block. All other
doubts are decided for going on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Mapping

from launcher.agent.generation import Generation
from launcher.agent.resources import AgentResources
from launcher.incidents.incident import Incident
from launcher.processes.evidence import Evidence
from launcher.processes.handles import send_signal, wait_for_exit
from launcher.workers.worker_processes import WorkerProcess
from resilience_core.protocol.control import WorkloadAction, WorkloadControlRequest
from resilience_core.protocol.error_record import ErrorRecord

__all__ = ["await_ends", "decided", "end_requests", "told_as", "without_caught"]

_SIGNAL_SECONDS = 0.1
"""How often is looked whether the launcher itself was asked to end."""


def without_caught(
    errors: Mapping[int, ErrorRecord], workers: Mapping[int, WorkerProcess], ended_by_us: Collection[int]
) -> dict[int, ErrorRecord]:
    """Return the exceptions on record without each ``StopTraining`` that has not ended its rank.

    Args:
        errors: By local rank.
        workers: By local rank; those that run were not asked to end yet.
        ended_by_us: Local ranks that were condemned, or killed since they overstayed.
    """
    return {n: e for n, e in errors.items() if not e.is_deliberate or not _was_caught(e, workers[n], n in ended_by_us)}


def _was_caught(error: ErrorRecord, worker: WorkerProcess, is_ended_by_us: bool) -> bool:
    if worker.exit_code is None:
        return False
    return worker.exit_code == 0 or not (error.is_uncaught or is_ended_by_us)


def await_ends(
    current: Generation, known: Mapping[int, Evidence], resources: AgentResources, seconds: float
) -> list[int]:
    """Wait for ranks whose ``StopTraining`` is on its way; those that take longer are killed.

    Args:
        current: The generation; its ranks were asked to end.
        known: What was known before they were asked, by rank.
        resources: What to work with.
        seconds: How long they may take.

    Returns:
        Whom was waited for, ranks.
    """
    awaited = [rank for rank, each in known.items() if _is_on_its_way(each)]
    if not awaited:
        return []
    local_ranks = {known[rank].local_rank for rank in awaited}
    end = time.monotonic() + seconds
    while left := [w for w in current.processes.running if w.local_rank in local_ranks]:
        seconds_left = end - time.monotonic()
        if seconds_left <= 0 or resources.signals.first is not None:
            break
        wait_for_exit([worker.pidfd for worker in left], min(seconds_left, _SIGNAL_SECONDS))
        current.processes.collect_exits()
    for worker in left:
        send_signal(worker.pidfd, signal.SIGKILL)
    return awaited


def _is_on_its_way(each: Evidence) -> bool:
    return each.error is not None and each.error.is_deliberate and not each.error.is_uncaught and not each.ended_ns


def decided(
    known: Mapping[int, Evidence],
    awaited: Collection[int],
    workers: Mapping[int, WorkerProcess],
    errors: Mapping[int, ErrorRecord],
) -> dict[int, Evidence]:
    """Return what is known with the records of the ranks that were waited for as their ends have left them.

    Args:
        known: What was known before they were asked to end, by rank.
        awaited: What :func:`await_ends` has returned.
        workers: By local rank.
        errors: The exceptions that are on record now, by local rank.
    """
    result = dict(known)
    for rank in awaited:
        each = known[rank]
        before, now = each.error, errors.get(each.local_rank)
        is_same = before is not None and now is not None and now.is_deliberate and now.at_ns == before.at_ns
        has_gone_on = workers[each.local_rank].exit_code == 0
        result[rank] = each._replace(error=now if is_same and not has_gone_on else None)
    return result


def end_requests(
    current: Generation, resources: AgentResources, seconds: float
) -> list[tuple[int, WorkloadControlRequest]]:
    """Begin to end a generation that another node has ended, and let who has stopped the training end the job.

    The other node has lost a rank of this one whose ``StopTraining`` is on its way, has failed, and waits for this node
    in the rendezvous, where it hears nothing. So the job is ended in the generation that follows, as if the rank had
    asked for it: that is heard by every node.

    Args:
        current: The generation. Nothing is done where it has failed here: that was decided by :func:`decided`.
        resources: What to work with.
        seconds: How long its ranks may take to end.
    """
    views, workers = current.views(), current.processes
    if not workers.failed:  # else that was written with the failure
        resources.events.write("asked", generation=current.number)
    errors = {n: e for n, e in current.errors().items() if e.is_deliberate and e.is_current(views[n])}
    if not errors or workers.failed:
        current.stop_judging()
        return []
    errors = without_caught(errors, workers.workers, ())
    known = {views[n].rank: Evidence(n, error=error) for n, error in errors.items()}
    current.request_stop(signal.SIGTERM)
    known = decided(known, await_ends(current, known, resources, seconds), workers.workers, current.errors())
    return [
        (rank, WorkloadControlRequest(WorkloadAction.ShutdownWorkload, f"it has stopped the training: {error.message}"))
        for rank, each in known.items()
        if (error := each.error) is not None
    ]


def told_as(told: Incident | None, found: Incident) -> Incident:
    """Return the incident that was told of a failure, its stops on purpose as the ends of the ranks have left them.

    Args:
        told: By the monitor, while the ranks were alive; None where it has told none.
        found: By the launcher, when they had ended.
    """
    if told is None or told.generation != found.generation:
        return found
    errors = {rank.rank: rank.error for rank in found.ranks}
    ranks = [
        rank._replace(error=errors.get(rank.rank)) if rank.error is not None and rank.error.is_deliberate else rank
        for rank in told.ranks
    ]
    return told._replace(ranks=tuple(ranks))
