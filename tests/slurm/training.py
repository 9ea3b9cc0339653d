"""A rank that meets the others in each step until there is ``complete``, says where it is, and saves on SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def put(name: str, text: str) -> None:
    new = Path(f"{name}.new")
    new.write_text(text)
    new.replace(name)


def save(*_: object) -> None:
    put(f"saved_{RANK}", NODE)
    os._exit(0)  # the peers have got SIGTERM, too: there is nobody left to say good-bye to


RANK, NODE = os.environ["RANK"], os.uname().nodename
signal.signal(signal.SIGTERM, save)
if Path("fail").exists():
    sys.exit("fails, as the test wants it")
dist.init_process_group("gloo")
put(f"up_{RANK}", NODE)
steps, is_over = 0, torch.zeros(1)
while not is_over.item():
    time.sleep(0.05)  # what stands for a step's work
    is_over[0] = float(Path("complete").exists())
    dist.all_reduce(is_over)
    steps += 1
    if RANK == "0":
        put("steps", str(steps))
Path(os.environ["FAULT_TOL_FINISHED_FLAG_FILE"]).touch()
dist.destroy_process_group()
