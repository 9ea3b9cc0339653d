"""A rank that forms a group, says when, then kills itself (rank 0) or waits to be replaced; see benchmarks.restarts.

With ``hang`` as third argument rank 0 stays in a section until its limit of 0.5 s has passed, and what it notes is the
deadline. Without arguments it dies at once.
"""

import os
import signal
import sys
import time

if len(sys.argv) == 1:
    os._exit(1)
first_line_ns = time.monotonic_ns()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

imported_ns = time.monotonic_ns()
folder, last = sys.argv[1], int(sys.argv[2])
generation, rank = int(os.environ["FT_RESTART_COUNT"]), int(os.environ["RANK"])
dist.init_process_group("gloo")
formed_ns = time.monotonic_ns()
dist.all_reduce(torch.ones(1))
reduced_ns = time.monotonic_ns()
with open(os.path.join(folder, f"{generation}-{rank}"), "w") as file:
    file.write(f"{first_line_ns} {imported_ns} {formed_ns} {reduced_ns}")
dist.barrier()
if generation < last:
    time.sleep(0.6)  # a generation that settles, as real ones do
    if rank == 0:
        hangs = sys.argv[3:] == ["hang"]
        if hangs:
            from resilience_core import RankMonitorClient

            client = RankMonitorClient()
            client.init_workload_monitoring()
            client.start_section("step")
        with open(os.path.join(folder, f"died-{generation}"), "w") as file:
            file.write(str(time.monotonic_ns() + (500_000_000 if hangs else 0)))
        if hangs:
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
dist.destroy_process_group()
