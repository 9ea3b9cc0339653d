"""Who may talk to whom: no other user, nothing that can be executed, and a monitor that knows no framework."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

HOME = Path(__file__).parents[2]

AS_ANOTHER_USER = """
import os, socket, sys
os.setgid(12345); os.setuid(12345)
refused = 0
for path in sys.argv[1:]:
    for attempt in (
        lambda: open(path, "r+b"),
        lambda: open(path, "rb"),
        lambda: os.listdir(path),
        lambda: os.unlink(path),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect(path),
    ):
        try:
            attempt()
        except (PermissionError, IsADirectoryError):
            refused += 1
        else:
            sys.exit(f"allowed: {path}")
print(refused)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_connect_nor_read_nor_write(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-file", "stop", run_dir=None)
    job.wait_for_output("runs in generation 0", count=2)
    folder = job.events("began")[0]["run_folder"]
    everything = [folder, *(os.path.join(path, name) for path, _, names in os.walk(folder) for name in names)]
    sockets = [path for path in everything if path.endswith(".sock")]
    cells = [path for path in everything if "/cells/" in path]
    assert len(sockets) == 1
    assert len(cells) >= 2

    ended = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, *everything], check=False, capture_output=True, text=True
    )
    (job.work / "stop").touch()

    assert job.wait() == 0
    assert ended.stderr == ""
    assert int(ended.stdout) == 5 * len(everything)


FORBIDDEN = ("torch", "attr", "attrs", "numpy", "yaml", "pluggy", "pickle", "_pickle", "multiprocessing", "subprocess")


def test_the_monitor_imports_nothing_but_the_standard_library_and_no_pickle() -> None:
    """What it does not import it cannot unpickle; and a monitor that imports torch costs 200 MB a node."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import launcher.monitor.monitor\n"
        "print([name for name in sys.argv[2:] if name in sys.modules])"
    )
    said = subprocess.check_output([sys.executable, "-I", "-S", "-c", program, str(HOME), *FORBIDDEN], text=True)
    assert said == "[]\n"


def test_a_running_monitor_has_mapped_no_framework(launch: Callable[..., Any]) -> None:
    """Also after an incident, which takes paths that are taken only then."""
    job = launch(
        *("loop.py", "--until-file", "stop"),
        options=["--max-restarts", 1],
        faults="deadlock:rank=1,step=3",
        rank_section_timeouts="setup:90,step:0.5,checkpointing:90",
    )
    job.wait_for_output("runs in generation 1", count=2)
    maps = Path(f"/proc/{job.monitor_pid}/maps").read_text()
    (job.work / "stop").touch()

    assert job.wait() == 0
    assert "libtorch" not in maps
    assert "_pickle" not in maps


def test_nothing_of_ours_unpickles() -> None:
    """Anywhere in the packages: a word from another process is JSON or a word of shared memory."""
    for package in ("resilience_core", "launcher", "adapters", "straggler"):
        for path in (HOME / package).rglob("*.py"):
            text = path.read_text()
            assert "import pickle" not in text, path
            assert "pickle.load" not in text, path
            assert "all_gather_object" not in text, path
            assert "broadcast_object_list" not in text, path
