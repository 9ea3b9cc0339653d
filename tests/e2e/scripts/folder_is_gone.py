"""Fails after a step; its flag's folder is gone in the next generation, and there again in the one after that.

As when a file system is not there for a while.
"""

import os
from pathlib import Path

from adapters.ddp import FaultTolerance
from resilience_core import RunContext

generation = RunContext.from_environment().restart_count
folder = Path(os.environ["FAULT_TOL_FINISHED_FLAG_FILE"]).parent
if generation == 2:
    folder.mkdir()

ft = FaultTolerance(autoresume=True)
with ft.run():
    with ft.step(generation):
        pass
    if generation == 0:
        folder.rmdir()
        os._exit(3)
