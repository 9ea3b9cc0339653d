"""Gets on in each generation and fails, but counts its iterations from 0 again and again, or has to go back.

``epochs`` counts within each epoch, ``numbers`` says the number of a longer one, ``generations`` counts from the first
step of each generation. With ``silent``, ``saves``
and ``loads`` an epoch is one generation, so that no iteration is ever lower than the one before it; the second says
that it has saved, the third that it has loaded a checkpoint. ``local`` and ``ahead`` say from which step they resume
as they have counted it; the first ends before it, the second behind it. ``older`` counts as it should, but has to load
an older checkpoint once. An epoch has three steps. In each way a generation ends at an iteration that an earlier one
has reached, or short of it.
"""

import sys
from pathlib import Path

from resilience_core import RunContext, SectionMonitor, bus

how, file = sys.argv[1], Path(sys.argv[2])
context = RunContext.from_environment()
events = bus()
events.register(SectionMonitor())
events.setup(context=context)
done = int(file.read_text()) if file.exists() else 0  # epochs
if how == "older" and context.restart_count == 1:
    done = 1
if how in ("loads", "older") and done:
    events.checkpoint_loaded(iteration=3 * done if how == "older" else done, source="persistent")
if how in ("local", "ahead") and done:
    events.checkpoint_loaded(iteration=4, source="persistent")

last = {"generations": 12, "older": 7}.get(how, 5)
after_steps = {"generations": (14, 10, 5, 9), "older": (15, 4, 4, 4)}
after_steps |= {"epochs": (4,) * 4, "numbers": (4,) * 4, "local": (4,) * 4, "ahead": (6,) * 4}
dies_after = after_steps.get(how, (3,) * 4)[context.restart_count] if context.restart_count < 4 else 0
steps = 0
while done < last:
    for step in range(3):
        iteration = steps if how in ("generations", "local", "ahead") else 3 * done + step if how == "older" else step
        if how == "numbers":
            iteration = done // 9
        events.step_start(iteration=iteration)
        if how not in ("silent", "saves", "loads") and steps + 1 == dies_after:
            sys.exit(3)
        events.step_end(iteration=iteration)
        steps += 1
    done += 1
    if how == "saves":
        events.checkpoint_start(iteration=done, kind="save")
    file.write_text(str(done))
    if how == "saves":
        events.checkpoint_end(iteration=done, kind="save", error=None)
    if steps == dies_after:
        sys.exit(3)
events.teardown(reason="completed")
