"""DDP on handwritten digits with the heartbeat API of ``RankMonitorClient``, used directly.

    ft_launcher --nproc-per-node 2 --max-restarts 3 --ft-cfg-path examples/fault_tol_cfg_heartbeats.yaml \\
        examples/train_ddp_heartbeats.py --out demo_out/heartbeats

The same command with ``torchrun --nproc-per-node 2``, or plain ``python``, trains just as well, unprotected. To see
a hang found, add for example ``--fault hang:rank=1,step=65``; ``resilience_core.faults`` lists what else can go wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import digits
import torch
import torch.distributed as dist

from resilience_core import RankMonitorClient, RankMonitorClientError, RunContext
from resilience_core.errors import ConfigError
from resilience_core.faults import FaultInjector, parse_faults
from resilience_core.plugins.state_file import load_state, save_state


class Heartbeats:
    """The client, or nothing at all where no launcher of ours has started this process.

    Args:
        state_path: Where calculated timeouts are kept from job to job.
    """

    def __init__(self, state_path: Path) -> None:
        self._state_path = state_path
        self._client = RankMonitorClient()

    def begin(self) -> None:
        """Begin to be monitored; timeouts that an earlier job has calculated beat the configured ones."""
        try:
            self._client.init_workload_monitoring()
        except RankMonitorClientError as error:
            print(f"[rank {os.environ.get('RANK', 0)}] {error}", file=sys.stderr)
            return
        state = load_state(self._state_path)
        if state is not None:
            self._client.load_state_dict(state)

    def beat(self, iteration: int) -> None:
        """Say that this rank is alive."""
        if self._client.is_initialized:
            self._client.note_iteration(iteration)
            self._client.send_heartbeat()

    def calculate(self) -> None:
        """Turn what was observed into timeouts for the rest of the run, and for the next. A collective."""
        if self._client.is_initialized and self._client.calculate_and_set_hb_timeouts(skip_if_not_ready=True):
            if dist.get_rank() == 0:
                save_state(self._state_path, self._client.state_dict())
            digits.tell(f"heartbeat timeouts calculated: {self._client.hb_timeouts}")

    def end(self) -> None:
        """From here on this rank may take as long as it likes."""
        self._client.shutdown_workload_monitoring()


def main() -> None:
    """Train, or go on training, and leave ``result.json`` when done."""
    options = parse_options()
    stop = digits.StopFlag()
    signal.signal(signal.SIGTERM, stop.ask)
    heartbeats = Heartbeats(options.out / "ft_state.json")
    heartbeats.begin()
    faults = FaultInjector(*parse_faults(options.fault))
    faults.setup(context=RunContext.from_environment())

    train(heartbeats, faults, stop, options)
    heartbeats.end()
    faults.teardown()
    # Only now that train() has let go of the model: a DDP reducer that outlives the group's end can deadlock in
    # its destructor, which waits for gloo's threads while it holds the GIL that they may need.
    dist.destroy_process_group()


def train(heartbeats: Heartbeats, faults: FaultInjector, stop: digits.StopFlag, options: argparse.Namespace) -> None:
    """Set up or resume, train, test."""
    digits.make_deterministic(options.seed)
    digits.join_group()
    data = digits.Digits(options.seed)
    model = digits.make_model()
    optimizer = digits.make_optimizer(model)
    checkpoint = options.out / "checkpoint.pt"
    loaded = digits.load_checkpoint(checkpoint, model, optimizer)
    digits.tell(f"training from step {loaded or 0} of {options.steps} on {dist.get_world_size()} rank(s)")

    for iteration in range(loaded or 0, options.steps):
        faults.step_start(iteration=iteration)
        loss, is_asked = digits.train_step(model, optimizer, data.batch(iteration), stop)
        heartbeats.beat(iteration)
        done = iteration + 1
        if done % options.save_every == 0 or done == options.steps or is_asked:
            digits.save_checkpoint(checkpoint, model, optimizer, done)
            digits.tell(f"step {done:4d}  loss {loss:.4f}  checkpoint saved")
        if is_asked:
            digits.tell(f"asked to stop: every rank stops after step {done}")
            return
    finish(heartbeats, model, data, options)
    # The slowest intervals, loading and saving, have been seen only by a run that did both.
    if loaded is not None:
        heartbeats.calculate()


def finish(
    heartbeats: Heartbeats,
    model: torch.nn.parallel.DistributedDataParallel,
    data: digits.Digits,
    options: argparse.Namespace,
) -> None:
    """Test, and leave the result."""
    counts = torch.zeros(2, dtype=torch.int64)
    for batch in data.test_batches():
        counts += digits.count_correct(model, batch)
        heartbeats.beat(options.steps)
    digits.leave_result(model, counts, options.out)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="checkpoint, result, timeouts")
    parser.add_argument("--steps", type=int, default=220, help="training steps (default 220: ten epochs on two ranks)")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--fault",
        default=os.environ.get("FT_SIMULATED_FAULTS", ""),
        metavar="KIND:rank=R,step=N;...",
        help="simulate faults; FT_SIMULATED_FAULTS does the same (kinds and keys: resilience_core.faults)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"error: {error}")
