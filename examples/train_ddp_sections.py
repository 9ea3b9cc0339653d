"""DDP on handwritten digits with the sections API, through ``adapters.ddp``.

    ft_launcher --nproc-per-node 2 --max-restarts 3 --ft-cfg-path examples/fault_tol_cfg_sections.yaml \\
        examples/train_ddp_sections.py --out demo_out/sections

The same command with ``torchrun --nproc-per-node 2``, or plain ``python``, trains just as well, unprotected. To see
a hang found, add for example ``--fault hang:rank=1,step=65``; ``resilience_core.faults`` lists what else can go wrong.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

import digits
import torch
import torch.distributed as dist

from adapters.ddp import FaultTolerance
from resilience_core.errors import ConfigError
from resilience_core.faults import install_faults


def main() -> None:
    """Train, or go on training, and leave ``result.json`` when done."""
    options = parse_options()
    logging.basicConfig(level=logging.WARNING, format=f"[rank {os.environ.get('RANK', 0)}] %(message)s")
    stop = digits.StopFlag()
    signal.signal(signal.SIGTERM, stop.ask)
    ft = FaultTolerance(
        state_path=options.out / "ft_state.json",
        calculate_timeouts=options.learn_timeouts,
        autoresume=options.autoresume,
    )
    install_faults(options.fault)

    # Entered first: from here on data, model, process group and loading run under the limit of 'setup'.
    with ft.run():
        train(ft, stop, options)
    # Only now that train() has let go of the model: a DDP reducer that outlives the group's end can deadlock in
    # its destructor, which waits for gloo's threads while it holds the GIL that they may need.
    dist.destroy_process_group()


def train(ft: FaultTolerance, stop: digits.StopFlag, options: argparse.Namespace) -> None:
    """Set up or resume, train, test."""
    digits.make_deterministic(options.seed)
    digits.join_group()
    data = digits.Digits(options.seed)
    model = digits.make_model()
    optimizer = digits.make_optimizer(model)
    checkpoint = options.out / "checkpoint.pt"
    loaded = digits.load_checkpoint(checkpoint, model, optimizer)
    if loaded is not None:
        ft.checkpoint_loaded(loaded)
    digits.tell(f"training from step {loaded or 0} of {options.steps} on {dist.get_world_size()} rank(s)")

    for iteration in range(loaded or 0, options.steps):
        with ft.step(iteration):
            loss, is_asked = digits.train_step(model, optimizer, data.batch(iteration), stop)
        done = iteration + 1
        if done % options.save_every == 0 or done == options.steps or is_asked:
            with ft.checkpoint(done):
                digits.save_checkpoint(checkpoint, model, optimizer, done)
            digits.tell(f"step {done:4d}  loss {loss:.4f}  checkpoint saved")
        if is_asked:
            digits.tell(f"asked to stop: every rank stops after step {done}")
            ft.end_by_signal()
            return
    finish(ft, model, data, options)


def finish(
    ft: FaultTolerance,
    model: torch.nn.parallel.DistributedDataParallel,
    data: digits.Digits,
    options: argparse.Namespace,
) -> None:
    """Test, and leave the result."""
    counts = torch.zeros(2, dtype=torch.int64)
    for index, batch in enumerate(data.test_batches()):
        with ft.eval_step(options.steps, index):
            counts += digits.count_correct(model, batch)
    digits.leave_result(model, counts, options.out)


def parse_options() -> argparse.Namespace:
    """Parse the command line; a fault that cannot be simulated is refused before anything starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="checkpoint, result, learned timeouts"
    )
    parser.add_argument("--steps", type=int, default=220, help="training steps (default 220: ten epochs on two ranks)")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--autoresume", action="store_true", help="tell ft_autoresume when training is complete")
    parser.add_argument(
        "--learn-timeouts", action="store_true", help="learn limits from what is observed, and keep them"
    )
    parser.add_argument(
        "--fault",
        metavar="KIND:rank=R,step=N;...",
        help="simulate faults; FT_SIMULATED_FAULTS does the same (kinds and keys: resilience_core.faults)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"error: {error}")
