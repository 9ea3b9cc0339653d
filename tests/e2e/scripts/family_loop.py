"""Ranks deaf to SIGTERM that run for ever, each with a family that is deaf, too."""

import os
import signal
import sys

from relatives import start_relatives

from resilience_core import RankMonitorClient

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--unmonitored" not in sys.argv:
    client = RankMonitorClient()
    client.init_workload_monitoring()
start_relatives()
print(f"family of rank {os.environ['RANK']} is up", flush=True)
while True:
    signal.pause()
