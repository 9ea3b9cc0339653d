"""Ranks under ``launcher.start_monitor``: started, and started anew when one ends, until all are told to stop.

host.py FOLDER RANKS MODE SECONDS CONFIG-JSON
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from launcher import start_monitor
from resilience_core import FaultToleranceConfig


def main() -> None:
    folder, count, mode, seconds, config = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]
    program = str(Path(__file__).with_name("steady.py"))
    with start_monitor(
        FaultToleranceConfig(**json.loads(config)), count, log_dir=f"{folder}/logs", run_dir=f"{folder}/run"
    ) as monitors:

        def start(rank: int) -> "subprocess.Popen[bytes]":
            environment = {**os.environ, **monitors.environment(rank), "RANK": str(rank)}
            return subprocess.Popen([sys.executable, program, f"{folder}/notes", mode, seconds], env=environment)

        ranks = [start(rank) for rank in range(count)]
        while any(rank.poll() is None for rank in ranks):
            for number, rank in enumerate(ranks):
                if rank.poll() not in (None, 0):
                    with open(f"{folder}/deaths", "a") as file:
                        file.write(f"{number} {rank.returncode} {time.monotonic_ns()}\n")
                    ranks[number] = start(number)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
