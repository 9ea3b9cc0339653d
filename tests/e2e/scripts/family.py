"""A rank with a family deaf to SIGTERM: the first generation starts it and fails, the next counts who is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if os.environ["FT_RESTART_COUNT"] == "0":
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE, preexec_fn=os.setpgrp)
    assert child.stdout is not None
    child.stdout.readline()
    forked = os.fork()
    if forked == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    Path("family").write_text(f"{child.pid} {forked}")
    sys.stdout.flush()
    os._exit(0 if "--finish" in sys.argv else 1)
pids = [int(pid) for pid in Path("family").read_text().split()]
print(f"generation 1 finds {sum(map(is_alive, pids))} of {len(pids)} alive")
