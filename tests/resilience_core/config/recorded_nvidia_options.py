"""Recorded, not the real thing: the options and configuration keys of nvidia-resiliency-ext's launcher, by version.

Read from the argument parser and the configuration class of the published packages of these versions.
"""

from __future__ import annotations

VERSIONS = ("0.3.0", "0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.7.0")

# First version, last version, a value (None: a switch, "FILE": the configuration), all spellings.
OPTIONS: tuple[tuple[str, str, str | None, tuple[str, ...]], ...] = (
    ("0.3.0", "0.7.0", "1", ("--nnodes",)),
    ("0.3.0", "0.7.0", "text", ("--nproc-per-node", "--nproc_per_node")),
    ("0.3.0", "0.7.0", "c10d", ("--rdzv-backend", "--rdzv_backend")),
    ("0.3.0", "0.7.0", "text", ("--rdzv-endpoint", "--rdzv_endpoint")),
    ("0.3.0", "0.7.0", "text", ("--rdzv-id", "--rdzv_id")),
    ("0.3.0", "0.7.0", "read_timeout=30", ("--rdzv-conf", "--rdzv_conf")),
    ("0.3.0", "0.7.0", None, ("--standalone",)),
    ("0.3.0", "0.7.0", "7", ("--max-restarts", "--max_restarts")),
    ("0.3.0", "0.7.0", "7", ("--term-timeout", "--term_timeout")),
    ("0.3.0", "0.7.0", "7", ("--workers-stop-timeout", "--workers_stop_timeout")),
    ("0.3.0", "0.7.0", "7", ("--monitor-interval", "--monitor_interval")),
    ("0.3.0", "0.7.0", "spawn", ("--start-method", "--start_method")),
    ("0.3.0", "0.7.0", "text", ("--role",)),
    ("0.3.0", "0.7.0", None, ("-m", "--module")),
    ("0.3.0", "0.7.0", None, ("--no-python", "--no_python")),
    ("0.3.0", "0.7.0", None, ("--run-path", "--run_path")),
    ("0.3.0", "0.7.0", "text", ("--log-dir", "--log_dir")),
    ("0.3.0", "0.7.0", "1", ("-r", "--redirects")),
    ("0.3.0", "0.7.0", "1", ("-t", "--tee")),
    ("0.3.0", "0.7.0", "0", ("--local-ranks-filter", "--local_ranks_filter")),
    ("0.3.0", "0.7.0", "7", ("--node-rank", "--node_rank")),
    ("0.3.0", "0.7.0", "text", ("--master-addr", "--master_addr")),
    ("0.3.0", "0.7.0", "7", ("--master-port", "--master_port")),
    ("0.3.0", "0.7.0", "text", ("--local-addr", "--local_addr")),
    ("0.3.0", "0.7.0", "default", ("--logs-specs", "--logs_specs")),
    ("0.3.0", "0.3.0", "FILE", ("--fault-tol-cfg-path",)),
    ("0.3.0", "0.4.1", None, ("--ignore-missing-fault-tol-cfg",)),
    ("0.3.0", "0.3.0", "7", ("--ft-param-workload_check_interval",)),
    ("0.3.0", "0.3.0", "7", ("--ft-param-initial_rank_heartbeat_timeout",)),
    ("0.3.0", "0.3.0", "7", ("--ft-param-rank_heartbeat_timeout",)),
    ("0.3.0", "0.3.0", "7", ("--ft-param-node_health_check_interval",)),
    ("0.3.0", "0.3.0", "7", ("--ft-param-safety_factor",)),
    ("0.3.0", "0.3.0", "SIGTERM", ("--ft-param-rank_termination_signal",)),
    ("0.3.0", "0.3.0", "DBG", ("--ft-param-log_level",)),
    ("0.3.0", "0.3.0", "7", ("--ft-param-rank_out_of_section_timeout",)),
    ("0.3.0", "0.3.0", "step:7", ("--ft-param-rank_section_timeouts",)),
    ("0.3.0", "0.3.0", "7", ("--ft-param-restart_check_interval",)),
    ("0.3.0", "0.3.0", "min-healthy", ("--restart-policy", "--restart_policy")),
    ("0.3.0", "0.3.0", "true", ("--ft_param_enable_nic_monitor", "--ft-param-enable-nic-monitor")),
    ("0.3.0", "0.3.0", "text", ("--ft_param_pci_topo_file", "--ft-param-pci-topo-file")),
    ("0.3.0", "0.3.0", "text", ("--ft_param_link_down_path_template", "--ft-param-link-down-path-template")),
    ("0.4.0", "0.4.1", "FILE", ("--ft-cfg-path", "--ft-cfg_path", "--fault-tol-cfg-path")),
    (
        "0.4.0",
        "0.4.1",
        "7",
        ("--ft-workload-check-interval", "--ft-workload_check_interval", "--ft-param-workload_check_interval"),
    ),
    (
        "0.4.0",
        "0.4.1",
        "7",
        (
            "--ft-initial-rank-heartbeat-timeout",
            "--ft-initial_rank_heartbeat_timeout",
            "--ft-param-initial_rank_heartbeat_timeout",
        ),
    ),
    (
        "0.4.0",
        "0.4.1",
        "7",
        ("--ft-rank-heartbeat-timeout", "--ft-rank_heartbeat_timeout", "--ft-param-rank_heartbeat_timeout"),
    ),
    (
        "0.4.0",
        "0.4.1",
        "7",
        ("--ft-node-health-check-interval", "--ft-node_health_check_interval", "--ft-param-node_health_check_interval"),
    ),
    ("0.4.0", "0.4.1", "7", ("--ft-safety-factor", "--ft-safety_factor", "--ft-param-safety_factor")),
    (
        "0.4.0",
        "0.4.1",
        "SIGTERM",
        ("--ft-rank-termination-signal", "--ft-rank_termination_signal", "--ft-param-rank_termination_signal"),
    ),
    ("0.4.0", "0.4.1", "DBG", ("--ft-log-level", "--ft-log_level", "--ft-param-log_level")),
    (
        "0.4.0",
        "0.4.1",
        "7",
        (
            "--ft-rank-out-of-section-timeout",
            "--ft-rank_out_of_section_timeout",
            "--ft-param-rank_out_of_section_timeout",
        ),
    ),
    (
        "0.4.0",
        "0.4.1",
        "step:7",
        ("--ft-rank-section-timeouts", "--ft-rank_section_timeouts", "--ft-param-rank_section_timeouts"),
    ),
    (
        "0.4.0",
        "0.4.1",
        "7",
        ("--ft-restart-check-interval", "--ft-restart_check_interval", "--ft-param-restart_check_interval"),
    ),
    (
        "0.4.0",
        "0.4.1",
        "min-healthy",
        ("--ft-restart-policy", "--ft-restart_policy", "--restart-policy", "--restart_policy"),
    ),
    (
        "0.4.0",
        "0.4.1",
        "true",
        (
            "--ft-enable-nic-monitor",
            "--ft-enable_nic_monitor",
            "--ft-param-enable-nic-monitor",
            "--ft_param_enable_nic_monitor",
        ),
    ),
    (
        "0.4.0",
        "0.4.1",
        "text",
        ("--ft-pci-topo-file", "--ft-pci_topo_file", "--ft-param-pci-topo-file", "--ft_param_pci_topo_file"),
    ),
    (
        "0.4.0",
        "0.4.1",
        "text",
        (
            "--ft-link-down-path-template",
            "--ft-link_down_path_template",
            "--ft-param-link-down-path-template",
            "--ft_param_link_down_path_template",
        ),
    ),
    ("0.5.0", "0.7.0", "FILE", ("--ft-cfg-path", "--ft-cfg_path")),
    ("0.5.0", "0.7.0", "7", ("--ft-workload-check-interval", "--ft-workload_check_interval")),
    ("0.5.0", "0.7.0", "7", ("--ft-initial-rank-heartbeat-timeout", "--ft-initial_rank_heartbeat_timeout")),
    ("0.5.0", "0.7.0", "7", ("--ft-rank-heartbeat-timeout", "--ft-rank_heartbeat_timeout")),
    ("0.5.0", "0.7.0", "7", ("--ft-node-health-check-interval", "--ft-node_health_check_interval")),
    ("0.5.0", "0.7.0", "7", ("--ft-safety-factor", "--ft-safety_factor")),
    ("0.5.0", "0.7.0", "SIGTERM", ("--ft-rank-termination-signal", "--ft-rank_termination_signal")),
    ("0.5.0", "0.7.0", "DBG", ("--ft-log-level", "--ft-log_level")),
    ("0.5.0", "0.7.0", "7", ("--ft-rank-out-of-section-timeout", "--ft-rank_out_of_section_timeout")),
    ("0.5.0", "0.7.0", "step:7", ("--ft-rank-section-timeouts", "--ft-rank_section_timeouts")),
    ("0.5.0", "0.7.0", "7", ("--ft-restart-check-interval", "--ft-restart_check_interval")),
    ("0.5.0", "0.7.0", "min-healthy", ("--ft-restart-policy", "--ft-restart_policy")),
    ("0.5.0", "0.7.0", "true", ("--ft-enable-nic-monitor", "--ft-enable_nic_monitor")),
    ("0.5.0", "0.7.0", "text", ("--ft-pci-topo-file", "--ft-pci_topo_file")),
    ("0.5.0", "0.7.0", "text", ("--ft-link-down-path-template", "--ft-link_down_path_template")),
    ("0.5.0", "0.7.0", "true", ("--ft-skip-section-response", "--ft-skip_section_response")),
    ("0.5.0", "0.5.0", "true", ("--ft-use-infra-group-rank", "--ft-use_infra_group_rank")),
    ("0.5.0", "0.7.0", "legacy", ("--ft-rdzv-impl", "--ft-rdzv_impl")),
    ("0.6.0", "0.7.0", "text", ("--ft-node-health-check-endpoint", "--ft-node_health_check_endpoint")),
    ("0.6.0", "0.7.0", "true", ("--ft-enable-nic-healthcheck", "--ft-enable_nic_healthcheck")),
    ("0.6.0", "0.7.0", "text", ("--ft-link-state-path-template", "--ft-link_state_path_template")),
    ("0.6.0", "0.7.0", "true", ("--ft-enable-dist-storage-healthcheck", "--ft_enable_dist_storage_healthcheck")),
    ("0.6.0", "0.7.0", "text", ("--ft-storage-health-check-path", "--ft_storage_health_check_path")),
    ("0.6.0", "0.7.0", "true", ("--ft-numa-bind-strict", "--ft-numa_bind_strict")),
    ("0.6.0", "0.7.0", "7", ("--ft-gpu-memory-reclaim-timeout", "--ft-gpu_memory_reclaim_timeout")),
    ("0.6.0", "0.7.0", "7", ("--ft-gpu-memory-tolerance-mb", "--ft-gpu_memory_tolerance_mb")),
    ("0.6.0", "0.7.0", "7", ("--ft-gpu-memory-poll-interval", "--ft-gpu_memory_poll_interval")),
    ("0.6.0", "0.7.0", "true", ("--ft-check-remaining-processes", "--ft-check_remaining_processes")),
    ("0.6.0", "0.7.0", "true", ("--ft-install-exception-hook", "--ft-install_exception_hook")),
    ("0.6.0", "0.7.0", "7", ("--ft-max-no-progress-cycles", "--ft-max_no_progress_cycles")),
    ("0.6.0", "0.7.0", "7", ("--ft-min-progress-iterations", "--ft-min_progress_iterations")),
    ("0.6.0", "0.7.0", "text", ("--ft-checkpoint-iteration-file", "--ft-checkpoint_iteration_file")),
    ("0.6.0", "0.7.0", "7", ("--ft-segment", "--ft_segment")),
    ("0.6.0", "0.7.0", "text", ("--ft-per-cycle-applog-prefix", "--ft_per_cycle_applog_prefix")),
    ("0.6.0", "0.7.0", "text", ("--ft-nvrx-logfile", "--ft_nvrx_logfile")),
    ("0.6.0", "0.7.0", "true", ("--ft-enable-log-server", "--ft_enable_log_server")),
    ("0.6.0", "0.7.0", "7", ("--ft-log-server-port", "--ft_log_server_port")),
    ("0.6.0", "0.7.0", "7", ("--ft-log-aggregator-count", "--ft_log_aggregator_count")),
    ("0.6.0", "0.7.0", "7", ("--ft-log-leaf-max-queue-chunks", "--ft_log_leaf_max_queue_chunks")),
    ("0.6.0", "0.7.0", "text", ("--ft-log-server-log-prefix", "--ft_log_server_log_prefix")),
    ("0.6.0", "0.7.0", "7", ("--ft-log-server-graceful-shutdown-timeout", "--ft_log_server_graceful_shutdown_timeout")),
    ("0.6.0", "0.7.0", "text", ("--ft-attribution-endpoint", "--ft_attribution_endpoint")),
    ("0.6.0", "0.7.0", "7", ("--ft-attribution-startup-timeout", "--ft_attribution_startup_timeout")),
    ("0.6.0", "0.7.0", "text", ("--ft-attribution-llm-api-key-file", "--ft_attribution_llm_api_key_file")),
    ("0.6.0", "0.7.0", "text", ("--ft-attribution-llm-base-url", "--ft_attribution_llm_base_url")),
    ("0.6.0", "0.7.0", "text", ("--ft-attribution-llm-model", "--ft_attribution_llm_model")),
    ("0.6.0", "0.7.0", "lib", ("--ft-attribution-analysis-backend", "--ft_attribution_analysis_backend")),
    ("0.6.0", "0.6.0", "7", ("--ft-attribution-compute-timeout", "--ft_attribution_compute_timeout")),
    ("0.6.0", "0.7.0", "INFO", ("--ft-attribution-log-level", "--ft_attribution_log_level")),
    ("0.6.0", "0.7.0", "text", ("--ft-cycle-info-dir", "--ft_cycle_info_dir")),
    ("0.6.0", "0.7.0", "text", ("--ft-cycle-info-job-id", "--ft_cycle_info_job_id")),
    ("0.7.0", "0.7.0", "text", ("--ft-segment-health-check-dir", "--ft_segment_health_check_dir")),
    ("0.7.0", "0.7.0", None, ("--ft-ignore-missing-cfg",)),
    ("0.7.0", "0.7.0", "7", ("--ft-no-restart-exit-code", "--ft_no_restart_exit_code")),
    ("0.7.0", "0.7.0", "log", ("--ft-attribution-stop-action", "--ft_attribution_stop_action")),
    ("0.7.0", "0.7.0", "text", ("--ft-attribution-export-url", "--ft_attribution_export_url")),
)

# First version, last version, key.
KEYS = (
    ("0.3.0", "0.7.0", "workload_check_interval"),
    ("0.3.0", "0.7.0", "initial_rank_heartbeat_timeout"),
    ("0.3.0", "0.7.0", "rank_heartbeat_timeout"),
    ("0.3.0", "0.7.0", "rank_section_timeouts"),
    ("0.3.0", "0.7.0", "rank_out_of_section_timeout"),
    ("0.3.0", "0.7.0", "node_health_check_interval"),
    ("0.3.0", "0.7.0", "safety_factor"),
    ("0.3.0", "0.7.0", "rank_termination_signal"),
    ("0.3.0", "0.7.0", "log_level"),
    ("0.3.0", "0.7.0", "restart_check_interval"),
    ("0.3.0", "0.7.0", "enable_nic_monitor"),
    ("0.3.0", "0.7.0", "pci_topo_file"),
    ("0.3.0", "0.7.0", "link_down_path_template"),
    ("0.5.0", "0.7.0", "skip_section_response"),
    ("0.5.0", "0.5.0", "use_infra_group_rank"),
    ("0.6.0", "0.7.0", "enable_nic_healthcheck"),
    ("0.6.0", "0.7.0", "enable_dist_storage_healthcheck"),
    ("0.6.0", "0.7.0", "storage_healthcheck_path"),
    ("0.6.0", "0.7.0", "link_state_path_template"),
    ("0.6.0", "0.7.0", "segment"),
    ("0.6.0", "0.7.0", "numa_bind_strict"),
    ("0.6.0", "0.7.0", "gpu_memory_reclaim_timeout"),
    ("0.6.0", "0.7.0", "gpu_memory_tolerance_mb"),
    ("0.6.0", "0.7.0", "gpu_memory_poll_interval"),
    ("0.6.0", "0.7.0", "check_remaining_processes"),
    ("0.6.0", "0.7.0", "max_no_progress_cycles"),
    ("0.6.0", "0.7.0", "min_progress_iterations"),
    ("0.6.0", "0.7.0", "checkpoint_iteration_file"),
    ("0.6.0", "0.7.0", "install_exception_hook"),
    ("0.6.0", "0.7.0", "num_warmup_iterations"),
    ("0.6.0", "0.7.0", "attribution_endpoint"),
    ("0.6.0", "0.7.0", "cycle_info_dir"),
    ("0.7.0", "0.7.0", "attribution_stop_action"),
    ("0.7.0", "0.7.0", "attribution_export_url"),
    ("0.7.0", "0.7.0", "segment_health_check_dir"),
)

# On branches of its repository, in no release so far.
UNRELEASED_KEYS = ("fact_url", "health_logging", "scheduler_exclusion_dir")

# What its to_yaml_file() writes: defaults of 0.4.1 and of 0.7.0.
WRITTEN_BY = {
    "0.4.1": """\
fault_tolerance:
  enable_nic_monitor: true
  initial_rank_heartbeat_timeout: 3600.0
  link_down_path_template: null
  log_level: 20
  node_health_check_interval: 5.0
  pci_topo_file: null
  rank_heartbeat_timeout: 2700.0
  rank_out_of_section_timeout: null
  rank_section_timeouts:
    setup: 600.0
    step: 180.0
  rank_termination_signal: SIGKILL
  restart_check_interval: 60.0
  safety_factor: 5.0
  workload_check_interval: 5.0
""",
    "0.7.0": """\
fault_tolerance:
  attribution_endpoint: null
  attribution_export_url: null
  attribution_stop_action: null
  check_remaining_processes: false
  checkpoint_iteration_file: null
  cycle_info_dir: null
  enable_dist_storage_healthcheck: false
  enable_nic_healthcheck: true
  enable_nic_monitor: false
  gpu_memory_poll_interval: 2.0
  gpu_memory_reclaim_timeout: 50.0
  gpu_memory_tolerance_mb: 512.0
  initial_rank_heartbeat_timeout: null
  install_exception_hook: false
  link_down_path_template: null
  link_state_path_template: null
  log_level: 20
  max_no_progress_cycles: 3
  min_progress_iterations: 1
  node_health_check_interval: 5.0
  num_warmup_iterations: 5
  numa_bind_strict: true
  pci_topo_file: null
  rank_heartbeat_timeout: null
  rank_out_of_section_timeout: null
  rank_section_timeouts:
    setup: 600.0
    step: 180.0
  rank_termination_signal: SIGKILL
  restart_check_interval: 60.0
  safety_factor: 5.0
  segment: null
  segment_health_check_dir: null
  skip_section_response: true
  storage_healthcheck_path: null
  workload_check_interval: 5.0
""",
}
