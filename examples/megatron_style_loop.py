"""A Megatron-style training loop: iterations, evaluation every N, local and persistent checkpoints, asynchronous saves.

    ft_launcher --nproc-per-node 2 --max-restarts 3 \\
        --ft-rank-section-timeouts setup:60,step:5,checkpointing:30 --ft-rank-out-of-section-timeout 60 \\
        examples/megatron_style_loop.py --save demo_out/megatron

The calls of ``adapters.megatron`` stand where Megatron has them. To see a hang found, add for example
``--simulated-fault rank_hung``, or set ``FT_SIMULATED_FAULTS=hang:rank=1,step=30``.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import logging
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import digits
import torch
import torch.distributed as dist

from adapters import megatron as fault_tolerance


@dataclasses.dataclass
class CheckpointConfig:
    """Where and when to save."""

    save: str
    save_interval: int
    non_persistent_save_interval: int
    async_save: bool


@dataclasses.dataclass
class FaultToleranceConfig:
    """What ``adapters.megatron`` reads."""

    calc_ft_timeouts: bool
    simulate_fault: bool
    simulated_fault_type: str
    simulated_fault_rank: int | None
    simulated_fault_base_delay: float
    enable_ft_package: bool = True


@dataclasses.dataclass
class Config:
    """The configuration container."""

    checkpoint: CheckpointConfig
    ft: FaultToleranceConfig
    train_iters: int
    eval_interval: int


class GlobalState:
    """The global training state."""

    def __init__(self, config: Config) -> None:
        self.cfg = config
        self.train_state = SimpleNamespace(step=0)
        self.rank_monitor_client = None
        self.fault_tolerance_state = SimpleNamespace()


class Training:
    """Model, data and checkpoints of one process."""

    def __init__(self, config: Config, state: GlobalState) -> None:
        digits.make_deterministic(1)
        self.config, self.state = config, state
        self.data = digits.Digits(1)
        self.model = digits.make_model()
        self.optimizer = digits.make_optimizer(self.model)
        self.stop = digits.StopFlag()
        signal.signal(signal.SIGTERM, self.stop.ask)
        self.folder = Path(config.checkpoint.save)
        self._writer: threading.Thread | None = None

    # ---- checkpoints ------------------------------------------------------------------------------------

    def _local_path(self) -> Path:
        return self.folder / f"local_rank{dist.get_rank()}.pt"

    def load(self) -> None:
        """Resume from the newest checkpoint that every rank has."""
        local, persistent = self._iteration_of(self._local_path()), self._iteration_of(self.folder / "persistent.pt")
        newest = torch.tensor([local, persistent])
        dist.all_reduce(newest, dist.ReduceOp.MIN)
        is_local = bool(newest[0] > newest[1])
        if newest.max() < 0:
            return
        self.state.train_state.step = digits.load_checkpoint(
            self._local_path() if is_local else self.folder / "persistent.pt", self.model, self.optimizer
        )
        fault_tolerance.on_checkpoint_loaded(is_local_chkpt=is_local, global_state=self.state)

    @staticmethod
    def _iteration_of(path: Path) -> int:
        return torch.load(path, weights_only=True)["iteration"] if path.exists() else -1

    def save_local(self) -> None:
        """Every rank writes for itself."""
        fault_tolerance.on_checkpointing_start(self.state)
        self._write(self._local_path(), self._snapshot())
        dist.barrier()
        fault_tolerance.on_checkpointing_end(is_async_finalization=False, global_state=self.state)

    def save_persistent(self) -> None:
        """Rank 0 writes for all; in the background, if so configured."""
        fault_tolerance.on_checkpointing_start(self.state)
        snapshot = self._snapshot()
        if dist.get_rank() == 0:
            arguments = (self.folder / "persistent.pt", snapshot)
            if self.config.checkpoint.async_save:
                self._writer = threading.Thread(target=self._write, args=arguments)
                self._writer.start()
            else:
                self._write(*arguments)
        dist.barrier()
        fault_tolerance.on_checkpointing_end(is_async_finalization=False, global_state=self.state)

    def finalize_async_save(self) -> None:
        """Wait for the write that is under way, if there is one."""
        if not self.config.checkpoint.async_save:
            return
        fault_tolerance.on_checkpointing_start(self.state)
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        dist.barrier()
        fault_tolerance.on_checkpointing_end(is_async_finalization=True, global_state=self.state)

    def _snapshot(self) -> dict:
        return copy.deepcopy(
            {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "iteration": self.state.train_state.step,
            }
        )

    @staticmethod
    def _write(path: Path, snapshot: dict) -> None:
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        torch.save(snapshot, temporary)
        temporary.replace(path)

    # ---- the loop ---------------------------------------------------------------------------------------

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's batch of the next iteration."""
        return self.data.batch(self.state.train_state.step)

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the loss."""
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.model(images), labels)

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients, which DDP all-reduces."""
        self.optimizer.zero_grad()
        loss.backward()

    def update(self) -> None:
        """Update the weights."""
        self.optimizer.step()

    def train_step(self) -> bool:
        """One iteration; returns whether any rank was asked to stop."""
        batch = self.next_batch()
        fault_tolerance.on_training_step_start(self.state)
        loss = self.forward(batch)
        self.backward(loss)
        self.update()
        _, is_asked = self.stop.agree(loss)
        self.state.train_state.step += 1
        fault_tolerance.on_training_step_end(self.state)
        return is_asked

    def evaluate(self) -> float:
        """Return the accuracy over all ranks' test images."""
        counts = torch.zeros(2, dtype=torch.int64)
        for batch in self.data.test_batches():
            fault_tolerance.on_eval_step_start(self.state)
            counts += digits.count_correct(self.model, batch)
            fault_tolerance.on_eval_step_end(self.state)
        dist.all_reduce(counts)
        return counts[0].item() / counts[1].item()

    def train(self) -> float | None:
        """All iterations; the accuracy, or None where somebody asked to stop."""
        checkpoint = self.config.checkpoint
        while self.state.train_state.step < self.config.train_iters:
            self.finalize_async_save()
            is_asked = self.train_step()
            step = self.state.train_state.step
            if step % self.config.eval_interval == 0:
                self.evaluate()
            if step % checkpoint.save_interval == 0 or step == self.config.train_iters or is_asked:
                self.save_persistent()
            elif step % checkpoint.non_persistent_save_interval == 0:
                self.save_local()
            if is_asked:
                self.finalize_async_save()
                return None
        self.finalize_async_save()
        return self.evaluate()


def run(config: Config, training_class: type[Training] = Training) -> None:
    """Train, or go on training, and leave ``result.json`` when done."""
    digits.join_group()
    state = GlobalState(config)
    fault_tolerance.setup(config, state)
    fault_tolerance.maybe_setup_simulated_fault(config.ft)
    try:
        training = training_class(config, state)
        training.load()
        resumed_from = state.train_state.step
        accuracy = training.train()
    except BaseException:
        fault_tolerance.abort(state)  # no collective: the other ranks may not be there any more
        raise
    fault_tolerance.shutdown(state)
    if accuracy is not None and dist.get_rank() == 0:
        result = {
            "accuracy": accuracy,
            "steps": state.train_state.step,
            "resumed_from": resumed_from,
            "generation": int(os.environ.get("FT_RESTART_COUNT", "0")),
            "sha256": digits.fingerprint(training.model),
        }
        (training.folder / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        print(f"done: {result}", flush=True)
    # The model goes before the group: a DDP reducer that outlives the group's end can deadlock in its destructor, which
    # waits for gloo's threads while it holds the GIL that they may need.
    del training
    dist.destroy_process_group()


def parse_config() -> Config:
    """Parse the command line, as Megatron-style configuration objects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", required=True, metavar="FOLDER", help="checkpoints, result, learned timeouts")
    parser.add_argument("--train-iters", type=int, default=80)
    parser.add_argument("--eval-interval", type=int, default=20)
    parser.add_argument("--save-interval", type=int, default=20, help="persistent checkpoints")
    parser.add_argument("--non-persistent-save-interval", type=int, default=5, help="local checkpoints")
    parser.add_argument("--async-save", action="store_true")
    parser.add_argument("--calc-ft-timeouts", action="store_true")
    parser.add_argument("--simulated-fault", choices=["random", "rank_hung", "rank_killed"])
    parser.add_argument("--simulated-fault-rank", type=int)
    parser.add_argument("--simulated-fault-base-delay", type=float, default=3.0, metavar="SECONDS")
    options = parser.parse_args()
    return Config(
        checkpoint=CheckpointConfig(
            options.save, options.save_interval, options.non_persistent_save_interval, options.async_save
        ),
        ft=FaultToleranceConfig(
            options.calc_ft_timeouts,
            options.simulated_fault is not None,
            options.simulated_fault or "random",
            options.simulated_fault_rank,
            options.simulated_fault_base_delay,
        ),
        train_iters=options.train_iters,
        eval_interval=options.eval_interval,
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=f"[rank {os.environ.get('RANK', 0)}] %(message)s")
    run(parse_config())
