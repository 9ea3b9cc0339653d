"""Rank 1 hangs in its first generation, and ends with 0 when it is asked to; the others run until they are stopped."""

import os
import signal
import threading

from resilience_core import RankMonitorClient

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
rank, generation = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
client = RankMonitorClient()
client.init_workload_monitoring()
if generation == 0:
    if rank == "1":
        client.start_section("step")
    threading.Event().wait()
client.shutdown_workload_monitoring()
print(f"rank {rank} is done in generation {generation}", flush=True)
