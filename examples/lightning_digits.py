"""Lightning on handwritten digits; one line of it is ours.

    ft_launcher --nproc-per-node 2 --max-restarts 3 \\
        --ft-rank-section-timeouts setup:60,step:5,checkpointing:30 --ft-rank-out-of-section-timeout 60 \\
        examples/lightning_digits.py --out demo_out/lightning

It needs ``lightning``, and ``scikit-learn``, which has the digits. The same script runs under ``torchrun`` or plain
``python``, unprotected. To see a hang found, set for example ``FT_SIMULATED_FAULTS=hang:rank=1,step=30``;
``resilience_core.faults`` lists what else can go wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from adapters.lightning import FaultToleranceSectionsCallback
from resilience_core import StopTraining

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError:
    NEEDED = "examples/lightning_digits.py needs scikit-learn, which has the digits: pip install scikit-learn"
    if "RANK" not in os.environ:
        print(NEEDED, file=sys.stderr)  # ft_launcher prints it by itself
    raise StopTraining(NEEDED) from None  # rather than an error, which would be tried again

TRAIN_IMAGES = 1408
"""Of 1,797; the rest tests."""


class DigitsClassifier(pl.LightningModule):
    """Two layers; it learns digits of 8 x 8 pixels in a few epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        accuracy = (self.network(images).argmax(dim=1) == labels).float().mean()
        self.log("accuracy", accuracy, sync_dist=True, batch_size=len(labels))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def digits(batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Training and test images that ship with scikit-learn."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    data = torch.tensor(images, dtype=torch.float32)[order] / 16.0, torch.tensor(labels)[order]
    train = TensorDataset(*(part[:TRAIN_IMAGES] for part in data))
    test = TensorDataset(*(part[TRAIN_IMAGES:] for part in data))
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)


def main() -> None:
    """Train, or go on training, and leave ``result.json`` when done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="checkpoints, result")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--autoresume", action="store_true", help="tell ft_autoresume when training is complete")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format=f"[rank {os.environ.get('RANK', 0)}] %(message)s")
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)

    pl.seed_everything(1, verbose=False)
    fault_tolerance = FaultToleranceSectionsCallback(
        autoresume=options.autoresume, calculate_timeouts=True, exp_dir=options.out
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if "RANK" in os.environ else "auto",
        max_epochs=options.epochs,
        callbacks=[fault_tolerance, ModelCheckpoint(options.out, filename="{epoch}", save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train, test = digits(batch_size=32)
    last = options.out / "last.ckpt"
    trainer.fit(DigitsClassifier(), train, test, ckpt_path=last if last.exists() else None)
    if trainer.is_global_zero:
        result = {
            "accuracy": trainer.callback_metrics["accuracy"].item() if trainer.callback_metrics else None,
            "steps": trainer.global_step,
            "generation": int(os.environ.get("FT_RESTART_COUNT", "0")),
        }
        (options.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        print(f"done: {result}", flush=True)


if __name__ == "__main__":
    main()
