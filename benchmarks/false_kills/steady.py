"""A healthy rank: steps whose true duration is known, collections of garbage within them; no torch.

    steady.py NOTES MODE SECONDS

Each step lasts 0.5 to 1 times SECONDS, every fifth a whole one; the limit is the launcher's business. Steps that
took noticeably longer than SECONDS are noted with both instants, so that they can be compared with what was frozen
when. Ends when the file ``NOTES/stop`` is there.
"""

import gc
import os
import random
import sys
import time

from resilience_core import RankMonitorClient

NOTABLE = 1.15


def main() -> None:
    folder, mode, longest = sys.argv[1], sys.argv[2], float(sys.argv[3])
    name = f"{folder}/{os.environ['RANK']}-{os.getpid()}"
    chance = random.Random(os.getpid())
    client = RankMonitorClient()
    client.init_workload_monitoring()
    garbage: list[list[object]] = []
    with open(name, "w", buffering=1) as notes:
        steps = 0
        while not os.path.exists(f"{folder}/stop"):
            seconds = longest if steps % 5 == 0 else longest * chance.uniform(0.5, 1)
            began_ns = time.monotonic_ns()
            if mode == "sections":
                client.start_section("step")
                work(seconds, garbage, chance)
                client.end_section("step")
            elif mode == "out":
                client.start_section("step")
                client.end_section("step")
                work(seconds, garbage, chance)
            else:
                work(seconds, garbage, chance)
                client.send_heartbeat()
            ended_ns = time.monotonic_ns()
            if ended_ns - began_ns > NOTABLE * longest * 1e9:
                notes.write(f"{began_ns} {ended_ns}\n")
            steps += 1
        client.shutdown_workload_monitoring()
        notes.write(f"steps {steps}\n")


def work(seconds: float, garbage: list[list[object]], chance: random.Random) -> None:
    """Take so long, part of it in a collection of garbage where there is some."""
    end = time.monotonic() + seconds
    if chance.random() < 0.05:
        for _ in range(40_000):
            ring: list[object] = []
            ring.append(ring)
            garbage.append(ring)
        garbage.clear()
        gc.collect()
    time.sleep(max(0.0, end - time.monotonic()))


main()
