"""What nvidia-resiliency-ext 0.3 to 0.7 has and this project has not: its other options and configuration keys.

A command line or a file written for it is accepted. What has a counterpart here is mapped to it; everything else is
answered with one warning that says why it has no effect here, so that nobody relies on a protection that does not
exist. ``tests/resilience_core/recorded_nvidia_options.py`` is the list by version.
"""

from __future__ import annotations

import attrs

__all__ = ["FOREIGN_OPTIONS", "IGNORED_KEYS", "IGNORED_PREFIXES", "ForeignOption", "foreign_table", "why_ignored"]

_POLLS = "nothing polls here: deadlines and exits wake the monitor and the agent at once"
_NIC = "name the interfaces with --ft-health-checks nic:NAME, in a job on several nodes"
_MEMORY = "a worker's successor is started when it is gone, and its GPU memory with it, or when kill_timeout has passed"
_STORAGE = "name the folders with --ft-health-checks paths:FOLDER, in a job on several nodes"
_PLACEMENT = "node placement is the scheduler's business"
_LOGS = "no log server is started; '--log-dir DIR --tee 3' keeps each worker's output by generation"
_HEALTH = "the nodes of a job on several are checked; see --ft-health-checks and --ft-health-check"

IGNORED_KEYS: dict[str, str] = {
    "workload_check_interval": _POLLS,
    "restart_check_interval": _POLLS,
    "skip_section_response": "nothing is answered here: a section is one store into shared memory",
    "node_health_check_interval": _HEALTH,
    "node_health_check_endpoint": _HEALTH,
    "segment_health_check_dir": _HEALTH,
    "health_logging": _HEALTH,
    "fact_url": "no attribution service is told; incidents and events are written to the log folder (--log-dir)",
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
    "scheduler_exclusion_dir": _PLACEMENT,
    "use_infra_group_rank": "the rendezvous numbers the nodes; a scheduler's own numbering is not taken over",
    "numa_bind_strict": "use torchrun's --numa-binding",
    "enable_dist_storage_healthcheck": _STORAGE,
    "storage_healthcheck_path": _STORAGE,
    "storage_health_check_path": _STORAGE,
    "cycle_info_dir": "incidents and events are written to the log folder (--log-dir)",
    "cycle_info_job_id": "incidents and events are written to the log folder (--log-dir)",
    "rdzv_impl": "there is one rendezvous here, torch's own, with a new store for every generation",
    "per_cycle_applog_prefix": _LOGS,
    "nvrx_logfile": "the launcher writes to stderr and to the log folder (--log-dir); redirect stderr to keep it",
    "enable_log_server": _LOGS,
}

IGNORED_PREFIXES: dict[str, str] = {
    "attribution_": "no attribution service is asked; each incident names its culprit and keeps the stacks",
    "log_server_": _LOGS,
    "log_aggregator_": _LOGS,
    "log_leaf_": _LOGS,
}


@attrs.frozen(kw_only=True)
class ForeignOption:
    """One option of nvidia-resiliency-ext's launcher that is not the option form of a configuration key.

    Args:
        spellings: All of them.
        setting: Our setting that it is mapped to; None for none.
        torchrun: The attribute of torchrun's parsed arguments that it is mapped to; None for none.
        takes_value: False for a switch.
        choices: The values that are accepted, each with the warning that it causes; None in place of a warning for
            what happens here anyway, an empty mapping for any value.
        why: The warning, where nothing else is said.
    """

    spellings: tuple[str, ...]
    setting: str | None = None
    torchrun: str | None = None
    takes_value: bool = True
    choices: dict[str, str | None] = attrs.field(factory=dict)
    why: str | None = None


FOREIGN_OPTIONS: tuple[ForeignOption, ...] = (
    ForeignOption(spellings=("--workers-stop-timeout", "--workers_stop_timeout"), setting="failure_stop_timeout"),
    ForeignOption(spellings=("--term-timeout", "--term_timeout"), torchrun="shutdown_timeout"),
    ForeignOption(
        spellings=(
            "--restart-policy",
            "--restart_policy",
            "--ft-restart-policy",
            "--ft-restart_policy",
            "--ft_restart_policy",
        ),
        choices={
            "any-failed": None,
            "min-healthy": "a failed rank always restarts the whole group here (any-failed)",
        },
    ),
    ForeignOption(
        spellings=("--ignore-missing-fault-tol-cfg", "--ft-ignore-missing-cfg", "--ft_ignore_missing_cfg"),
        takes_value=False,
        why="a configuration is never required here: without one the defaults protect",
    ),
)


def why_ignored(key: str) -> str | None:
    """Return the reason why a key of nvidia-resiliency-ext means nothing here; None when it is not one of them."""
    if key in IGNORED_KEYS:
        return IGNORED_KEYS[key]
    return next((why for prefix, why in IGNORED_PREFIXES.items() if key.startswith(prefix)), None)


def foreign_table() -> str:
    """Return what means nothing here, as a Markdown table, for the documentation."""
    reasons: dict[str, list[str]] = {}
    for key, why in IGNORED_KEYS.items():
        reasons.setdefault(why, []).append(f"`{key}`")
    for prefix, why in IGNORED_PREFIXES.items():
        reasons.setdefault(why, []).append(f"`{prefix}*`")
    rows = [f"| {', '.join(keys)} | {why} |" for why, keys in reasons.items()]
    return "\n".join(["| key | why it means nothing here |", "|---|---|", *rows]) + "\n"
