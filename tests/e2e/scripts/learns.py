"""Learns timeouts in groups made in three ways; every rank must come to the same state."""

import json
import os
import time

import torch.distributed as dist

from resilience_core import RankMonitorClient

client = RankMonitorClient()
client.init_workload_monitoring()
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for number, backend in enumerate((None, "gloo", "cpu:gloo")):
    # A store each: a second group in the first one's store may read the addresses of the first.
    store = f"file://{os.getcwd()}/store{number}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world_size)
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
    os.write(1, (json.dumps(client.state_dict()) + "\n").encode())
client.shutdown_workload_monitoring()
