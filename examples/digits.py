"""What both DDP examples train: a small network on scikit-learn's handwritten digits, the same bits every time.

Every batch is a function of the seed and the iteration alone, so a run that resumes from a checkpoint sees the same
data in the same order as one that was never disturbed. With one or two ranks the final weights are then bitwise
equal; with more, a ring all-reduce may add in another order after a restart, and the last bits may differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from resilience_core import StopTraining

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError:
    NEEDED = "examples/digits.py needs scikit-learn, which has the digits: pip install scikit-learn"
    if "RANK" not in os.environ:
        print(NEEDED, file=sys.stderr)  # ft_launcher prints it by itself
    raise StopTraining(NEEDED) from None  # rather than an error, which would be tried again

TRAIN_IMAGES = 1437
"""Of 1,797; the rest tests."""

BATCH_PER_RANK = 32
LEARNING_RATE = 2e-3


def join_group() -> None:
    """Join the group that torchrun or ft_launcher describes; alone, be a group of one."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def make_deterministic(seed: int) -> None:
    """One thread and one seed: the order of every sum is fixed."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)


class Digits:
    """The data, shuffled once into training and test images.

    Args:
        seed: Decides every shuffle.
    """

    def __init__(self, seed: int) -> None:
        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        self._images = torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 16.0
        self._labels = torch.tensor(labels, dtype=torch.int64)[order]
        self._seed = seed

    def batch(self, iteration: int) -> tuple[Tensor, Tensor]:
        """Return this rank's images, shape ``(BATCH_PER_RANK, 1, 8, 8)``, and labels of one training step."""
        size = BATCH_PER_RANK * dist.get_world_size()
        per_epoch = TRAIN_IMAGES // size
        epoch, position = divmod(iteration, per_epoch)
        order = torch.randperm(TRAIN_IMAGES, generator=torch.Generator().manual_seed(self._seed + 1 + epoch))
        first = position * size + dist.get_rank() * BATCH_PER_RANK
        mine = order[first : first + BATCH_PER_RANK]
        return self._images[mine], self._labels[mine]

    def test_batches(self) -> list[tuple[Tensor, Tensor]]:
        """This rank's share of the test images; every rank has equally many batches."""
        mine = slice(TRAIN_IMAGES + dist.get_rank(), None, dist.get_world_size())
        images, labels = self._images[mine], self._labels[mine]
        return list(zip(images.chunk(2), labels.chunk(2), strict=True))


def make_model() -> DistributedDataParallel:
    """Return the network, the same on every rank."""
    return DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
    )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Adam: its moments are part of every checkpoint."""
    return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)


class StopFlag:
    """Whether any rank was asked to stop: a signal may reach one rank only, and all must end at the same step.

    The handler only takes a note. :meth:`agree` rides in the step's one metrics all-reduce, so nobody leaves while
    another waits in a collective.
    """

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, *_: object) -> None:
        """Note a signal; to be used as its handler."""
        self.is_asked = True

    def agree(self, metric: Tensor) -> tuple[Tensor, bool]:
        """Sum a metric over the ranks, and learn whether any of them was asked to stop. A collective.

        Args:
            metric: A scalar of this rank.

        Returns:
            The mean over the ranks, and the answer; the same on every rank.
        """
        both = torch.stack([metric.detach().double(), torch.tensor(float(self.is_asked), dtype=torch.float64)])
        dist.all_reduce(both)
        return both[0] / dist.get_world_size(), bool(both[1] > 0)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], stop: StopFlag
) -> tuple[float, bool]:
    """Forward, backward, optimizer, and the all-reduce of loss and stop flag.

    Returns:
        The mean loss over the ranks, and whether all of them are to stop after this step.
    """
    images, labels = batch
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean, is_asked = stop.agree(loss)
    return float(mean), is_asked


def count_correct(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Of one test batch: right answers and answers, shape ``(2,)``."""
    images, labels = batch
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).sum()
    return torch.stack([right, torch.tensor(len(labels))])


def save_checkpoint(
    path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, iteration: int
) -> None:
    """Write on rank 0, so that the file holds either all of it or what it held before; the others wait.

    Args:
        path: The file.
        model: Its weights.
        optimizer: Its state.
        iteration: Training steps completed.
    """
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                torch.save(
                    {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration},
                    file,
                )
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    dist.barrier()


def load_checkpoint(path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int | None:
    """Load on every rank.

    Returns:
        Training steps completed, or None where there is no checkpoint yet.
    """
    if dist.get_rank() == 0:
        for leftover in path.parent.glob(f".{path.name}.*"):  # of a rank that was killed while it wrote
            with contextlib.suppress(FileNotFoundError):
                leftover.unlink()
    if not path.exists():
        return None
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return int(checkpoint["iteration"])


def fingerprint(model: DistributedDataParallel) -> str:
    """SHA-256 over the names and bytes of all weights."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.module.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.contiguous().numpy().tobytes())
    return digest.hexdigest()


def tell(text: str) -> None:
    """Print on one rank."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def leave_result(model: DistributedDataParallel, counts: Tensor, folder: Path) -> None:
    """Leave ``result.json`` where a person or a test finds it.

    Args:
        model: As trained.
        counts: Of this rank's test images: how many were recognised, and how many there are; shape ``(2,)``.
        folder: Where to leave it.
    """
    dist.all_reduce(counts)
    result = {
        "accuracy": counts[0].item() / counts[1].item(),
        "sha256": fingerprint(model),
        "generation": int(os.environ.get("FT_RESTART_COUNT", "0")),
    }
    tell(f"done: accuracy {result['accuracy']:.2%}, SHA-256 of the weights {result['sha256']}")
    if dist.get_rank() == 0:
        (folder / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
