"""A rank that counts for itself: a line for each step that it has completed, in each of its lives.

    training.py FOLDER STEPS KIND:RANK:STEP,...

A fault is committed once, in the middle of its step. The checkpoint is the number of steps that are done.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from adapters.ddp import FaultTolerance

SAVE_EVERY = 10
STEP_SECONDS = 0.05
SAVE_SECONDS = 0.05

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
rank, generation = int(os.environ["RANK"]), int(os.environ.get("FT_RESTART_COUNT", "0"))
faults = {
    int(step): kind for kind, who, step in (each.split(":") for each in sys.argv[3].split(",")) if int(who) == rank
}


def commit(step: int) -> None:
    """Commit the fault of a step, unless an earlier life has."""
    marker = folder / f"committed-{step}"
    if step not in faults or marker.exists():
        return
    marker.touch()
    kind = faults[step]
    if kind == "hang":
        time.sleep(1e6)
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "raise":
        raise ValueError(f"told to fail in step {step}")
    else:
        os._exit(3)


def main() -> None:
    """Train nothing, save, and go on from the last save."""
    torch.set_num_threads(1)
    ft = FaultTolerance()
    with ft.run():
        dist.init_process_group("gloo")
        checkpoint = folder / "checkpoint"
        first = int(checkpoint.read_text()) if checkpoint.exists() else 0
        if first:
            ft.checkpoint_loaded(first)
        with (folder / f"steps-{rank}").open("a") as done:
            for step in range(first, steps):
                with ft.step(step):
                    time.sleep(STEP_SECONDS)
                    commit(step)
                    dist.all_reduce(torch.ones(1))
                print(generation, step, file=done, flush=True)
                if (step + 1) % SAVE_EVERY == 0:
                    with ft.checkpoint(step + 1):
                        save(checkpoint, step + 1)
    dist.destroy_process_group()


def save(checkpoint: Path, number: int) -> None:
    """Write the checkpoint on rank 0; the others wait, as they do for a sharded one."""
    if rank == 0:
        time.sleep(SAVE_SECONDS)
        checkpoint.with_suffix(".new").write_text(str(number))
        os.replace(checkpoint.with_suffix(".new"), checkpoint)
    dist.barrier()


main()
