"""Gets on in each generation and fails, but counts its iterations from 0 again and again.

``epochs`` counts within each epoch, ``generations`` from the first step of each generation. With ``saves`` and
``loads`` an epoch is one generation, so that no iteration is ever lower than the one before it; the first says that it
has saved, the second that it has loaded a checkpoint. An epoch has three steps.
"""

import sys
from pathlib import Path

from resilience_core import RunContext, SectionMonitor, bus

how, file = sys.argv[1], Path(sys.argv[2])
context = RunContext.from_environment()
events = bus()
events.register(SectionMonitor())
events.setup(context=context)
done = int(file.read_text()) if file.exists() else 0
if how == "loads" and done:
    events.checkpoint_loaded(iteration=done, source="persistent")

last = 12 if how == "generations" else 5
after_steps = {"epochs": (4,) * 4, "generations": (14, 10, 5, 9), "saves": (3,) * 4, "loads": (3,) * 4}[how]
dies_after = after_steps[context.restart_count] if context.restart_count < 4 else 0
steps = 0
while done < last:
    for step in range(3):
        iteration = steps if how == "generations" else step
        events.step_start(iteration=iteration)
        events.step_end(iteration=iteration)
        steps += 1
        if how in ("epochs", "generations") and steps == dies_after:
            sys.exit(3)
    done += 1
    if how == "saves":
        events.checkpoint_start(iteration=done, kind="save")
    file.write_text(str(done))
    if how == "saves":
        events.checkpoint_end(iteration=done, kind="save", error=None)
    if steps == dies_after:
        sys.exit(3)
events.teardown(reason="completed")
