"""Initialises monitoring, or not, as told; or fails in generation 0 and hangs at the start of generation 1."""

import argparse
import os
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--without", type=int, nargs="*", default=[], help="ranks that never use the client")
parser.add_argument("--seconds", type=float, default=0.0)
parser.add_argument("--fails-then-hangs", action="store_true")
parser.add_argument("--until-file")
arguments = parser.parse_args()

rank, generation = int(os.environ["RANK"]), int(os.environ["FT_RESTART_COUNT"])
if arguments.fails_then_hangs and generation == 1 and rank == 1:
    threading.Event().wait()
if rank not in arguments.without:
    client = __import__("resilience_core").RankMonitorClient()
    client.init_workload_monitoring()
if arguments.fails_then_hangs and generation == 0:
    if rank == 0:  # only when both have started once: of a rank that never has, nothing can be learned
        while not os.path.exists("begun"):
            time.sleep(0.01)
        raise SystemExit(3)
    open("begun", "w").close()
    threading.Event().wait()
time.sleep(arguments.seconds)
while arguments.until_file and not os.path.exists(arguments.until_file):
    time.sleep(0.01)
print(f"rank {rank} is done in generation {generation}", flush=True)
