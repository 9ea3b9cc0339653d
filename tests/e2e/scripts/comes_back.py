"""Two ranks of gloo, one of which comes back when it is looked at for its limit, and needs a while to go on.

Arguments: the folder of the test, for which file the one comes back, and how many verdicts are to be withdrawn before
it goes on.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from resilience_core import RankMonitorClient

RANK, FOLDER, COMES_FOR, VERDICTS = int(os.environ["RANK"]), Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def wait_for(condition: str, name: str, count: int = 1) -> None:
    end = time.monotonic() + 120
    while len({path.resolve() for path in FOLDER.glob(name)}) < count:
        if time.monotonic() > end:
            raise TimeoutError(f"{condition}: no {name} in {FOLDER}")
        time.sleep(0.001)


(FOLDER / f"pid-{os.getpid()}-of-rank-{RANK}").touch()
client = RankMonitorClient()
client.init_workload_monitoring()
dist.init_process_group("gloo")
for number in range(3):
    dist.barrier()
    with client.section("step"):
        if RANK == 1 and number == 1:
            wait_for("nobody is looked at", COMES_FOR)
    if RANK == 1 and number == 1:
        (FOLDER / "back").touch()
        wait_for("not every verdict was withdrawn", "job*/logs/*/near_misses/*/incident.json", VERDICTS)
        time.sleep(0.5)  # the other one is still overdue
    with client.section("step"):
        dist.all_reduce(torch.ones(1))
print(f"rank {RANK} is done", flush=True)
client.shutdown_workload_monitoring()
dist.destroy_process_group()
