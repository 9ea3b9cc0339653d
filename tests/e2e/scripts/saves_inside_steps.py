"""A loop that saves, and evaluates, inside its steps; each takes longer than a step may."""

import argparse
import time

from adapters.ddp import FaultTolerance

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, required=True, help="of the save, and of the evaluation together")
parser.add_argument("--hang-after-save", action="store_true")
arguments = parser.parse_args()

ft = FaultTolerance()
with ft.run():
    for iteration in range(4):
        with ft.step(iteration):
            if iteration == 2:
                with ft.checkpoint(iteration):
                    time.sleep(arguments.seconds)
                if arguments.hang_after_save:
                    time.sleep(1000)
                for index in range(8):
                    with ft.eval_step(iteration, index):
                        time.sleep(arguments.seconds / 8)
print("done", flush=True)
