"""What each rank of the matrix runs: a gloo group that loses one rank in each generation but the last.

Arguments: ``hang`` or ``kill``, and how many generations fail. Who fails changes from generation to generation.
"""

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

from resilience_core import RankMonitorClient

how, failures = sys.argv[1], int(sys.argv[2])
generation, rank = int(os.environ["FT_RESTART_COUNT"]), int(os.environ["RANK"])
client = RankMonitorClient()
client.init_workload_monitoring()
dist.init_process_group("gloo")
for step in range(4):
    client.start_section("step")
    total = torch.ones(1)
    dist.all_reduce(total)
    if step == 2 and generation < failures and rank == (generation + 1) % dist.get_world_size():
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    client.end_section("step")
print(f"done: rank {rank}, generation {generation}, sum {total.item():g}, port {os.environ['MASTER_PORT']}", flush=True)
client.shutdown_workload_monitoring()
# Without destroying the group: torch 2.7 may hang there for ever. Its gloo joins a thread while it holds the GIL, and
# the thread waits for that where it is the last to let go of a tensor.
os._exit(0)
