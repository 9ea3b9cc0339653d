"""Lightning, with a hang somewhere else in each generation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import places
import torch
from torch.utils.data import DataLoader

from adapters.lightning import FaultToleranceSectionsCallback

out = Path(sys.argv[1])
torch.set_num_threads(1)


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        places.reach("forward")
        return places.Backward.apply(self.layer(batch)).mean()

    def validation_step(self, batch, batch_idx):
        places.reach("evaluation")
        self.layer(batch)

    def configure_optimizers(self):
        places.reach("setup")
        return places.Optimizer(self.parameters(), 0.01)

    def on_save_checkpoint(self, checkpoint):
        places.reach("save")


trainer = pl.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_steps=(1 + places.GENERATION) * 8,
    val_check_interval=4,
    limit_val_batches=3,
    num_sanity_val_steps=0,
    callbacks=[
        FaultToleranceSectionsCallback(False, False, exp_dir=out),
        pl.callbacks.ModelCheckpoint(out, save_last=True, save_on_train_epoch_end=False),
    ],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = out / "last.ckpt"
trainer.fit(
    Module(),
    DataLoader(places.Batches(True)),
    DataLoader(places.Batches(False)),
    ckpt_path=last if last.exists() else None,
)
if trainer.is_global_zero:
    (out / "result.txt").write_text(f"{trainer.global_step} {os.environ['FT_RESTART_COUNT']}")
