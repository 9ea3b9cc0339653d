"""A real gloo group in which rank 0 raises, destroys its process group and then waits for a thread of its own.

Its exception has not left the step by then; the other ranks have lost it, catch that, and raise what they make of it.
"""

import argparse
import os
import sys
import threading

import torch
import torch.distributed as dist

from adapters.ddp import FaultTolerance

parser = argparse.ArgumentParser()
parser.add_argument("where", choices=("finally", "handler", "after", "between"))
arguments = parser.parse_args()


class StepFailedError(Exception):
    pass


def give_up() -> None:
    dist.destroy_process_group()
    threading.Event().wait(60)  # it is asked to end before that


def fail(where: str) -> None:
    if where == "after":
        try:
            raise ValueError("no such sample: 4711")
        except ValueError:
            pass
        give_up()
        sys.exit(1)
    if where == "handler":
        try:
            raise ValueError("no such sample: 4711")
        except ValueError:
            give_up()
            sys.exit(1)
    try:
        raise ValueError("no such sample: 4711")
    finally:
        give_up()


ft = FaultTolerance()
with ft.run():
    dist.init_process_group("gloo")
    rank, generation = dist.get_rank(), int(os.environ["FT_RESTART_COUNT"])
    for step in range(6):
        is_time = rank == 0 and generation == 0 and step == 3
        if is_time and arguments.where == "between":
            fail("between")
        with ft.step(step):
            if is_time:
                fail(arguments.where)
            is_lost = False
            try:
                dist.all_reduce(torch.ones(4))
            except RuntimeError:
                is_lost = True
            if is_lost:
                raise StepFailedError(f"step {step}")
print(f"rank {rank} is done in generation {generation}", flush=True)
dist.destroy_process_group()
