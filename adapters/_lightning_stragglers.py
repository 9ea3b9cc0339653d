"""What the straggler plugin asks of Lightning: to save before training is stopped, and to log scores."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from straggler.reporting.report import Report

__all__ = ["give_to_loggers", "save_last"]


def save_last(trainer: Any) -> str:
    """Save the state beside the trainer's checkpoints, as one that ``ckpt_path="last"`` finds.

    Called on every rank in the same step: with a sharded model all ranks have to take part.

    Returns:
        Where it was saved.
    """
    callback = trainer.checkpoint_callback
    name = f"{callback.CHECKPOINT_NAME_LAST}-stopped-step={trainer.global_step}{callback.FILE_EXTENSION}"
    path = os.path.join(callback.dirpath or trainer.default_root_dir, name)
    trainer.save_checkpoint(path)
    return path


def give_to_loggers(trainer: Any, report: Report) -> None:
    """Give the least, middle and largest score of each kind to the trainer's loggers."""
    kinds = {
        "gpu_relative_perf": report.gpu_relative_perf_scores,
        "gpu_individual_perf": report.gpu_individual_perf_scores,
        **{f"section_relative_perf/{name}": found for name, found in report.section_relative_perf_scores.items()},
        **{f"section_individual_perf/{name}": found for name, found in report.section_individual_perf_scores.items()},
    }
    metrics: dict[str, float] = {}
    for kind, scores in kinds.items():
        known = [score for score in scores.values() if score == score]
        if known:
            metrics |= {f"{kind}/min": min(known), f"{kind}/med": float(np.median(known)), f"{kind}/max": max(known)}
    for logger in trainer.loggers if metrics else ():
        logger.log_metrics(metrics, step=trainer.global_step)
