"""Rank 0 ends with 0 in the middle of a section; rank 1 goes on for longer than every limit."""

import os
import time

from resilience_core import RankMonitorClient

client = RankMonitorClient()
client.init_workload_monitoring()
client.start_section("step")
if os.environ["RANK"] == "0":
    os._exit(0)
end = time.monotonic() + 2.0
while time.monotonic() < end:
    client.end_section("step")
    client.start_section("step")
    time.sleep(0.01)
client.end_section("step")
client.shutdown_workload_monitoring()
print("rank 1 went on")
