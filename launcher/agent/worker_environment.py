"""What a worker finds in its environment: torchrun's variables, key by key, and ours."""

from __future__ import annotations

import os
import socket
from string import Template

from torch.distributed.elastic.agent.server.api import Worker, WorkerGroup, WorkerSpec

from resilience_core.environment import (
    CELL_VARIABLE,
    CONFIG_VARIABLE,
    CONTROL_VARIABLE,
    LAUNCHER_VARIABLE,
    PLUGINS_VARIABLE,
    RESTART_COUNT_VARIABLE,
)

__all__ = ["log_line_prefix", "monitor_environment", "worker_environment"]


def worker_environment(spec: WorkerSpec, group: WorkerGroup, worker: Worker, restart_count: int) -> dict[str, str]:
    """Return the variables that torchrun sets for one worker (a test compares them with torchrun's).

    Args:
        spec: The job on this node.
        group: The generation, after its rendezvous.
        worker: The worker, with its ranks.
        restart_count: This agent's own count, as torchrun has it; ours is ``FT_RESTART_COUNT``.
    """
    environment = {
        "LOCAL_RANK": str(worker.local_rank),
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
        "TORCHELASTIC_USE_AGENT_STORE": str(spec.rdzv_handler.use_agent_store),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    for inherited in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        if inherited in os.environ:
            environment[inherited] = os.environ[inherited]
    if getattr(spec, "virtual_local_rank", False):
        environment["LOCAL_RANK"] = "0"
        # On ROCm the variable of HIP comes first, and both are understood.
        parent = "HIP_VISIBLE_DEVICES" if os.environ.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
        device = _own_device(worker.local_rank, parent)
        environment |= {"CUDA_VISIBLE_DEVICES": device, parent: device}
    return environment


def monitor_environment(
    *, cell: str, config_file: str, control_socket: str | None, generation: int, launcher_pid: int, load_plugins: bool
) -> dict[str, str]:
    """Return the variables by which a rank finds its monitor, and those it needs before it reads its configuration."""
    environment = {
        CELL_VARIABLE: cell,
        CONFIG_VARIABLE: config_file,
        LAUNCHER_VARIABLE: str(launcher_pid),
        RESTART_COUNT_VARIABLE: str(generation),
    }
    if not load_plugins:
        environment[PLUGINS_VARIABLE] = "0"
    if control_socket is not None:
        environment[CONTROL_VARIABLE] = control_socket
    return environment


def log_line_prefix(template: str, spec: WorkerSpec, worker: Worker) -> str:
    """Return Torchrun's ``TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE`` for one worker."""
    return Template(template).safe_substitute(
        role_name=spec.role, rank=worker.global_rank, local_rank=worker.local_rank, hostname=socket.gethostname()
    )


def _own_device(local_rank: int, variable: str) -> str:
    """Return the one GPU that a worker sees under ``--virtual-local-rank``."""
    visible = os.environ.get(variable)
    if visible is None:
        return str(local_rank)
    devices = visible.split(",")
    if local_rank >= len(devices):
        raise ValueError(f"local rank {local_rank} has no GPU: {variable} names {len(devices)} ({visible})")
    return devices[local_rank].strip()
