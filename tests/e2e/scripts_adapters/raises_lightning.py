"""Lightning whose rank 1 raises in another place in each generation, and whose callbacks wait for its peer then.

raises_lightning.py OUT heartbeats|sections PLACE...
"""

from __future__ import annotations

import os
import signal
import sys

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from adapters.lightning import FaultToleranceCallback, FaultToleranceSectionsCallback

out, api, *places = sys.argv[1:]
generation = int(os.environ["FT_RESTART_COUNT"])
place = places[generation] if generation < len(places) else None
torch.set_num_threads(1)


def reach(here, batch_idx):
    if os.environ["RANK"] != "1" or batch_idx != 2 or place is None or not place.startswith(here):
        return
    if place.endswith("interrupt"):
        raise KeyboardInterrupt
    if place.endswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("no such sample: 4711")


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        reach("step", batch_idx)
        return self.layer(batch).mean()

    def validation_step(self, batch, batch_idx):
        reach("sanity" if self.trainer.sanity_checking else "validation", batch_idx)
        self.log("loss", self.layer(batch).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Waits(pl.Callback):
    """Hears of an exception before ours does, and waits for the peers."""

    def on_exception(self, trainer, pl_module, exception):
        if place == "step, and a callback waits":
            trainer.strategy.barrier()


ours = (
    FaultToleranceSectionsCallback(False, False, exp_dir=out)
    if api == "sections"
    else FaultToleranceCallback(False, False, exp_dir=out)
)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_steps=8,
    val_check_interval=4,
    limit_val_batches=3,
    num_sanity_val_steps=3,
    callbacks=[
        pl.callbacks.ModelCheckpoint(out, every_n_epochs=1, save_last=True, save_on_exception=True),
        Waits(),
        ours,
    ],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(torch.ones(16, 2)), DataLoader(torch.ones(8, 2)))
print(f"is done in generation {generation}", flush=True)
