"""What a configuration is made of: numbers and text, as a file and a command line have them."""

import signal
from collections.abc import Mapping
from pathlib import Path

from resilience_core import ConfigError, FaultToleranceConfig

FaultToleranceConfig()
config = FaultToleranceConfig(
    initial_rank_heartbeat_timeout=600,
    rank_heartbeat_timeout="null",
    rank_out_of_section_timeout=None,
    rank_section_timeouts={"setup": 600, "step": 1.5, "checkpointing": None},
    rank_termination_signal="TERM",
    safety_factor="3.5",
    num_warmup_iterations="2",
    max_no_progress_cycles=0,
    log_level="DEBUG",
    capture_stacks="yes",
    load_plugins=False,
    checkpoint_iteration_file=Path("latest.txt"),
    preload=["numpy", "torch.distributed"],
    keep_runs=None,
    learned_limits=False,
    run_dir=Path("/dev/shm"),
)
FaultToleranceConfig(rank_section_timeouts="setup:600,step:180", rank_termination_signal=signal.SIGTERM, log_level=10)
FaultToleranceConfig(preload="numpy,torch", keep_runs=3, rank_termination_signal=15, learned_limits="relax")

timeout: float | None = config.rank_heartbeat_timeout
sections: Mapping[str, float | None] = config.rank_section_timeouts
number: signal.Signals = config.rank_termination_signal
level: int = config.log_level
modules: tuple[str, ...] | None = config.preload
path: str | None = config.checkpoint_iteration_file
text: str = config.to_json()
again: FaultToleranceConfig = FaultToleranceConfig.from_json(text)
try:
    FaultToleranceConfig.from_yaml_file(Path("ft.yaml"))
except ConfigError as error:
    permanent: bool = error.is_permanent
