"""What all our Lightning callbacks together add to one training step, and what each adapter's step costs.

    python benchmarks/adapters_bench.py [--steps 2000] [--repeats 7]

A real Trainer fits an empty module with and without the callbacks (heartbeats, sections, stragglers), under a real
cell, so that every store that a rank makes is made. The two alternate, and the difference of the medians is what a
step pays, Lightning's own cost of calling a callback included. Beside it, the time in our hooks alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader

import adapters.lightning as ours
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.cell import Cell

LIMITS = {"rank_section_timeouts": {"setup": 600.0, "step": 600.0, "checkpointing": 600.0}}


def monitored(folder: Path) -> Cell:
    """Make this process a rank with a cell."""
    (folder / "config.json").write_text(FaultToleranceConfig(**LIMITS).to_json(), encoding="utf-8")
    path = folder / f"cell{time.monotonic_ns()}"
    cell = Cell.create(str(path))
    os.environ["FT_CELL"], os.environ["FT_CONFIG_FILE"] = str(path), str(folder / "config.json")
    return cell


def callbacks(folder: Path) -> list:
    """Everything we have."""
    return [
        ours.FaultToleranceCallback(False, False, exp_dir=folder),
        ours.FaultToleranceSectionsCallback(False, False, exp_dir=folder),
        ours.StragglerDetectionCallback(3600.0, True, True, 0, 0.7, 0.7, False),
    ]


def seconds_per_step(folder: Path, steps: int, with_ours: list) -> float:
    """Median seconds from one batch's end to the next one's, in a fit of its own."""
    import lightning.pytorch as pl

    ends = []

    class Clock(pl.Callback):
        def on_train_batch_end(self, *_: object) -> None:
            ends.append(time.perf_counter_ns())

    class Empty(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.automatic_optimization = False

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    cell = monitored(folder)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        limit_train_batches=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*with_ours, Clock()],
    )
    trainer.fit(Empty(), DataLoader(torch.ones(steps, 1)))
    cell.close()
    return statistics.median(b - a for a, b in itertools.pairwise(ends[100:])) / 1e9


def hooks_alone(folder: Path, steps: int) -> float:
    """Median seconds in our hooks of one step, called as Lightning calls them, one callback after another."""
    import lightning.pytorch as pl

    cell = monitored(folder)
    mine = callbacks(folder)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=mine,
    )
    module = pl.LightningModule()
    module.training_step = lambda *_: None
    trainer.strategy._lightning_module = module
    for callback in mine:
        callback.setup(trainer, module, "fit")
    times = []
    for index in range(steps):
        begin = time.perf_counter_ns()
        for callback in mine:
            if callable(callback.on_train_batch_start):
                callback.on_train_batch_start(trainer, module, None, index)
        for callback in mine:
            if callable(callback.on_train_batch_end):
                callback.on_train_batch_end(trainer, module, None, None, index)
        times.append(time.perf_counter_ns() - begin)
    for callback in mine:
        callback.teardown(trainer, module, "fit")
    cell.close()
    return statistics.median(times[100:]) / 1e9


def megatron_step(folder: Path, steps: int) -> float:
    """Median seconds in the two functions of one Megatron-style step."""
    from adapters import megatron

    cell = monitored(folder)
    config = SimpleNamespace(
        checkpoint=SimpleNamespace(save=str(folder), async_save=False), ft=SimpleNamespace(calc_ft_timeouts=False)
    )
    state = SimpleNamespace(
        cfg=config,
        rank_monitor_client=None,
        fault_tolerance_state=SimpleNamespace(),
        train_state=SimpleNamespace(step=0),
    )
    megatron.setup(config, state)
    times = []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        megatron.on_training_step_start(state)
        megatron.on_training_step_end(state)
        times.append(time.perf_counter_ns() - begin)
        state.train_state.step += 1
    megatron.shutdown(state)
    cell.close()
    return statistics.median(times[100:]) / 1e9


def ddp_step(folder: Path, steps: int) -> float:
    """Median seconds of an empty ``ft.step`` block."""
    from adapters.ddp import FaultTolerance

    cell = monitored(folder)
    ft, times = FaultTolerance(), []
    with ft.run():
        for number in range(steps):
            begin = time.perf_counter_ns()
            with ft.step(number):
                pass
            times.append(time.perf_counter_ns() - begin)
    cell.close()
    return statistics.median(times[100:]) / 1e9


def main() -> None:
    """Measure, and print one JSON object: microseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        without, with_ours = [], []
        for _ in range(options.repeats):  # alternating, so that a busy neighbour disturbs both alike
            without.append(seconds_per_step(folder, options.steps, []))
            with_ours.append(seconds_per_step(folder, options.steps, callbacks(folder)))
        added = [b - a for a, b in zip(without, with_ours, strict=True)]
        result = {
            "lightning_step_without_us": statistics.median(without) * 1e6,
            "lightning_step_with_all_callbacks_us": statistics.median(with_ours) * 1e6,
            "added_us": statistics.median(added) * 1e6,
            "added_us_in_the_quietest_runs": (min(with_ours) - min(without)) * 1e6,
            "added_us_range": [min(added) * 1e6, max(added) * 1e6],
            "our_hooks_alone_us": hooks_alone(folder, options.steps) * 1e6,
            "megatron_step_us": megatron_step(folder, options.steps) * 1e6,
            "ddp_step_us": min(ddp_step(folder, options.steps) for _ in range(options.repeats)) * 1e6,
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
