"""Where a rank hangs: one place in each generation, none in the last."""

from __future__ import annotations

import os
import threading

import torch

PLACES = ("setup", "dataloader", "forward", "backward", "optimizer", "evaluation", "save")
CULPRITS = {"save": 0}
"""Of a save, where only rank 0 writes; rank 1 hangs everywhere else."""

GENERATION = int(os.environ.get("FT_RESTART_COUNT", "0"))
RANK = int(os.environ.get("RANK", "0"))
PLACE = (*PLACES, None)[min(GENERATION, len(PLACES))]
IS_CULPRIT = PLACE is not None and CULPRITS.get(PLACE, 1) == RANK

steps_begun = 0
eval_steps_begun = 0


def hang() -> None:
    threading.Event().wait()


def reach(place: str) -> None:
    """Hang, if this is where this generation does; beyond the steps that are warm-up."""
    global steps_begun, eval_steps_begun
    if place == "forward":
        steps_begun += 1
    elif place == "evaluation":
        eval_steps_begun += 1
    if not IS_CULPRIT or place != PLACE:
        return
    begun = eval_steps_begun if place == "evaluation" else steps_begun
    if begun >= (0 if place == "setup" else 2):
        hang()


class Backward(torch.autograd.Function):
    """The identity, which may hang on its way back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        reach("backward")
        return gradient


class Optimizer(torch.optim.SGD):
    """An optimizer that may hang when it is about to change the weights."""

    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        reach("optimizer")
        super().step()
        return loss


class Batches(torch.utils.data.Dataset):
    """As many as anybody wants, and a loader that may hang."""

    def __init__(self, is_training: bool, as_mapping: bool = False) -> None:
        self._is_training = is_training
        self._as_mapping = as_mapping

    def __len__(self) -> int:
        return 1000 if self._is_training else 8

    def __getitem__(self, index):
        if self._is_training:
            reach("dataloader")
        return {"x": torch.ones(2)} if self._as_mapping else torch.ones(2)
