"""A rank of a deterministic DDP training that saves, resumes, and breaks down where its job's plan says so.

    training.py FOLDER

``FOLDER/plan.json`` says how many steps there are and which faults the rank itself commits; each is committed once.
``FOLDER/gate`` holds the first step that may not be trained yet: there the ranks go round in steps that train nothing.
"""

import os
import sys
import time

first_line_ns = time.monotonic_ns()
folder = sys.argv[1]
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
generation = int(os.environ.get("FT_RESTART_COUNT", "0"))
with open(f"{folder}/first/{generation}-{rank}", "w") as stamp:
    stamp.write(str(first_line_ns))

import ctypes  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import struct  # noqa: E402
import threading  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from adapters.ddp import FaultTolerance  # noqa: E402

SAVE_EVERY = 5
CHECKPOINT = f"{folder}/checkpoint.pt"


class Progress:
    """Where this rank is, for the injector: generation, step, and how often it has said so."""

    def __init__(self) -> None:
        self._file = os.open(f"{folder}/progress/{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
        self._gate = os.open(f"{folder}/gate", os.O_RDONLY)
        self._count = 0

    def say(self, step: int) -> None:
        self._count += 1
        os.pwrite(self._file, struct.pack("3q", generation, step, self._count), 0)

    def may_train(self, step: int) -> bool:
        return step < int(os.pread(self._gate, 32, 0))


def commit(fault: dict, spare: object) -> None:
    """Commit a fault, unless an earlier generation has."""
    try:
        marker = os.open(f"{folder}/fired/{fault['index']}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    os.write(marker, b"%d %d" % (generation, time.monotonic_ns()))
    os.close(marker)
    kind, detail = fault["kind"], fault["detail"]
    if kind == "rank-crash":
        ctypes.string_at(0)
    elif kind == "rank-hang":
        hang(detail % 4)
    elif kind == "rank-raise":
        raise RuntimeError(f"fault {fault['index']} of the plan")
    elif kind == "rank-raise-slow":
        # Whatever a real one does on its way out: flushing a logger, joining threads.
        threading.Thread(target=time.sleep, args=(1.5,)).start()
        raise RuntimeError(f"fault {fault['index']} of the plan, with a slow exit")
    elif kind == "rank-exit0":
        os._exit(0) if detail % 2 else sys.exit(0)
    elif kind == "rank-skip":
        dist.barrier(group=spare)
    else:
        raise ValueError(f"a rank cannot commit {kind}")


def hang(how: int) -> None:
    if how == 0:
        time.sleep(1e6)
    elif how == 1:
        while True:
            pass
    elif how == 2:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    else:
        # Keeps the GIL, in a wait that no signal ends: without py-spy a rank is asked for its stack by one.
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)


def main() -> None:
    torch.set_num_threads(1)
    with open(f"{folder}/plan.json") as file:
        plan = json.load(file)
    ft = FaultTolerance()
    with ft.run():
        train(ft, plan)
    if world > 1:
        dist.destroy_process_group()


def train(ft: FaultTolerance, plan: dict) -> None:
    progress = Progress()
    spare = None
    if world > 1:
        dist.init_process_group("gloo")
        spare = dist.new_group(backend="gloo")
    torch.manual_seed(1)
    layers = [torch.nn.Linear(a, b) for a, b in ((16, 32), (32, 32), (32, 4))]
    network = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])
    # DDP lays its buckets out anew after the first step of a process, unless it must look for unused parameters; gloo
    # sums in an order that depends on the place in the bucket, so a resumed run would end with other last bits.
    ddp = torch.nn.parallel.DistributedDataParallel
    model = ddp(network, find_unused_parameters=True) if world > 1 else network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
        ft.checkpoint_loaded(first)
    own = {fault["step"]: fault for fault in plan["own_faults"] if fault["rank"] == rank}

    for step in range(first, plan["steps"]):
        while True:
            with ft.step(step):
                progress.say(step)
                if all_may_train(progress.may_train(step)):
                    train_step(step, model, optimizer, own.get(step), spare)
                    break
                time.sleep(0.005)
        if (step + 1) % SAVE_EVERY == 0:
            with ft.checkpoint(step + 1):
                if rank == 0:
                    save(network, optimizer, step + 1)
    digest = hashlib.sha256()
    for tensor in (*network.parameters(), *(optimizer.state[p]["momentum_buffer"] for p in network.parameters())):
        digest.update(tensor.detach().numpy().tobytes())
    with open(f"{folder}/digest-{rank}", "w") as file:
        file.write(digest.hexdigest())


def all_may_train(mine: bool) -> bool:
    if world == 1:
        return mine
    votes = torch.tensor([int(mine)])
    dist.all_reduce(votes, dist.ReduceOp.MIN)
    return bool(votes.item())


def train_step(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, fault, spare) -> None:
    source = torch.Generator().manual_seed(step * world + rank)
    inputs = torch.randn(8, 16, generator=source)
    targets = torch.randn(8, 4, generator=source)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    if fault is not None:
        commit(fault, spare)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.005)


def save(network: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    torch.save(
        {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{CHECKPOINT}.new"
    )
    os.replace(f"{CHECKPOINT}.new", CHECKPOINT)


main()
