"""A rank that trains on the GPU, notes when what happened on CLOCK_MONOTONIC, and strikes itself as told.

    training.py FOLDER FAULT STEPS BACKEND GIGABYTES

The last rank strikes itself in the first generation, at a step in the middle. All ranks share the first GPU, so that
``gloo`` does for several of them and ``nccl`` for one alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GENERATION = int(os.environ.get("FT_RESTART_COUNT") or os.environ["TORCHELASTIC_RESTART_COUNT"])
FOLDER, FAULT, STEPS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
BACKEND, GIGABYTES = sys.argv[4], float(sys.argv[5])
SAVE_EVERY = 10


def note(what: str, **more: Any) -> None:
    """Append a line to this rank's journal."""
    line = {"what": what, "rank": RANK, "generation": GENERATION, "t_ns": time.monotonic_ns(), **more}
    with (FOLDER / f"rank{RANK}.jsonl").open("a") as journal:
        journal.write(json.dumps(line) + "\n")


def device_state() -> dict[str, int]:
    """Return the memory in use on the first GPU, in bytes, and how many processes compute there, asked without CUDA."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    processes = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    pynvml.nvmlShutdown()
    return {"used": used, "processes": processes}


def strike() -> None:
    """Do to this rank what was asked for."""
    import torch

    note("struck")
    if FAULT == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "sigkill-in-kernel":
        torch.cuda._sleep(20_000_000_000)
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "hang":
        threading.Event().wait()
    elif FAULT == "kernel-hang":
        for _ in range(100):
            torch.cuda._sleep(1_000_000_000_000)
        torch.cuda.synchronize()
    elif FAULT == "assert":
        torch.ones(4, device="cuda")[torch.tensor([1000], device="cuda")].sum().item()
    elif FAULT == "oom":
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    elif FAULT != "none":
        raise ValueError(f"fault {FAULT!r}: unknown")


def main() -> None:
    """Train, or go on from the checkpoint, and leave the digest of the weights."""
    note("began", **device_state())
    import torch
    import torch.distributed as dist

    from adapters.ddp import FaultTolerance

    note("imported")
    ft = FaultTolerance(state_path=FOLDER / "ft_state.json")
    with ft.run():
        torch.use_deterministic_algorithms(True)
        torch.cuda.set_device(0)
        dist.init_process_group(BACKEND)
        ballast = torch.zeros(int(GIGABYTES * 2**30), dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        note("on device")
        generator = torch.Generator().manual_seed(7)
        weights = torch.randn(512, 512, generator=generator).cuda() / 512
        checkpoint, first = FOLDER / "checkpoint.pt", 0
        if checkpoint.exists():
            saved = torch.load(checkpoint, map_location="cuda")
            weights, first = saved["weights"], saved["step"]
        for step in range(first, STEPS):
            with ft.step(step):
                if GENERATION == 0 and step == STEPS // 2 + 3 and RANK == WORLD - 1:
                    strike()
                generator.manual_seed(step * WORLD + RANK)
                batch = torch.randn(64, 512, generator=generator).cuda()
                gradient = batch.t() @ torch.tanh(batch @ weights)
                dist.all_reduce(gradient)
                weights = weights - 1e-3 * gradient / WORLD
                torch.cuda.synchronize()
            if step == first:
                note("all_reduce")
            if (step + 1) % SAVE_EVERY == 0:
                with ft.checkpoint(step + 1):
                    if RANK == 0:
                        torch.save({"weights": weights, "step": step + 1}, checkpoint.with_suffix(".new"))
                        os.replace(checkpoint.with_suffix(".new"), checkpoint)
                    dist.barrier()
        note("trained", ballast=int(ballast.numel()), **device_state())
        digest = hashlib.sha256(weights.cpu().numpy().tobytes()).hexdigest()
        (FOLDER / f"digest{RANK}").write_text(digest)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
