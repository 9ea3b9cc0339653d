"""A plugin ends training on purpose at step 1, on the ranks of the first argument; "caught" beside it catches that."""

import os
import sys

from adapters.ddp import FaultTolerance
from resilience_core import StopTraining, bus, hookimpl


class Enough:
    """Raises ``StopTraining``."""

    @hookimpl
    def step_start(self, iteration: int) -> None:
        """Stop at step 1."""
        if iteration == 1 and os.environ["RANK"] in sys.argv[1].split(","):
            raise StopTraining("the loss is low enough", exit_code=7)


bus().register(Enough())
ft = FaultTolerance()


def train() -> None:
    """Three steps."""
    with ft.run():
        for iteration in range(3):
            with ft.step(iteration):
                pass


try:
    train()
except StopTraining:
    if "caught" not in sys.argv:
        raise
    print("saved after the stop", flush=True)
