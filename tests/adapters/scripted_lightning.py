"""Scripted trainings through Lightning, and the tiny module and data of the other tests."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from resilience_core.testing import Script, Traits

NAMES = ("lightning.pytorch", "pytorch_lightning")
TRAITS = Traits(steps_are="batches", sanity_steps=2)

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Endless(Dataset[torch.Tensor]):
    """As many batches as anybody wants."""

    def __init__(self, batches: int = 1000) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2)


def loader(batches: int = 1000) -> DataLoader[torch.Tensor]:
    """Batches of shape ``(1, 2)``."""
    return DataLoader(Endless(batches))


def make_module(name: str = NAMES[0], act: Any = None) -> Any:
    """A module of one linear layer; ``act`` is called with the module and the batch's index in each step."""
    pl = importlib.import_module(name)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if act is not None:
                act(self, batch_idx)
            return self.layer(batch).mean()

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.layer(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    return Module()


def make_trainer(name: str = NAMES[0], **arguments: Any) -> Any:
    """A quiet trainer of either package."""
    pl = importlib.import_module(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pl.Trainer(**{**QUIET, **arguments})


def train(script: Script, folder: Path, name: str, callbacks: list[Any]) -> None:
    """One script, in a trainer of its own."""
    pl = importlib.import_module(name)
    saves = pl.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, save_on_train_epoch_end=False)
    trainer = make_trainer(
        name,
        max_steps=script.updates,
        accumulate_grad_batches=script.accumulation,
        val_check_interval=script.every * script.accumulation,
        limit_val_batches=script.eval_steps,
        num_sanity_val_steps=TRAITS.sanity_steps,
        callbacks=[*callbacks, saves],
    )
    module = make_module(name, act=lambda module, _: script.act(module.global_step))
    resumed = folder / f"step={script.first}.ckpt" if script.first else None
    trainer.fit(module, loader(), loader(), ckpt_path=resumed)
