from launcher import start_monitor
from launcher import start_moniter  # mypy: attr-defined; pyright: reportAttributeAccessIssue
from resilience_core import FaultToleranceConfig, RankMonitorClient, WorkloadControlRequest

client = RankMonitorClient()
client.start_section()  # mypy: call-arg; pyright: reportCallIssue
client.section(3)  # mypy: arg-type; pyright: reportArgumentType
client.send_heartbeats()  # mypy: attr-defined; pyright: reportAttributeAccessIssue
client.send_workload_control_request("ShutdownWorkload")  # mypy: arg-type; pyright: reportArgumentType
WorkloadControlRequest(3)  # mypy: arg-type; pyright: reportArgumentType
start_monitor(FaultToleranceConfig())  # mypy: call-arg; pyright: reportCallIssue
start_monitor(FaultToleranceConfig(), "2")  # mypy: arg-type; pyright: reportArgumentType
