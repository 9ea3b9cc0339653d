"""Two ranks of gloo, one of which hangs in five generations while the other, with busy threads, waits for it."""

from __future__ import annotations

import copy
import os
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from resilience_core import RankMonitorClient

GENERATION, RANK = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])


def nested(depth: int) -> dict[str, Any]:
    return {"inner": nested(depth - 1), "numbers": [1, 2, 3]} if depth else {}


def copies(state: dict[str, Any]) -> None:
    while True:
        copy.deepcopy(state)


def starts_threads() -> None:
    while True:
        threads = [threading.Thread(target=lambda: sum(range(200))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


client = RankMonitorClient()
client.init_workload_monitoring()
dist.init_process_group("gloo")
if RANK == 0:
    threading.Thread(target=copies, args=(nested(60),), daemon=True).start()
    threading.Thread(target=starts_threads, daemon=True).start()
for _ in range(3):
    with client.section("step"):
        if RANK == 1 and GENERATION < 5:
            time.sleep(600)
        dist.all_reduce(torch.ones(1))
print(f"rank {RANK} is done in generation {GENERATION}", flush=True)
client.shutdown_workload_monitoring()
os._exit(0)  # the threads are still busy
