"""transformers' Trainer, with a hang somewhere else in each generation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import places
import torch
from transformers import Trainer, TrainingArguments

from adapters.huggingface import protect

out = Path(sys.argv[1])
torch.set_num_threads(1)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x):
        places.reach("forward" if self.training else "evaluation")
        y = places.Backward.apply(self.layer(x))
        return {"loss": y.mean(), "logits": y}


class SlowTrainer(Trainer):
    def create_optimizer(self, *arguments):
        places.reach("setup")
        return super().create_optimizer(*arguments)

    def _save(self, *arguments, **named):
        places.reach("save")
        return super()._save(*arguments, **named)


network = Network()
trainer = SlowTrainer(
    model=network,
    args=TrainingArguments(
        output_dir=str(out),
        max_steps=(1 + places.GENERATION) * 8,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        save_total_limit=2,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    ),
    train_dataset=places.Batches(True, as_mapping=True),
    eval_dataset=places.Batches(False, as_mapping=True),
    optimizer_cls_and_kwargs=(places.Optimizer, {"lr": 0.01}),
)
protect(trainer, exp_dir=out)
complete = {int(path.parent.name.split("-")[1]) for path in out.glob("checkpoint-*/trainer_state.json")}
trainer.train(resume_from_checkpoint=str(out / f"checkpoint-{max(complete)}") if complete else None)
if trainer.is_world_process_zero():
    (out / "result.txt").write_text(f"{trainer.state.global_step} {os.environ['FT_RESTART_COUNT']}")
