"""Lightning on two ranks: learned timeouts, a SIGTERM that only one rank gets.

lightning_ranks.py OUT STEPS [RANK_THAT_GETS_SIGTERM]
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from adapters.lightning import FaultToleranceCallback, FaultToleranceSectionsCallback
from resilience_core import bus, hookimpl
from resilience_core.testing import EventRecorder, assert_conforms

out, steps = Path(sys.argv[1]), int(sys.argv[2])
struck = int(sys.argv[3]) if len(sys.argv) > 3 else None
rank = int(os.environ["RANK"])
torch.set_num_threads(1)


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        if batch_idx == 10 and rank == struck and os.environ["FT_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGTERM)
        return self.layer(batch).mean()

    def validation_step(self, batch, batch_idx):
        self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Witness:
    """Writes down the timeouts in force when a run begins and when it has ended, of this rank."""

    def __init__(self) -> None:
        self.seen = {}

    @hookimpl(trylast=True)
    def step_start(self, iteration):
        if "begin" not in self.seen:
            self.seen["begin"] = sections._translator.client.state_dict()

    @hookimpl(tryfirst=True)
    def checkpoint_end(self):
        self.client = sections._translator.client

    @hookimpl(trylast=True)
    def teardown(self, reason):
        self.seen |= {"end": self.client.state_dict(), "reason": reason}
        (out / f"rank{rank}.json").write_text(json.dumps(self.seen))


recorder, witness = EventRecorder(), Witness()
bus().register(recorder)
bus().register(witness)
sections = FaultToleranceSectionsCallback(False, True, exp_dir=out)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_steps=steps,
    val_check_interval=10,
    limit_val_batches=2,
    callbacks=[
        sections,
        FaultToleranceCallback(False, True, exp_dir=out),
        pl.callbacks.ModelCheckpoint(out / "top", every_n_train_steps=5, save_top_k=2, monitor="step", mode="max"),
        pl.callbacks.ModelCheckpoint(out, "{step}", every_n_train_steps=10, save_top_k=-1, save_last=True),
    ],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = out / "last.ckpt"
trainer.fit(
    Module(),
    DataLoader(torch.ones(10_000, 2)),
    DataLoader(torch.ones(8, 2)),
    ckpt_path=last if last.exists() else None,
)
assert_conforms(recorder)
print(f"rank {rank} is done at {trainer.global_step}", flush=True)
