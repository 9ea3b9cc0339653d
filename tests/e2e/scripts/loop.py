"""A training loop without a framework: the events of every step, on the default bus, and nothing else.

Ranks know nothing of each other. With ``--until-stopped`` the loop goes on for as long as this generation is the
first, so that a rank can be seen to be spared, with ``--until-file`` until that file is there. With ``--meet FOLDER``
no rank begins before each of them has set up: one that fails early would otherwise have peers that do not run yet.
"""

import argparse
import os
import pathlib
import signal
import threading
import time

from resilience_core import HeartbeatMonitor, RunContext, SectionMonitor, bus
from resilience_core.faults import install_faults

parser = argparse.ArgumentParser()
parser.add_argument("--api", choices=("sections", "heartbeats"), default="sections")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--step-seconds", type=float, default=0.01)
parser.add_argument("--save-every", type=int, default=0, metavar="STEPS")
parser.add_argument("--until-stopped", action="store_true")
parser.add_argument("--until-file")
parser.add_argument("--meet", type=pathlib.Path, metavar="FOLDER")
parser.add_argument("--done-at-once", type=int, metavar="RANK")
parser.add_argument("--with-pid", action="store_true")
parser.add_argument("--ignore-sigterm", action="store_true")
parser.add_argument("--ignore-sigint", action="store_true")
parser.add_argument("--on-sigterm", type=int, metavar="EXIT_CODE", help="finish the step, say so, and exit")
arguments = parser.parse_args()

wanted_to_stop = threading.Event()
if arguments.ignore_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if arguments.ignore_sigint:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if arguments.on_sigterm is not None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: wanted_to_stop.set())

context = RunContext.from_environment()
events = bus()
events.register(SectionMonitor() if arguments.api == "sections" else HeartbeatMonitor())
install_faults()
events.setup(context=context)
me = f" (pid {os.getpid()})" if arguments.with_pid else ""
print(f"rank {context.rank} runs in generation {context.restart_count}{me}", flush=True)


def goes_on(done: int) -> bool:
    if arguments.done_at_once == context.rank:
        return False
    if arguments.until_file:
        return not os.path.exists(arguments.until_file)
    return done < arguments.steps or (arguments.until_stopped and context.restart_count == 0)


if arguments.meet:
    (arguments.meet / f"{context.restart_count}.{context.rank}").touch()
    while len(list(arguments.meet.glob(f"{context.restart_count}.*"))) < context.world_size:
        time.sleep(0.01)

step = 0
while goes_on(step):
    events.step_start(iteration=step)
    time.sleep(arguments.step_seconds)
    events.step_end(iteration=step)
    step += 1
    if arguments.save_every and step % arguments.save_every == 0:
        events.checkpoint_start(iteration=step, kind="save")
        events.checkpoint_end(iteration=step, kind="save", error=None)
    if wanted_to_stop.is_set():
        print(f"rank {context.rank} has saved its work", flush=True)
        events.teardown(reason="signal")
        os._exit(arguments.on_sigterm)
events.teardown(reason="completed")
print(f"rank {context.rank} is done in generation {context.restart_count}", flush=True)
# A warm worker has torch loaded, and the interpreter would take longer to clear that away than this loop has run.
os._exit(0)
