"""A training of collectives alone that notes when what happened, on CLOCK_MONOTONIC, and strikes itself as told.

    job.py CONTENDER TIMELINE fault|hang|none GENERATIONS

In all generations but the last, rank 1 is killed, or opens a section and never closes it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from clients import generation, make_client


def main() -> None:
    contender, timeline, strike, generations = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    rank = int(os.environ["RANK"])

    def note(what: str) -> None:
        line = {"what": what, "rank": rank, "generation": generation(), "pid": os.getpid(), "t_ns": time.monotonic_ns()}
        with open(timeline, "a") as file:
            file.write(json.dumps(line) + "\n")

    note("began")
    client = make_client(contender) if strike == "hang" else None
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    note("all_reduce")
    if generation() < generations - 1:
        if client is not None:
            client.start_section("step")
            note("opened")
        if rank == 1 and strike == "kill":
            time.sleep(0.2)  # let every rank come to rest in its next collective
            note("kill")
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and strike == "hang":
            threading.Event().wait()
        dist.all_reduce(tensor)
    note("done")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
