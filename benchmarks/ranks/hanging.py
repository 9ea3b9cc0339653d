"""A rank that steps, and hangs in its twentieth step if it is rank 1, in the first generations; see benchmarks.metrics.

The argument is how many generations hang.
"""

import os
import sys
import time

from resilience_core import RunContext, SectionMonitor, bus

context = RunContext.from_environment()
events = bus()
events.register(SectionMonitor())
events.setup(context=context)
for step in range(40):
    events.step_start(iteration=step)
    if step == 20 and context.rank == 1 and context.restart_count < int(sys.argv[1]):
        time.sleep(600)
    time.sleep(0.01)
    events.step_end(iteration=step)
if context.rank == 0 and context.restart_count < int(sys.argv[1]):
    time.sleep(600)
events.teardown(reason="completed")
os._exit(0)
