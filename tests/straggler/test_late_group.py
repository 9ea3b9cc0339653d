"""A detector that is made before the process group: real ranks, compared from then on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from straggler import Detector
from straggler.measurement.section import Section, SectionClock

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]

SCRIPT = """
import logging
import sys
import time

import torch
import torch.distributed as dist

from straggler import Detector

logging.basicConfig(level=logging.WARNING)
rank = int(sys.argv[1])
Detector.initialize(report_time_interval=0.1, log_path="reports.jsonl")
while not Detector.is_interval_elapsed():
    time.sleep(0.005)
    Detector.generate_report_if_interval_elapsed()
dist.init_process_group("gloo", init_method="file://" + sys.argv[2] + "/store", rank=rank, world_size=2)
named, going, end = [], torch.ones(1), time.monotonic() + 60
while going.item():
    with Detector.detection_section("work"):
        time.sleep(0.01 if rank else 0.005)
    report = Detector.generate_report_if_interval_elapsed()
    if report is not None and report.world_size == 2:
        named = [verdict.rank for verdict in report.stragglers()] or named
    going = torch.tensor([float(not named and time.monotonic() < end)])
    dist.broadcast(going, 0)
Detector.shutdown()
print(rank, named)
"""


@pytest.mark.e2e
def test_ranks_are_compared_once_there_is_a_process_group(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(tmp_path)],
            env={**env, "RANK": str(rank)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[0][0] == "0 [1]\n"
    for _, errors in said:
        assert errors.count("this is one of 2 ranks (WORLD_SIZE), but there is no process group yet") == 1
    assert (tmp_path / "reports.jsonl").stat().st_size > 0


def test_a_section_that_is_there_already_finds_out_from_then_on_whether_it_contains_a_collective():
    clock, collectives = SectionClock(), [0]
    section = Section("sync", clock, profiling_interval=3)
    for _ in range(100):
        with section:
            pass
    clock.collectives = lambda: collectives[0]
    section.look_for_collectives()
    for _ in range(24):
        with section:
            collectives[0] += 1
    assert section.synchronous


def test_a_rank_that_is_alone_says_nothing_of_a_group(monkeypatch, caplog):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    detector = Detector()
    detector.initialize()
    detector.generate_report()
    detector.shutdown()
    assert "no process group" not in caplog.text
