"""A rank that leaves many short-lived orphans, and goes on until the file ``stop`` is there."""

import os
import time

for _ in range(50):
    if (middle := os.fork()) == 0:
        if os.fork() == 0:
            os.setsid()
        os._exit(0)
    os.waitpid(middle, 0)
print("50 orphans have ended", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.01)
