"""What the agent tells and writes about a generation: failures as incidents, restarts as one line."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launcher.incident import Incident, RankReport
from resilience_core.cell import CellView

__all__ = ["YOUNG_NS", "failure_incident", "restarted", "showed_life", "written"]

YOUNG_NS = 10_000_000_000
"""A generation that ends sooner after its start has died young."""


def failure_incident(
    group: WorkerGroup,
    failures: Sequence[ProcessFailure],
    views: Mapping[int, CellView],
    generation: int,
    seen_ns: int,
) -> Incident:
    """The incident of workers that exited.

    Args:
        group: The generation.
        failures: Who failed, first death first.
        views: What every rank's cell said, by local rank.
        generation: Its number.
        seen_ns: ``CLOCK_MONOTONIC`` when the exit was seen.
    """
    failed = {failure.local_rank: failure for failure in failures}
    first = failures[0].local_rank
    peers = len(group.workers) - len(failed)
    return Incident(
        kind="failure",
        generation=generation,
        why="exited first" if peers or len(failed) > 1 else "the only rank here",
        action=f"{peers} peer(s) stopped; the group is restarted while --max-restarts allows",
        ranks=tuple(
            _report(worker.global_rank, views[worker.local_rank], failed.get(worker.local_rank), seen_ns)._replace(
                local_rank=worker.local_rank,
                pid=worker.id,
                is_culprit=worker.local_rank == first,
            )
            for worker in group.workers
        ),
        seen_ns=seen_ns,
    )


def written(incident: Incident, log_folder: str) -> tuple[Incident, str | None]:
    """Write the incident; a log folder that cannot take it costs the report, not the restart."""
    try:
        return incident.write(f"{log_folder}/incidents"), None
    except OSError as error:
        return incident, f"the incident could not be written under {log_folder}: {error.strerror}"


def restarted(generation: int, spec: WorkerSpec, workers: int, seen_ns: int) -> str:
    """One line about a group that is back."""
    after = f", {(time.monotonic_ns() - seen_ns) / 1e9:.2f} s after the failure was seen" if seen_ns else ""
    return f"generation {generation} started: {workers} worker(s) here (--max-restarts {spec.max_restarts}){after}"


def showed_life(view: CellView) -> bool:
    """Whether a rank has sent a heartbeat, used a section or reported an iteration."""
    has_spoken = view.last_heartbeat_ns != view.left_section_ns  # both are set to the same instant at init
    return has_spoken or bool(view.sections) or view.iteration >= 0


def _report(rank: int, view: CellView, failure: ProcessFailure | None, now_ns: int) -> RankReport:
    youngest = max(view.sections, key=lambda section: section.opened_ns, default=None)
    since_ns = youngest.opened_ns if youngest is not None else view.left_section_ns
    return RankReport(
        rank=rank,
        local_rank=-1,
        pid=view.pid,
        cause="exit" if failure is not None else None,
        section=youngest.name if youngest is not None else None,
        open_seconds=(now_ns - since_ns) / 1e9 if since_ns else None,
        iteration=view.iteration if view.iteration >= 0 else None,
        exit_code=failure.exitcode if failure is not None else None,
        message=_first_line(failure) if failure is not None else None,
    )


def _first_line(failure: ProcessFailure) -> str | None:
    """What the worker itself said, when it left an error file (torch's ``@record``)."""
    said = failure.error_file_data.get("message") if isinstance(failure.error_file_data, dict) else None
    text = said.get("message") if isinstance(said, dict) else None
    lines = str(text or "").strip().splitlines()
    return lines[0] if lines else None
