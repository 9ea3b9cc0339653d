"""Local rank 0 of generation 0 spoils what the launcher reads of it, and fails; see tests/e2e/test_lost_parts.py.

Its error file is cut short, and a pipe that nobody writes to lies where its standard error went.
"""

import os
import signal
import sys

generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
if generation == "0":
    if os.environ["LOCAL_RANK"] == "0":
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            file.write('{"message": {"mess')
        path = os.readlink("/proc/self/fd/2")
        os.unlink(path)
        os.mkfifo(path)
        sys.exit(3)
    signal.pause()
print(f"runs in generation {generation}", flush=True)
