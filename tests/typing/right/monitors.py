"""A monitor without ft_launcher, and what a run has left."""

import os
import pathlib
import subprocess

from launcher import Incident, RankMonitors, __version__, read_events, read_incidents, start_monitor
from resilience_core import FaultToleranceConfig


def watch(command: list[str]) -> None:
    config = FaultToleranceConfig(rank_section_timeouts={"step": 60})
    with start_monitor(config, num_ranks=2, log_dir="logs") as monitors:
        ranks = [subprocess.Popen(command, env={**os.environ, **monitors.environment(n)}) for n in range(2)]
        incident: Incident = monitors.wait_for_incident(timeout=3600)
        print(incident.culprits, [rank.pid for rank in ranks], monitors.pid)
        every: list[Incident] = monitors.incidents()
        print(every)
    keep: RankMonitors = start_monitor(config, 1)
    keep.close()
    print(read_incidents("logs"), read_events("logs"), __version__)
    folder = pathlib.Path("logs")
    print(read_incidents(folder), read_events(folder), start_monitor(config, 1, log_dir=folder, run_dir=folder))
