"""A real gloo group in which rank 1 skips a batch whose exception it has caught, and rank 0 then gets into trouble.

The exception leaves the step, is caught around it, and rank 1 waits for its peers outside of any section: a victim.
With ``--kept`` it keeps the exception in a list, so that it is not freed. Rank 0's trouble begins once rank 1 is known
to have caught it; ranks 1 and 2 have begun to wait then, or are about to.
"""

import argparse
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from adapters.ddp import FaultTolerance
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import ERROR_TEXT
from resilience_core.protocol.error_record import parse_error

parser = argparse.ArgumentParser()
parser.add_argument("trouble", choices=("deadlock", "sigkill", "exit", "exception"))
parser.add_argument("--kept", action="store_true")
arguments = parser.parse_args()
errors = []


def get_into(trouble: str) -> None:
    if trouble == "deadlock":
        threading.Event().wait()
    elif trouble == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif trouble == "exit":
        sys.exit(17)
    raise RuntimeError("the loader has lost its connection")


def wait_until_caught() -> None:
    cell, end = Cell(os.environ["FT_CELL"]), time.monotonic() + 60
    while (error := parse_error(cell.read_text(ERROR_TEXT))) is None or not error.is_caught:
        assert time.monotonic() < end, "the exception is not known to be caught"
        time.sleep(0.001)  # nothing tells when another thread writes into the cell
    cell.close()


ft = FaultTolerance()
with ft.run():
    dist.init_process_group("gloo")
    rank, generation = dist.get_rank(), int(os.environ["FT_RESTART_COUNT"])
    for step in range(6):
        is_time = generation == 0 and step == 3
        try:
            with ft.step(step):
                dist.all_reduce(torch.ones(4))
                if is_time and rank == 1:
                    raise ValueError("no such sample: 4711")
                if is_time and rank == 0:
                    dist.recv(torch.zeros(1), src=1)
                    get_into(arguments.trouble)
        except ValueError as error:
            if arguments.kept:
                errors.append(error)
        if is_time and rank == 1:
            wait_until_caught()
            dist.send(torch.zeros(1), dst=0)
        dist.all_reduce(torch.ones(4))
print(f"rank {rank} is done in generation {generation}", flush=True)
dist.destroy_process_group()
