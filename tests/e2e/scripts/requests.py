"""Rank 1 asks its launcher for something; then both wait to be ended, unless all may continue."""

import os
import sys
import threading

from resilience_core import RankMonitorClient, WorkloadControlRequest

client = RankMonitorClient()
client.init_workload_monitoring()
request = WorkloadControlRequest(sys.argv[1], sys.argv[2])
if os.environ["RANK"] == "1":
    client.send_workload_control_request(request)
if sys.argv[1] != "Continue":
    threading.Event().wait()
client.shutdown_workload_monitoring()
