"""Writes more than a pipe takes, and fails in the first two generations once every rank has."""

import os
import sys
import time

rank, generation = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for number in range(20_000):
    sys.stdout.write(f"generation {generation} line {number}\n")
sys.stdout.flush()
open(f"done.{rank}.{generation}", "w").close()
while not all(os.path.exists(f"done.{each}.{generation}") for each in range(int(os.environ["WORLD_SIZE"]))):
    time.sleep(0.01)
sys.exit(int(generation < 2))
