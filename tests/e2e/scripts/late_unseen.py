"""Two ranks of gloo, one of which leaves its section a millisecond after the limit, and works on before it goes on.

Arguments: the limit of the section in seconds, and how often.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

from resilience_core import RankMonitorClient

RANK, LIMIT, TIMES = int(os.environ["RANK"]), float(sys.argv[1]), int(sys.argv[2])

client = RankMonitorClient()
client.init_workload_monitoring()
dist.init_process_group("gloo")
for _ in range(TIMES):
    dist.barrier()
    began = time.monotonic()
    if RANK == 1:
        with client.section("step"):
            time.sleep(max(0.0, began + LIMIT + 0.001 - time.monotonic()))
        time.sleep(0.3 * LIMIT)  # the limit of the other one passes meanwhile
    with client.section("step"):
        dist.all_reduce(torch.ones(1))
print(f"rank {RANK} is done", flush=True)
client.shutdown_workload_monitoring()
dist.destroy_process_group()
