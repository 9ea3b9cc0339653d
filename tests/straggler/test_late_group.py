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


def two_ranks(script, folder, argument):
    """Run a script as two ranks, each with its number and an argument; return exit codes, and what each has printed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), argument],
            env={**env, "RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    return [rank.returncode for rank in ranks], said


@pytest.mark.e2e
def test_ranks_are_compared_once_there_is_a_process_group(tmp_path):
    codes, said = two_ranks(SCRIPT, tmp_path, str(tmp_path))
    assert codes == [0, 0], said
    assert said[0][0] == "0 [1]\n"
    for _, errors in said:
        assert errors.count("this is one of 2 ranks (WORLD_SIZE), but there is no process group yet") == 1
    assert (tmp_path / "reports.jsonl").stat().st_size > 0


REGROUPED = """
import sys
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from straggler import Detector

rank, outer = int(sys.argv[1]), TCPStore("127.0.0.1", int(sys.argv[2]), None, False, timeout=timedelta(seconds=60))


def compared():
    for _ in range(2000):
        with Detector.detection_section("work"):
            time.sleep(0.002)
        dist.barrier()
        report = Detector.generate_report_if_interval_elapsed()
        seen = report is not None and report.world_size == 2 and report.coverage == 1.0
        told = [seen]
        dist.broadcast_object_list(told, 0)
        if told[0]:
            return True
    return False


if rank == 0:  # the first group's store ends with it
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, timeout=timedelta(seconds=60))
    outer.set("port", str(store.port))
else:
    store = TCPStore("127.0.0.1", int(outer.get("port")), None, False, timeout=timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
Detector.initialize(report_time_interval=0.05)
print(compared(), end=" ")
dist.destroy_process_group()
del store
alone = 0
while not alone:
    time.sleep(0.002)
    report = Detector.generate_report_if_interval_elapsed()
    alone += report is not None and report.world_size == 1
dist.init_process_group("gloo", store=PrefixStore("second", outer), rank=rank, world_size=2)
print(compared(), end=" ")
with Detector.detection_section("work"):
    raise SystemExit("no shutdown")
"""


@pytest.mark.e2e
def test_a_detector_follows_the_process_group_and_leaves_nothing_behind(tmp_path):
    """No page of C++ frames where a store has gone with its group, and no key where a rank ends by an exception."""
    dist = pytest.importorskip("torch.distributed")
    outer = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    _, said = two_ranks(REGROUPED, tmp_path, str(outer.port))
    assert [out for out, _ in said] == ["True True ", "True True "], said
    for _, errors in said:
        assert "frame #" not in errors
        assert errors.count("but there is no process group any more") == 1
        assert "no shutdown" in errors
    if hasattr(outer, "list_keys"):
        assert not [key for key in outer.list_keys() if "straggler" in str(key)]


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
