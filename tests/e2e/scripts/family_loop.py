"""Ranks deaf to SIGTERM that run for ever, each with a family that is deaf, too."""

import os
import resource
import signal
import sys

from relatives import start_relatives, start_washed_daemon

from resilience_core import RankMonitorClient

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--unmonitored" not in sys.argv:
    client = RankMonitorClient()
    client.init_workload_monitoring()
if "--lifts-limits" in sys.argv:  # so that only the older marks are left
    resource.setrlimit(10, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    start_washed_daemon()
start_relatives()
print(f"family of rank {os.environ['RANK']} is up", flush=True)
while True:
    signal.pause()
