"""A machine that has just been started, where CLOCK_MONOTONIC shows less than what is easily taken for granted."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEEPS_TIMES = "\nT = 1_000 * S\n"
UPTIME_SECONDS = 2


def in_a_young_machine(command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run it in a time namespace (time_namespaces(7)) whose clocks began 2 s ago, and in a PID namespace of its own."""
    behind = -(int(time.clock_gettime(time.CLOCK_BOOTTIME)) - UPTIME_SECONDS)
    namespace = ["unshare", "--time", f"--monotonic={behind}", f"--boottime={behind}"]
    namespace += ["--pid", "--fork", "--mount-proc", "--kill-child"]
    whole = [*namespace, *command]
    return subprocess.run(whole, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)


@pytest.mark.long
def test_what_keeps_times_passes_on_a_machine_that_has_just_been_started() -> None:
    clock = [sys.executable, "-c", "import time; print(time.monotonic() < 60)"]
    if shutil.which("unshare") is None or in_a_young_machine(clock, 60).stdout != "True\n":
        pytest.skip("no time namespace can be made here")
    files = [
        str(path)
        for package in ("launcher", "resilience_core")
        for path in sorted((ROOT / "tests" / package).rglob("test_*.py"))
        if KEEPS_TIMES in path.read_text(encoding="utf-8")
    ]
    assert len(files) >= 5

    chosen = ["-q", "-p", "no:cacheprovider", "-m", "not long and not launches"]
    done = in_a_young_machine([sys.executable, "-m", "pytest", *chosen, *files], 500)

    assert done.returncode == 0, done.stdout[-6000:]
