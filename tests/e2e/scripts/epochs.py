"""Epochs of steps in a resumed run, a save after each, a pause between them as when DataLoader workers start."""

import argparse
import time

from resilience_core import RunContext, SectionMonitor, bus

parser = argparse.ArgumentParser()
parser.add_argument("--state", required=True)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--step-seconds", type=float, default=0.01)
parser.add_argument("--setup-seconds", type=float, default=0.0)
parser.add_argument("--pause-seconds", type=float, default=0.0)
arguments = parser.parse_args()

context = RunContext.from_environment()
events = bus()
events.register(SectionMonitor(state_path=arguments.state, calculate_timeouts=True))
events.setup(context=context)
time.sleep(arguments.setup_seconds)
events.checkpoint_loaded(iteration=0, source="persistent")
iteration = 0
for epoch in range(arguments.epochs):
    if epoch:
        time.sleep(arguments.pause_seconds)
    for _ in range(arguments.steps):
        events.step_start(iteration=iteration)
        time.sleep(arguments.step_seconds)
        events.step_end(iteration=iteration)
        iteration += 1
    events.checkpoint_start(iteration=iteration, kind="save")
    events.checkpoint_end(iteration=iteration, kind="save", error=None)
events.teardown(reason="completed")
print(f"rank {context.rank} is done in generation {context.restart_count}", flush=True)
