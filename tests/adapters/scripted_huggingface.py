"""Scripted trainings through transformers' Trainer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from adapters.huggingface import FaultToleranceCallback
from resilience_core.testing import Script, Traits

# With enable_jit_checkpoint Transformers saves as soon as it hears of SIGTERM, in the midst of the step.
TRAITS = Traits(after_signal=("training_error", "checkpoint_start", "checkpoint_end"))


class Ones(Dataset[dict[str, torch.Tensor]]):
    """As many examples as anybody wants."""

    def __init__(self, examples: int) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(2)}


class Network(torch.nn.Module):
    """One linear layer; ``act`` is called in each forward pass of the training."""

    def __init__(self, act: Any = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.act = act

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training and self.act is not None:
            self.act()
        y = self.layer(x)
        return {"loss": y.mean(), "logits": y}


def make_trainer(folder: Path, act: Any = None, **arguments: Any) -> Trainer:
    """A quiet trainer."""
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
        "dataloader_pin_memory": False,
    }
    return Trainer(
        model=Network(act),
        args=TrainingArguments(**{**settings, **arguments}),
        train_dataset=Ones(1000),
        eval_dataset=Ones(2),
    )


def train(script: Script, folder: Path, callbacks: list[FaultToleranceCallback]) -> None:
    """One script, in a trainer of its own."""
    trainer = make_trainer(
        folder,
        max_steps=script.updates,
        gradient_accumulation_steps=script.accumulation,
        eval_strategy="steps",
        eval_steps=script.every,
        save_strategy="steps",
        save_steps=script.every,
        enable_jit_checkpoint=script.ends == "signal",
    )
    managers = [c.jit_manager for c in trainer.callback_handler.callbacks if hasattr(c, "jit_manager")]
    for manager in managers:
        manager.kill_wait = 0

    def act() -> None:
        script.act(trainer.state.global_step)
        # Transformers heeds the signal in a thread of its own.
        for thread in threading.enumerate():
            if getattr(thread, "function", None) in [manager._enable_checkpoint for manager in managers]:
                thread.join()

    trainer.model.act = act
    for callback in callbacks:
        callback.attach(trainer)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{script.first}") if script.first else None)
