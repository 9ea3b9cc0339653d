"""Ranks deaf to SIGTERM that run for ever, each with a forked child and one in a process group of its own."""

import os
import signal
import subprocess
import sys

from resilience_core import RankMonitorClient

signal.signal(signal.SIGTERM, signal.SIG_IGN)
client = RankMonitorClient()
client.init_workload_monitoring()
stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE, preexec_fn=os.setpgrp)
assert child.stdout is not None
child.stdout.readline()
if os.fork():
    print(f"family of rank {os.environ['RANK']} is up", flush=True)
while True:
    signal.pause()
