"""A synchronous training of a real gloo group, in which one rank gets into trouble at step 3 of generation 0.

Its peers wait in a collective, or lose their connections, and are to be known for victims.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from adapters.ddp import FaultTolerance

parser = argparse.ArgumentParser()
parser.add_argument("trouble")
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--teardown-seconds", type=float, default=1.0)
parser.add_argument("--collective", choices=("backward", "all_reduce"), default="all_reduce")
parser.add_argument("--thread-error", action="store_true", help="a thread of each peer raises before")
arguments = parser.parse_args()
TRACES = "import ctypes, sys; ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0); print(flush=True); sys.stdin.read()"


class Stuck(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value * 1.0

    @staticmethod
    def backward(context, gradient):
        threading.Event().wait()
        return gradient


def lose_a_thread() -> None:
    def upload():
        raise ValueError("the figures could not be uploaded")

    thread = threading.Thread(target=upload)
    thread.start()
    thread.join()


def get_into(trouble: str) -> None:
    if trouble == "deadlock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif trouble == "busy":
        while True:
            pass
    elif trouble == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif trouble == "ptrace":
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
        subprocess.Popen(
            [sys.executable, "-c", TRACES, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        while True:
            time.sleep(0.01)
    elif trouble == "interrupted_call":
        ctypes.PyDLL(None).sleep(600)  # keeps the GIL, and returns early upon any signal
    elif trouble == "segfault":
        ctypes.string_at(0)
    elif trouble == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif trouble == "exit":
        os._exit(17)
    elif trouble in ("exception", "hung_exception"):
        raise ValueError("no such sample: 4711")
    elif trouble == "early_exit":
        os._exit(0)


ft = FaultTolerance()
try:
    with ft.run():
        dist.init_process_group("gloo")
        rank, generation = dist.get_rank(), int(os.environ["FT_RESTART_COUNT"])
        model = torch.nn.Linear(4, 4)
        if arguments.collective == "backward":
            model = DistributedDataParallel(model)
        for step in range(8):
            with ft.step(step):
                is_struck = generation == 0 and step == 3 and rank == arguments.rank
                if arguments.thread_error and generation == 0 and step == 3:
                    if not is_struck:
                        lose_a_thread()
                    dist.barrier()
                value = torch.ones(1, 4)
                if is_struck and arguments.trouble == "backward":
                    value = Stuck.apply(value.requires_grad_())
                elif is_struck:
                    get_into(arguments.trouble)
                model(value).sum().backward()
                if arguments.collective == "all_reduce" and not (is_struck and "skip" in arguments.trouble):
                    dist.all_reduce(torch.ones(4))
                if is_struck and arguments.trouble == "skip":
                    time.sleep(600)  # it went on, to something that its peers have no part in
            if is_struck and arguments.trouble == "skip_on":
                dist.barrier()
except ValueError:
    # The connections are gone or stay, and the process takes its time.
    if arguments.trouble == "exception":
        dist.destroy_process_group()
    time.sleep(arguments.teardown_seconds)
    raise
print(f"rank {rank} is done in generation {generation}", flush=True)
dist.destroy_process_group()
