"""The NVML health check on a real GPU: how long it takes, what it says, and two launchers that run it."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from launcher.health.check import Context
from launcher.health.nvml import NvmlCheck

__all__ = ["run"]

ROOT = Path(__file__).resolve().parents[2]
LOOKS = 20
MISSING = "7"
"""A GPU that the machine does not have; the benchmark is for machines of one."""


def run() -> tuple[dict[str, Any], bool]:
    """Look often, look for a GPU that is not there, and let two launchers check each other's job; print what came."""
    answers, times = set(), []
    for _ in range(LOOKS):
        start = time.monotonic()
        answers.add(NvmlCheck(10.0).check(Context()))
        times.append(time.monotonic() - start)
    middle = statistics.median(times) * 1e3
    missing = NvmlCheck(10.0, {"CUDA_VISIBLE_DEVICES": MISSING}).check(Context())
    print(f"NVML check, {LOOKS} looks: {answers}, median {middle:.1f} ms, max {max(times) * 1e3:.1f}")
    print(f"NVML check, CUDA_VISIBLE_DEVICES={MISSING}: {missing}")
    healthy = _two_launchers({})
    lost = _two_launchers({"CUDA_VISIBLE_DEVICES": MISSING})
    print(f"two launchers, healthy: {healthy}\ntwo launchers, a GPU missing: {lost}", flush=True)
    is_right = answers == {None} and missing is not None and healthy["exits"] == [0, 0] and lost["exits"] == [1, 1]
    return {"seconds": times, "missing": missing, "healthy": healthy, "lost": lost}, is_right


def _two_launchers(more: dict[str, str]) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-id=gpu", f"--rdzv-endpoint=127.0.0.1:{port}"]
    options += ["--ft-health-checks=nvml", "--rdzv-conf=join_timeout=30"]
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "train.py"
        script.write_text('print("trained")\n')
        launchers = [
            subprocess.Popen(
                [sys.executable, "-m", "launcher", *options, f"--log-dir={name}/{node}", str(script)],
                cwd=ROOT,
                env={**os.environ, **more, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for node in range(2)
        ]
        try:
            said = [launcher.communicate(timeout=90)[0] for launcher in launchers]
        finally:
            for launcher in launchers:
                launcher.kill()
        return {"exits": [launcher.wait() for launcher in launchers], "last": [text.splitlines()[-1:] for text in said]}
