"""Loops whose collectives a framework calls: DDP, FSDP2, Lightning, and a raw loop that fires the bus's events."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.straggler_jobs.loops import marker
from benchmarks.straggler_jobs.rank import Rank


class _InBackward(torch.autograd.Function):
    """Lets the backward pass do a part of a rank's own work."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, rank: Rank) -> torch.Tensor:
        ctx.rank = rank
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.rank.do("backward")
        return gradients[0], None


class Model(nn.Module):
    """Two layers, with the rank's own work between them, in both directions."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self._rank = [rank]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.first(batch)
        self._rank[0].do("forward")
        return self.second(_InBackward.apply(hidden, self._rank[0]))


def wrapped(rank: Rank, marks: Collection[str] = (), *, how: str = "ddp") -> None:
    """Train with DistributedDataParallel or ``fully_shard``.

    Args:
        rank: Who trains.
        marks: ``step``, or ``forward`` and ``backward``, which holds the wait.
        how: ``ddp`` or ``fsdp2``.
    """
    rank.join()
    model: Any = Model(rank)
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (rank.world_size,))
        for part in (model.first, model.second, model):
            fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mark = marker(marks)
    rank.start()
    for _ in rank.steps():
        with mark("step"):
            rank.do("data")
            with mark("forward"):
                loss = model(torch.randn(4, 32)).square().mean()
            with mark("backward"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rank.do("optimizer")
        rank.report()
    rank.shut_down()
    dist.destroy_process_group()


def raw_adapter(rank: Rank) -> None:
    """Train with the blocks of ``adapters.ddp`` and the plugin on the bus; nothing is marked."""
    from adapters.ddp import FaultTolerance
    from resilience_core.event_bus import EventBus
    from straggler import StragglerPlugin

    rank.join()
    bus = EventBus()
    bus.register(StragglerPlugin(report_time_interval=rank.interval, on_report=rank.keep, log_path=rank.log))
    ft = FaultTolerance(bus=bus)
    tensor = torch.ones(1000)
    with ft.run():
        for step in rank.steps():
            with ft.step(step):
                for part in ("data", "forward", "backward"):
                    rank.do(part)
                dist.all_reduce(tensor)
                rank.do("optimizer")
    dist.destroy_process_group()


def lightning(rank: Rank) -> None:
    """Train with Lightning's Trainer and the callback, started as torchrun starts ranks; nothing is marked."""
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    from adapters.lightning import StragglerDetectionCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(rank)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return self.model(batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Count(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            rank.begin_step()
            rank.do("data")

        def on_train_batch_end(self, *_: Any) -> None:
            rank.do("optimizer")
            rank.end_step()

    detection = StragglerDetectionCallback(report_time_interval=rank.interval, log_path=rank.log)
    trainer = pl.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=rank.world_size,
        max_steps=rank.steps_of_job,
        callbacks=[Count(), detection],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=rank.folder,
    )
    trainer.fit(Module(), DataLoader(TensorDataset(torch.randn(4 * rank.world_size * rank.steps_of_job, 32)), 4))
