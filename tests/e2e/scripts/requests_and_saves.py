"""Rank 0 asks its launcher to end the job; rank 1 takes some seconds to save once it is asked to end.

Arguments: how many seconds, and a file that rank 1 makes once it can be asked.
"""

import os
import signal
import sys
import threading
import time

from resilience_core import RankMonitorClient, WorkloadAction, WorkloadControlRequest

asked = threading.Event()
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    open(sys.argv[2], "w").close()
client = RankMonitorClient()
client.init_workload_monitoring()
if os.environ["RANK"] == "0":
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "enough"))
asked.wait()
time.sleep(float(sys.argv[1]))
print("rank 1 has saved", flush=True)
client.shutdown_workload_monitoring()
