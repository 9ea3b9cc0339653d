"""A rank with a family deaf to SIGTERM: the first generation starts it and fails, the next counts who is left."""

import os
import sys
from pathlib import Path

from relatives import start_relatives, start_washed_daemon


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if os.environ["FT_RESTART_COUNT"] == "0":
    Path("family").write_text(" ".join(map(str, [*start_relatives(), start_washed_daemon()])))
    sys.stdout.flush()
    os._exit(0 if "--finish" in sys.argv else 1)
pids = [int(pid) for pid in Path("family").read_text().split()]
print(f"generation 1 finds {sum(map(is_alive, pids))} of {len(pids)} alive: {[is_alive(pid) for pid in pids]}")
