"""A rank of a deterministic training over several nodes, whose result does not depend on who took part in it.

    training.py FOLDER [--steps 1000] [--save-every 20] [--step-seconds 0.01] [--collective-timeout 1800]

Each step has a fixed batch of samples, made from the step's number and dealt out to the ranks. A sample's gradient is
computed by itself, rounded to integers and summed with a gloo ``all_reduce`` of integers, which is exact in any order.
The weights are therefore bitwise equal for every number of ranks, and wherever the training was interrupted.

``FOLDER/checkpoints`` and ``FOLDER/journal`` stand for a shared file system. Rank 0 saves, with ``rename``; a group
begins at the newest checkpoint that its rank 0 finds. Each rank notes what it has done in a journal of its own, one
line of JSON each (:class:`benchmarks.nodes.journal.Note`); ``CLOCK_MONOTONIC`` is the same in all namespaces.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["HOLD", "Ranks", "digest", "first_weights", "gradient", "undisturbed_digest", "update"]

HOLD = "hold"
"""While the shared folder has a file of this name, no group begins its first step."""
SAMPLES, INPUTS, OUTPUTS = 24, 16, 4
_UNITS = 1 << 24
"""What a gradient of 1 is as an integer."""
_RATE = 0.05


def first_weights() -> torch.Tensor:
    """The weights before step 0, float64."""
    return torch.zeros(OUTPUTS, INPUTS, dtype=torch.float64)


def gradient(weights: torch.Tensor, step: int, rank: int, world: int) -> torch.Tensor:
    """Sum the gradients of one rank's samples of one step, int64 in units of 1 / 2**24."""
    total = torch.zeros(OUTPUTS, INPUTS, dtype=torch.int64)
    for number in range(rank, SAMPLES, world):
        random = torch.Generator().manual_seed(step * SAMPLES + number)
        inputs = torch.randn(INPUTS, generator=random, dtype=torch.float64)
        wanted = torch.randn(OUTPUTS, generator=random, dtype=torch.float64)
        error = torch.tanh((weights * inputs).sum(dim=1)) - wanted
        total += torch.round(torch.outer(error, inputs) * _UNITS).to(torch.int64)
    return total


def update(weights: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Return the weights after a step; ``total`` is the sum over all ranks."""
    return weights - total.to(torch.float64) * (_RATE / _UNITS / SAMPLES)


def digest(weights: torch.Tensor) -> str:
    """A fingerprint of every bit of the weights."""
    return hashlib.sha256(json.dumps([number.hex() for number in weights.flatten().tolist()]).encode()).hexdigest()


def undisturbed_digest(steps: int) -> str:
    """Return the fingerprint after a training that nothing has disturbed, computed in this process."""
    weights = first_weights()
    for step in range(steps):
        weights = update(weights, gradient(weights, step, 0, 1))
    return digest(weights)


class Ranks:
    """This rank's place, its notes and its group's checkpoints.

    Args:
        folder: The shared folder.
    """

    def __init__(self, folder: Path) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.generation = int(os.environ.get("FT_RESTART_COUNT") or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.node = os.uname().nodename
        self.group = ""
        self.members: list[list[int]] = []
        self._checkpoints = folder / "checkpoints"
        journal = folder / "journal"
        for path in (self._checkpoints, journal):
            path.mkdir(parents=True, exist_ok=True)
        name = f"{self.node}-{os.environ['LOCAL_RANK']}-{os.getpid()}-{time.monotonic_ns()}.jsonl"
        self._journal = os.open(journal / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, event: str, step: int = -1, *, at: int | None = None, **more: object) -> None:
        """Append a line to this rank's journal; ``at`` is its time, now by default."""
        where = {"generation": self.generation, "group": self.group, "rank": self.rank, "world": self.world}
        where |= {"step": step, "node": self.node, "pid": os.getpid(), "local_rank": int(os.environ["LOCAL_RANK"])}
        line = json.dumps({"t": time.monotonic_ns() if at is None else at, "event": event, **where, **more})
        os.write(self._journal, f"{line}\n".encode())

    def meet(self) -> tuple[int, torch.Tensor]:
        """Form the group; returns the first step that is still to be done, and the weights before it."""
        dist.all_reduce(torch.ones(1))
        formed_ns = time.monotonic_ns()
        weights, step = self._newest() if self.rank == 0 else (first_weights(), 0)
        facts = torch.tensor([int.from_bytes(os.urandom(6), "big"), step])
        dist.broadcast(facts, 0)
        dist.broadcast(weights, 0)
        mine = torch.tensor([self.rank, int(self.node.strip("node") or 0), os.getpid()])
        everybody = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(everybody, mine)
        self.members = [member.tolist() for member in everybody]
        self.group = f"{int(facts[0]):012x}"
        self.note("first_all_reduce", int(facts[1]), at=formed_ns)
        return int(facts[1]), weights

    def save(self, step: int, weights: torch.Tensor) -> None:
        """Write the weights before ``step``, atomically, with who they are from; on rank 0 only."""
        if self.rank != 0:
            return
        self.note("checkpoint_begin", step)
        held: dict[str, Any] = {"step": step, "weights": weights, "group": self.group, "generation": self.generation}
        held |= {"world": self.world, "rank_node_pid": self.members, "begun_ns": time.monotonic_ns()}
        unfinished = self._checkpoints / f".{self.group}-{step}"
        with unfinished.open("wb") as file:
            torch.save(held, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._checkpoints / f"step-{step:06d}.pt")
        self.note("checkpoint", step)

    def _newest(self) -> tuple[torch.Tensor, int]:
        saved = max(self._checkpoints.glob("step-*.pt"), default=None)
        if saved is None:
            return first_weights(), 0
        held = torch.load(saved, weights_only=True)
        return held["weights"], held["step"]


def main() -> None:
    """Train to the end."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--step-seconds", type=float, default=0.01)
    parser.add_argument("--collective-timeout", type=float, default=1800.0, help="seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ranks = Ranks(options.folder)
    ranks.note("started")
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.collective_timeout))
    first, weights = ranks.meet()
    while (options.folder / HOLD).exists():
        time.sleep(0.01)
    for step in range(first, options.steps):
        time.sleep(options.step_seconds)  # what a device would compute
        total = gradient(weights, step, ranks.rank, ranks.world)
        dist.all_reduce(total)
        weights = update(weights, total)
        ranks.note("step", step)
        if (step + 1) % options.save_every == 0:
            ranks.save(step + 1, weights)
    ranks.note("done", options.steps, digest=digest(weights))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
