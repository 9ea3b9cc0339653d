"""A rank that forms a group, says when, then kills itself (rank 0) or waits to be replaced; see benchmarks.restarts.

Without arguments it dies at once.
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
        with open(os.path.join(folder, f"died-{generation}"), "w") as file:
            file.write(str(time.monotonic_ns()))
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
dist.destroy_process_group()
