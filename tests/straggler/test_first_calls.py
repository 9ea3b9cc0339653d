"""What is imported at ``initialize``, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")
pytest.importorskip("torch.testing._internal.distributed.fake_pg")

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import time

import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg

from straggler import Detector


def train(ranks):
    report = None
    while report is None or report.world_size != ranks:
        with Detector.detection_section("work"):
            time.sleep(0.001)
        report = Detector.generate_report_if_interval_elapsed()


Detector.initialize(report_time_interval=0.02, report_bound_seconds=0.1)
there = set(sys.modules)
train(1)
late = set(sys.modules) - there
for _ in range(2):
    dist.init_process_group("fake", rank=0, world_size=2, store=dist.HashStore())
    there = set(sys.modules)
    train(2)
    late |= set(sys.modules) - there
    dist.destroy_process_group()
    there = set(sys.modules)
    train(1)
    late |= set(sys.modules) - there
Detector.shutdown()
print(sorted(late))
"""


def test_no_call_after_initialize_imports_anything():
    """Not the first one, nor the first with a process group, nor the first report: an import delays a step by 3 ms."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "RANK": "0"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
