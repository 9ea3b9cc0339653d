"""A training loop of a real gloo group: one all_reduce per step, and the events around it."""

import argparse
import os
import time

import torch
import torch.distributed as dist

from resilience_core import HeartbeatMonitor, RunContext, SectionMonitor, bus
from resilience_core.faults import install_faults

parser = argparse.ArgumentParser()
parser.add_argument("--api", choices=("sections", "heartbeats"), default="sections")
parser.add_argument("--steps", type=int, default=8)
arguments = parser.parse_args()

context = RunContext.from_environment()
print(
    f"rank {context.rank} meets on port {os.environ['MASTER_PORT']} in generation {context.restart_count}", flush=True
)
events = bus()
events.register(SectionMonitor() if arguments.api == "sections" else HeartbeatMonitor())
install_faults()
dist.init_process_group("gloo")
events.setup(context=context)
total = torch.zeros(1)
for step in range(arguments.steps):
    events.step_start(iteration=step)
    time.sleep(0.01)
    part = torch.full((1,), float(context.rank + 1))
    dist.all_reduce(part)
    total += part
    events.step_end(iteration=step)
events.teardown(reason="completed")
dist.destroy_process_group()
print(f"rank {context.rank} of {context.world_size} sums {total.item():g} in generation {context.restart_count}")
