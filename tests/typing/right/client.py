"""A rank that speaks with its monitor itself."""

from typing import Any

from resilience_core import (
    FaultToleranceConfig,
    RankMonitorClient,
    RankMonitorClientError,
    SectionError,
    WorkloadAction,
    WorkloadControlRequest,
)


def train(state: dict[str, Any]) -> dict[str, Any]:
    client = RankMonitorClient()
    client.load_state_dict(state)
    try:
        client.init_workload_monitoring(num_warmup_iters=2)
    except RankMonitorClientError as error:
        print(str(error))
    config: FaultToleranceConfig = client.cfg
    print(config.log_level)
    client.start_section("setup")
    client.end_section("setup")
    with client.section("step"):
        client.send_heartbeat()
    try:
        client.end_section("step")
    except SectionError:
        client.end_all_sections()
    names: frozenset[str] = client.open_sections
    ready: bool = client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
    client.calculate_and_set_section_timeouts(
        selected_sections=["step"], calc_out_of_section=False, skip_if_not_ready=True
    )
    client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "bad GPU"))
    client.send_workload_control_request(WorkloadControlRequest(action="ShutdownWorkload", description="enough"))
    client.shutdown_workload_monitoring()
    print(names, ready, client.is_initialized, client.hb_timeouts, client.section_timeouts)
    return client.state_dict()
