"""The Trainer of transformers on handwritten digits; one line of it is ours.

    ft_launcher --nproc-per-node 2 --max-restarts 3 \\
        --ft-rank-section-timeouts setup:120,step:10,checkpointing:60 --ft-rank-out-of-section-timeout 60 \\
        examples/hf_trainer.py --out demo_out/hf

A small network of random weights learns digits that ship with scikit-learn; nothing is downloaded. The
same script runs under ``torchrun`` or plain ``python``, unprotected. To see a hang found, set for example
``FT_SIMULATED_FAULTS=hang:rank=1,step=30``; ``resilience_core.faults`` lists what else can go wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset, Subset
from transformers import Trainer, TrainingArguments, set_seed

from adapters.huggingface import protect
from resilience_core import StopTraining

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError:
    NEEDED = "examples/hf_trainer.py needs scikit-learn, which has the digits: pip install scikit-learn"
    if "RANK" not in os.environ:
        print(NEEDED, file=sys.stderr)  # ft_launcher prints it by itself
    raise StopTraining(NEEDED) from None  # rather than an error, which would be tried again

TRAIN_IMAGES = 1408
"""Of 1,797; the rest tests."""


class Digits(Dataset):
    """Images of 64 pixels and their labels."""

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        self._images = torch.tensor(images, dtype=torch.float32) / 16.0
        self._labels = torch.tensor(labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixels": self._images[index], "labels": self._labels[index]}


class Network(torch.nn.Module):
    """Two layers, with the loss inside, as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(pixels)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def make_trainer(options: argparse.Namespace) -> Trainer:
    """Return a Trainer that saves and evaluates every so many steps."""
    order = torch.randperm(len(Digits()), generator=torch.Generator().manual_seed(1)).tolist()
    return Trainer(
        model=Network(),
        args=TrainingArguments(
            output_dir=str(options.out),
            max_steps=options.steps,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=64,
            learning_rate=3e-3,
            eval_strategy="steps",
            eval_steps=options.save_every,
            save_strategy="steps",
            save_steps=options.save_every,
            save_total_limit=2,
            use_cpu=True,
            ddp_backend="gloo",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            ddp_find_unused_parameters=False,
        ),
        train_dataset=Subset(Digits(), order[:TRAIN_IMAGES]),
        eval_dataset=Subset(Digits(), order[TRAIN_IMAGES:]),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that is complete: a rank that is killed while it saves leaves half of one."""
    complete = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="checkpoints, result")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--autoresume", action="store_true", help="tell ft_autoresume when training is complete")
    return parser.parse_args()


def main() -> None:
    """Train, or go on training, and leave ``result.json`` when done."""
    options = parse_options()
    logging.basicConfig(level=logging.WARNING, format=f"[rank {os.environ.get('RANK', 0)}] %(message)s")
    torch.set_num_threads(1)
    set_seed(1)  # the Trainer seeds later, when the network has its weights already
    options.out.mkdir(parents=True, exist_ok=True)

    trainer = make_trainer(options)
    protect(trainer, calculate_timeouts=True, exp_dir=options.out, autoresume=options.autoresume)
    resumed_from = last_checkpoint(options.out)
    trainer.train(resume_from_checkpoint=resumed_from and str(resumed_from))

    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        result = {
            "accuracy": metrics["eval_accuracy"],
            "steps": trainer.state.global_step,
            "resumed_from": int(resumed_from.name.rpartition("-")[2]) if resumed_from else 0,
            "generation": int(os.environ.get("FT_RESTART_COUNT", "0")),
        }
        (options.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        print(f"done: {result}", flush=True)


if __name__ == "__main__":
    main()
