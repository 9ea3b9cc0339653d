"""The Megatron-style example, with a hang somewhere else in each generation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

import digits
import megatron_style_loop as example
import places
import torch


class Training(example.Training):
    def load(self):
        places.reach("setup")
        super().load()

    def next_batch(self):
        places.reach("dataloader")
        return super().next_batch()

    def forward(self, batch):
        places.reach("forward")
        return places.Backward.apply(super().forward(batch))

    def update(self):
        places.reach("optimizer")
        super().update()

    def _snapshot(self):
        places.reach("save")
        return super()._snapshot()


def count_correct(model, batch, original=digits.count_correct):
    places.reach("evaluation")
    return original(model, batch)


digits.count_correct = count_correct
torch.set_num_threads(1)
config = example.parse_config()
config.train_iters = (1 + places.GENERATION) * config.train_iters
example.run(config, Training)
if places.RANK == 0:
    (Path(config.checkpoint.save) / "result.txt").write_text(f"{config.train_iters} {os.environ['FT_RESTART_COUNT']}")
