"""Learns timeouts in groups made in three ways; every rank must come to the same state."""

import json
import time

import torch.distributed as dist

from resilience_core import RankMonitorClient

client = RankMonitorClient()
client.init_workload_monitoring()
for backend in (None, "gloo", "cpu:gloo"):
    dist.init_process_group(backend)
    for _ in range(2):
        time.sleep(0.01 * (1 + dist.get_rank()))
        client.send_heartbeat()
        with client.section("step"):
            time.sleep(0.01 * (1 + dist.get_rank()))
    assert client.calculate_and_set_hb_timeouts()
    assert client.calculate_and_set_section_timeouts()
    # Both must have learned before the next group is made, so both wait for the other here.
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(client.state_dict()), flush=True)
client.shutdown_workload_monitoring()
