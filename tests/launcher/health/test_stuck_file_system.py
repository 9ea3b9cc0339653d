"""A real file system that does not answer: frozen, so that whoever writes sleeps where no signal reaches it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHELL = """
mkfs.ext4 -q "$1/image" && mkdir "$1/disk" && mount -o loop "$1/image" "$1/disk" || exit 77
(sleep 100; fsfreeze -u "$1/disk") > /dev/null 2>&1 & watchdog=$!
"$2" -c "$3" "$1/disk" & program=$!
wait $program; code=$?
kill $watchdog
exit $code
"""
PROGRAM = """
import json, subprocess, sys, threading
from launcher.health.check import Context
from launcher.health.runner import HealthRunner
from launcher.health.settings import HealthSettings
from launcher.processes.stuck_threads import stuck_threads

disk = sys.argv[1]
folder = HealthRunner(HealthSettings(checks=(f"paths:{disk}=1K", "shm:1K"), timeout_seconds=1), Context())
command = HealthRunner(HealthSettings(checks=("command",), command=f"touch {disk}/x", timeout_seconds=2), Context())
told = {"before": [str(folder.before_joining()), str(command.before_joining())]}
if subprocess.run(["fsfreeze", "-f", disk]).returncode:
    sys.exit(77)
try:
    told["frozen"] = [str(folder.before_joining()), str(command.before_joining())]
    told["again"] = [str(folder.before_joining()), str(command.before_joining())]
    told["threads"] = [len(stuck_threads(0.1)), [t.name for t in threading.enumerate()]]
finally:
    subprocess.run(["fsfreeze", "-u", disk], check=True)
for thread in threading.enumerate():
    if thread.name.startswith("ft_health_paths"):
        thread.join(60)
told["after"] = [str(folder.before_joining()), str(command.before_joining())]
print(json.dumps(told))
"""


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount and freeze a file system")
@pytest.mark.skipif(
    shutil.which("fsfreeze") is None or shutil.which("mkfs.ext4") is None, reason="no fsfreeze, mkfs.ext4"
)
def test_what_waits_for_it_has_failed_is_not_started_again_and_comes_back(tmp_path: Path):
    with open(tmp_path / "image", "wb") as image:
        image.truncate(16 << 20)
    shell = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", SHELL, "bash"]
    done = subprocess.run([*shell, tmp_path, sys.executable, PROGRAM], capture_output=True, text=True, timeout=180)
    if done.returncode == 77:
        pytest.skip("no loop device may be mounted here")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    disk = tmp_path / "disk"
    assert told["before"] == told["after"] == ["None", "None"]
    folder, command = told["frozen"]
    assert folder.startswith(f"health check 'paths:{disk}': no answer for ")
    assert f"(it has 1 s), and was last at: {disk}: writing a file" in folder
    assert command.startswith(
        f"health check 'command': 'touch {disk}/x' was killed before, and what it has started has not"
    )
    assert told["again"][0].startswith(f"health check 'paths:{disk}': no answer for ")
    assert told["again"][1] == command
    stuck, names = told["threads"]
    assert (stuck, names.count(f"ft_health_paths:{disk}")) == (1, 1)
