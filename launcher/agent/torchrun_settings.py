"""Read torchrun's own options the way torchrun reads them, and make torch's description of the workers."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

from torch.distributed import run as torchrun
from torch.distributed.elastic import metrics
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.metrics.api import MetricsConfig
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

from launcher.agent.local_rendezvous import LocalRendezvous
from launcher.agent.open_plane import open_plane
from launcher.agent.rendezvous import FreshStoreRendezvous
from launcher.agent.resources import AgentResources
from launcher.command_line.option_values import check_local_ranks
from launcher.command_line.options import LaunchJob
from launcher.records.log_folders import new_run_id
from launcher.workers.spawn import python_command
from resilience_core.errors import ConfigError

__all__ = ["UNNAMED_RUN", "accepted_by", "complete", "launch_config_of", "worker_spec_of"]

UNNAMED_RUN = "none"
"""What torchrun calls a run without ``--rdzv-id``."""


_RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def complete(job: LaunchJob) -> None:
    """Fill in what torchrun fills in between parsing and running."""
    arguments = job.arguments
    if arguments.standalone or (
        job.is_local and arguments.rdzv_backend == "static" and arguments.rdzv_id == UNNAMED_RUN
    ):
        arguments.rdzv_id = new_run_id()
    if arguments.standalone:
        arguments.rdzv_backend, arguments.rdzv_endpoint = "c10d", "localhost:0"
    if arguments.master_port is None:
        arguments.master_port = 29500


def launch_config_of(job: LaunchJob, log_folder: str, workers: int) -> tuple[Any, str, list[str]]:
    """Return Torch's own reading of the command line; its log folders go into ours, so that a run has one."""
    arguments = job.arguments
    arguments.log_dir = os.path.join(log_folder, "workers")
    check_local_ranks(arguments, workers)
    try:
        launch_config, entrypoint, script_arguments = torchrun.config_from_args(arguments)
    except (ValueError, AssertionError, RuntimeError, NotADirectoryError) as error:
        raise ConfigError(f"torchrun's options cannot be used: {str(error) or repr(error)}") from error
    if not isinstance(entrypoint, str):  # --run-path: torch would run a function of its own in a new process
        return launch_config, python_command(), ["-u", "-c", _RUN_PATH, *script_arguments]
    return launch_config, entrypoint, script_arguments


def worker_spec_of(
    job: LaunchJob, launch_config: Any, entrypoint: str, arguments: list[str], resources: AgentResources
) -> WorkerSpec:
    """Return torch's description of the workers of a job."""
    metrics.initialize_metrics(MetricsConfig(launch_config.metrics_cfg))
    handler, master_addr, master_port = _rendezvous(job, launch_config, resources)
    return WorkerSpec(
        **accepted_by(
            WorkerSpec.__init__,
            role=launch_config.role,
            local_world_size=launch_config.nproc_per_node,
            entrypoint=entrypoint,
            args=tuple(arguments),
            rdzv_handler=handler,
            max_restarts=launch_config.max_restarts,
            monitor_interval=1e-9,  # must be positive; _monitor_workers waits by itself, torch need not sleep on top
            master_addr=master_addr,
            master_port=master_port,
            local_addr=launch_config.local_addr,
            event_log_handler=getattr(launch_config, "event_log_handler", "null"),
            numa_options=getattr(launch_config, "numa_options", None),
            duplicate_stdout_filters=getattr(launch_config, "duplicate_stdout_filters", None),
            duplicate_stderr_filters=getattr(launch_config, "duplicate_stderr_filters", None),
            virtual_local_rank=getattr(launch_config, "virtual_local_rank", False),
        )
    )


def _rendezvous(
    job: LaunchJob, launch_config: Any, resources: AgentResources
) -> tuple[RendezvousHandler, str | None, int | None]:
    timeout = float(launch_config.rdzv_configs.get("read_timeout", 60))
    if job.is_local:
        host = launch_config.local_addr
        if job.port:  # static: the address is the user's
            host = job.arguments.rdzv_endpoint.rpartition(":")[0] or job.arguments.master_addr
        return LocalRendezvous(launch_config.run_id, host, job.port, timeout), None, None
    if job.agrees_by_itself:
        return open_plane(job, launch_config, resources), None, None
    parameters = RendezvousParameters(
        backend=launch_config.rdzv_backend,
        endpoint=launch_config.rdzv_endpoint,
        run_id=launch_config.run_id,
        min_nodes=launch_config.min_nodes,
        max_nodes=launch_config.max_nodes,
        local_addr=launch_config.local_addr,
        **launch_config.rdzv_configs,
    )
    try:
        inner = rendezvous_registry.get_rendezvous_handler(parameters)
    except (ValueError, ImportError) as error:  # a backend or its client library, an endpoint, an option
        raise ConfigError(f"the rendezvous cannot be used as asked: {error}") from error
    return FreshStoreRendezvous(inner, launch_config.local_addr, timeout), None, None


def accepted_by(function: Any, **arguments: Any) -> dict[str, Any]:
    """Return those arguments that this version of torch knows; options of newer ones exist only there."""
    known = _parameters(function)
    return {name: value for name, value in arguments.items() if name in known}


@functools.cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
