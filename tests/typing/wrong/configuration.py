from resilience_core import FaultToleranceConfig
from resilience_core import FaultToleranceConfg  # mypy: attr-defined; pyright: reportAttributeAccessIssue

FaultToleranceConfig(rank_hearbeat_timeout=60)  # mypy: call-arg; pyright: reportCallIssue
FaultToleranceConfig(rank_heartbeat_timeout=[60])  # mypy: arg-type; pyright: reportArgumentType
FaultToleranceConfig(rank_section_timeouts=["step"])  # mypy: arg-type; pyright: reportArgumentType
FaultToleranceConfig(rank_section_timeouts={"step": [1]})  # mypy: dict-item; pyright: reportArgumentType
FaultToleranceConfig(capture_stacks=2.5)  # mypy: arg-type; pyright: reportArgumentType
FaultToleranceConfig(safety_factor=None)  # mypy: arg-type; pyright: reportArgumentType
FaultToleranceConfig(run_dir=None)  # mypy: arg-type; pyright: reportArgumentType
FaultToleranceConfig("ft.yaml")  # mypy: call-arg; pyright: reportCallIssue
config = FaultToleranceConfig()
config.log_level = 10  # mypy: misc; pyright: reportAttributeAccessIssue
config.rank_section_timeouts["step"] = 3  # mypy: index; pyright: reportIndexIssue
limit: float = config.rank_heartbeat_timeout  # mypy: assignment; pyright: reportAssignmentType
