"""Make the processes of one generation: what each worker runs, with which variables, and where its output goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.elastic.utils.api import macros

from launcher.agent.resources import AgentResources
from launcher.agent.torchrun_settings import accepted_by
from launcher.agent.worker_cells import Cells
from launcher.agent.worker_environment import log_line_prefix, monitor_environment, worker_environment
from launcher.workers.spawn import Launch
from launcher.workers.worker_processes import WorkerProcesses

__all__ = ["make_processes"]


def make_processes(
    number: int,
    group: WorkerGroup,
    resources: AgentResources,
    cells: Cells,
    restart_count: int,
    orphaned_sessions: Callable[[], set[int]],
    owner_of: Callable[[int], int | None],
) -> WorkerProcesses:
    """Make the processes of a generation; none is started.

    Args:
        number: Of the generation.
        group: Torch's worker group, after the rendezvous.
        resources: What to work with.
        cells: The generation's.
        restart_count: This agent's own count, for the variable that torchrun exports.
        orphaned_sessions: Returns the sessions of descendants that were left to this process.
        owner_of: Returns the pid of the process that reports for a local rank.
    """
    spec = group.spec
    environments: dict[int, dict[str, str]] = {}
    launches: dict[int, Launch] = {}
    for worker in group.workers:
        environments[worker.local_rank] = {
            **worker_environment(spec, group, worker, restart_count),
            **monitor_environment(
                cell=cells[worker.local_rank].path,
                config_file=resources.run_folder_keeper.config_file,
                control_socket=resources.control.path,
                generation=number,
                launcher_pid=os.getpid(),
                load_plugins=resources.config.load_plugins,
            ),
            **resources.limits.environment(),
        }
        arguments = macros.substitute(list(spec.args), str(worker.local_rank))
        launches[worker.local_rank] = Launch(
            command=(cast(str, spec.entrypoint), *map(str, arguments)),
            environment=environments[worker.local_rank],
            local_rank=worker.local_rank,
            numa_options=getattr(spec, "numa_options", None),
        )
    template = resources.log_line_prefix_template
    return WorkerProcesses(
        launches,
        resources.starter.start_all,
        orphaned_sessions,
        owner_of,
        **accepted_by(
            PContext.__init__,
            name=spec.role,
            entrypoint=spec.entrypoint,
            args={local_rank: tuple(launch.command[1:]) for local_rank, launch in launches.items()},
            envs=environments,
            logs_specs=resources.logs_specs,
            log_line_prefixes=(
                {w.local_rank: log_line_prefix(template, spec, w) for w in group.workers} if template else None
            ),
            duplicate_stdout_filters=getattr(spec, "duplicate_stdout_filters", None),
            duplicate_stderr_filters=getattr(spec, "duplicate_stderr_filters", None),
        ),
    )
