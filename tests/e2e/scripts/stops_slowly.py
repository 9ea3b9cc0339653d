"""Rank 0 stops the training at step 1 and takes long to end; rank 1 fails or hangs meanwhile.

Arguments: where rank 0 stays ("finally" or "atexit"), what rank 1 does ("fails" or "hangs"), and a file for the two.
"""

import atexit
import os
import sys
import time

from adapters.ddp import FaultTolerance
from resilience_core import StopTraining, bus, hookimpl

where, peer, told = sys.argv[1:]


class Enough:
    """Raises ``StopTraining`` on rank 0."""

    @hookimpl
    def step_end(self, iteration: int) -> None:
        """Stop after step 1."""
        if iteration == 1 and os.environ["RANK"] == "0":
            raise StopTraining("the loss is low enough")


def stay() -> None:
    """Tell rank 1 that it may fail, and stay for long."""
    with open(told, "w"):
        time.sleep(600)


bus().register(Enough())
if os.environ["RANK"] == "0" and where == "atexit":
    atexit.register(stay)
ft = FaultTolerance()
try:
    with ft.run():
        for iteration in range(3):
            with ft.step(iteration):
                while iteration == 1 and os.environ["RANK"] == "1":
                    time.sleep(0.01)
                    if peer == "fails" and os.path.exists(told):
                        raise RuntimeError("rank 0 is gone")
finally:
    if os.environ["RANK"] == "0" and where == "finally":
        stay()
