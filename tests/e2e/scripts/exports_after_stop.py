"""A rank catches the ``StopTraining`` that ends its loop; what it does afterwards fails in the first generation.

The argument says how: "raise", "exit" or "kill".
"""

import os
import signal
import sys

from adapters.ddp import FaultTolerance
from resilience_core import StopTraining, bus, hookimpl


class Enough:
    """Raises ``StopTraining``."""

    @hookimpl
    def step_end(self, iteration: int) -> None:
        """Stop after step 1."""
        if iteration == 1:
            raise StopTraining("the loss is low enough")


bus().register(Enough())
ft = FaultTolerance()
try:
    with ft.run():
        for iteration in range(3):
            with ft.step(iteration):
                pass
except StopTraining as stop:
    print("caught:", stop.reason, flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if sys.argv[1] == "raise":
        raise RuntimeError("the file server did not answer")
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(5)
print("exported", flush=True)
