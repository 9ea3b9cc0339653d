"""Keys of nvidia-resiliency-ext's configuration that mean nothing here, each with the reason.

A file written for it loads unchanged; each such key is answered with one warning, so that nobody believes a
protection to be on that is not there.
"""

from __future__ import annotations

__all__ = ["IGNORED_KEYS", "IGNORED_PREFIXES", "why_ignored"]

_POLLS = "nothing polls here: deadlines and exits wake the monitor and the agent at once"
_NIC = "network links are not watched; a rank that waits for a lost link is caught by its section's timeout"
_MEMORY = "a worker is gone, and its GPU memory with it, before its successor starts"
_STORAGE = "storage is not probed; a save that hangs is caught by the 'checkpointing' timeout"
_PLACEMENT = "node placement is the scheduler's business"

IGNORED_KEYS: dict[str, str] = {
    "workload_check_interval": _POLLS,
    "restart_check_interval": _POLLS,
    "skip_section_response": "nothing is answered here: a section is one store into shared memory",
    "node_health_check_interval": "no node health check runs; give the check to your scheduler",
    "enable_nic_monitor": _NIC,
    "enable_nic_healthcheck": _NIC,
    "pci_topo_file": _NIC,
    "link_down_path_template": _NIC,
    "link_state_path_template": _NIC,
    "gpu_memory_reclaim_timeout": _MEMORY,
    "gpu_memory_tolerance_mb": _MEMORY,
    "gpu_memory_poll_interval": _MEMORY,
    "check_remaining_processes": "what a dead rank left behind is always killed before its successor starts",
    "segment": _PLACEMENT,
    "numa_bind_strict": "use torchrun's --numa-binding",
    "enable_dist_storage_healthcheck": _STORAGE,
    "storage_healthcheck_path": _STORAGE,
    "cycle_info_dir": "incidents and events are written to the log folder (--log-dir)",
}

IGNORED_PREFIXES: dict[str, str] = {
    "attribution_": "no attribution service is asked; each incident names its culprit and keeps the stacks",
}


def why_ignored(key: str) -> str | None:
    """The reason why a key of nvidia-resiliency-ext means nothing here; None when it is not one of them."""
    if key in IGNORED_KEYS:
        return IGNORED_KEYS[key]
    return next((why for prefix, why in IGNORED_PREFIXES.items() if key.startswith(prefix)), None)
