"""A training over gloo in which one rank fails in a chosen way: what ``python -m benchmarks.culprits`` starts.

    training.py KIND RANK STEP STEPS

Where a fault strikes or hangs, the line ends with ``# place: KIND``, which the benchmark looks up.
"""

import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from resilience_core import RunContext, SectionMonitor, bus

KIND, RANK, STEP, STEPS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


class Stuck(torch.autograd.Function):
    """Passes its input on; its gradient never comes."""

    @staticmethod
    def forward(ctx, given):
        return given.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(3600)  # place: backward
        return gradient


def deadlock() -> None:
    """Take two locks in one order, while a thread takes them in the other."""
    first, second = threading.Lock(), threading.Lock()
    has_second = threading.Event()

    def other() -> None:
        with second:
            has_second.set()
            first.acquire()

    first.acquire()
    threading.Thread(target=other, daemon=True).start()
    has_second.wait()
    second.acquire()  # place: deadlock


def eat_memory() -> None:
    """Use more memory than the cgroup of the benchmark has."""
    kept = []
    while True:
        kept.append(bytearray(1 << 22))  # place: memory


def strike(kind: str) -> None:
    """Fail in one of the ways that stop or end a rank."""
    if kind == "deadlock":
        deadlock()
    elif kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)  # place: stopped
    elif kind == "segfault":
        ctypes.string_at(0)  # place: segfault
    elif kind == "memory":
        eat_memory()
    elif kind == "exception":
        raise ValueError("bad batch")  # place: exception
    elif kind == "exit":
        os._exit(3)  # place: exit


context = RunContext.from_environment()
events = bus()
events.register(SectionMonitor())
events.setup(context=context)
dist.init_process_group("gloo")
weights = torch.ones(64, requires_grad=True)
if KIND == "memory" and context.rank == RANK:
    Path(os.environ["CULPRITS_CGROUP"], "cgroup.procs").write_text(str(os.getpid()))
    time.sleep(1)  # a rank is in its group long before; the launcher looks where ranks are four times a second at first
falls_apart = KIND in ("pair", "ended") and context.restart_count == 0
pair = (RANK, (RANK + 1) % context.world_size)
strikes_here = KIND != "none" and context.rank == RANK and context.restart_count == 0
try:
    for step in itertools.count() if falls_apart and KIND == "pair" else range(STEPS):
        events.step_start(iteration=step)
        if falls_apart and step >= STEP:
            if context.rank in pair:
                dist.recv(weights.detach(), sum(pair) - context.rank)  # place: pair
            time.sleep(0.005)
            events.step_end(iteration=step)
            continue
        strikes = strikes_here and step == STEP
        if strikes:
            strike(KIND)
        value = (Stuck.apply(weights) if strikes and KIND == "backward" else weights) * 2
        value.sum().backward()
        if not (strikes and KIND == "skipped"):
            dist.all_reduce(weights.grad)
        dist.barrier()  # place: skipped
        time.sleep(0.005)
        events.step_end(iteration=step)
    events.teardown(reason="completed")
except ValueError:
    time.sleep(0.3)  # a training that cleans up: its peers have failed by then
    raise
print(f"rank {context.rank} is done in generation {context.restart_count}", flush=True)
os._exit(0)
