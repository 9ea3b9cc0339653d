"""Raw loops of one process group and its sub-groups, as users write and mark them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.straggler_jobs.rank import Rank
from straggler import Detector


def marker(marks: Collection[str]) -> Callable[[str], AbstractContextManager[Any]]:
    """Return what a loop marks its sections with: only those of these names."""
    return lambda name: Detector.detection_section(name) if name in marks else nullcontext()


def plain(rank: Rank, marks: Collection[str] = ()) -> None:
    """Train with one all_reduce per step.

    Args:
        rank: Who trains.
        marks: What is marked: ``step`` is the whole body, ``compute`` the own work up to the collective, ``sync``
            the collective; ``forward`` and ``optimizer`` are parts of the own work.
    """
    rank.join()
    mark = marker(marks)
    rank.start()
    tensor = torch.ones(1000)
    for _ in rank.steps():
        with mark("step"):
            with mark("compute"):
                rank.do("data")
                with mark("forward"):
                    rank.do("forward")
                rank.do("backward")
            tensor[0] = rank.goes_on()
            with mark("sync"):
                dist.all_reduce(tensor)
            with mark("optimizer"):
                rank.do("optimizer")
        rank.report()
        if not tensor[0]:
            break
    rank.shut_down()
    dist.destroy_process_group()


class _Batches(IterableDataset[torch.Tensor]):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(self._seconds)
            yield torch.ones(16)


def loaded(rank: Rank, marks: Collection[str] = ()) -> None:
    """Train on batches of a loader with a worker that takes longer for one than the step computes.

    Args:
        rank: Who trains.
        marks: ``step`` is the whole body, ``data`` the wait for the batch.
    """
    rank.join()
    mark = marker(marks)
    rank.start()
    batches = iter(DataLoader(_Batches(rank.seconds_of("data")), num_workers=1, batch_size=None))
    tensor = torch.ones(1000)
    for _ in rank.steps():
        with mark("step"):
            with mark("data"):
                next(batches)
            rank.do("forward")
            rank.do("backward")
            tensor[0] = rank.goes_on()
            dist.all_reduce(tensor)
        rank.add_own(rank.seconds_of("data"))
        rank.report()
        if not tensor[0]:
            break
    rank.shut_down()
    dist.destroy_process_group()


def sub_groups(rank: Rank, marks: Collection[str] = (), *, mesh: bool = False, world: bool = False) -> None:
    """Train on 2 x 2 ranks: rows share a forward, columns the gradients.

    Args:
        rank: Who trains.
        marks: ``step``, or ``forward`` and ``backward``, each with its collective inside.
        mesh: The groups come from a device mesh instead of ``new_group``.
        world: The loss is averaged over all ranks, too.
    """
    rank.join()
    if mesh:
        device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        tensor_group, data_group = device_mesh.get_group("tensor"), device_mesh.get_group("data")
    else:
        rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        tensor_group, data_group = rows[rank.number // 2], columns[rank.number % 2]
    mark = marker(marks)
    rank.start()
    tensor = torch.ones(1000)
    for _ in rank.steps():
        with mark("step"):
            rank.do("data")
            with mark("forward"):
                rank.do("forward")
                dist.all_reduce(tensor, group=tensor_group)
            with mark("backward"):
                rank.do("backward")
                dist.all_reduce(tensor, group=data_group)
            rank.do("optimizer")
            if world:
                dist.all_reduce(torch.ones(1))
        rank.report()
    rank.shut_down()
    dist.destroy_process_group()


def pipeline(rank: Rank, marks: Collection[str] = ()) -> None:
    """Train two stages of two replicas, two micro-batches per step: ranks 0 and 1 are the first stage.

    Args:
        rank: Who trains.
        marks: ``step``, or ``forward`` and ``backward``: the own work of each micro-batch, without its messages.
    """
    rank.join()
    stage, replica = divmod(rank.number, 2)
    group = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][stage]
    other = 2 * (1 - stage) + replica
    mark = marker(marks)
    rank.start(peer_group=("stage", stage))
    activations, gradients, weights = torch.ones(100), torch.ones(100), torch.ones(1000)
    for _ in rank.steps():
        with mark("step"):
            rank.do("data")
            for _ in range(2):
                if stage == 1:
                    dist.recv(activations, other)
                with mark("forward"):
                    rank.do("forward")
                if stage == 0:
                    dist.send(activations, other)
            for _ in range(2):
                if stage == 0:
                    dist.recv(gradients, other)
                with mark("backward"):
                    rank.do("backward")
                if stage == 1:
                    dist.send(gradients, other)
            dist.all_reduce(weights, group=group)
            rank.do("optimizer")
        rank.report()
    rank.shut_down()
    dist.destroy_process_group()
