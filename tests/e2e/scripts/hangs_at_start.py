"""Rank 1 hangs before it initialises monitoring, as in an import; in the first generation only."""

import argparse
import os
import threading

from resilience_core import RankMonitorClient

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=None)
arguments = parser.parse_args()

if os.environ["RANK"] == "1" and os.environ["FT_RESTART_COUNT"] == "0":
    threading.Event().wait(arguments.seconds)
client = RankMonitorClient()
client.init_workload_monitoring()
if os.environ["FT_RESTART_COUNT"] == "0" and arguments.seconds is None:
    threading.Event().wait()
client.shutdown_workload_monitoring()
