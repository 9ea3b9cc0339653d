"""Ranks whose detectors were not given the same: each gets what it asked for, and rank 0 says so."""

import threading
from datetime import timedelta

import pytest

from straggler.detector import Detector
from straggler.exchange.store import StoreExchange
from straggler.probes.cpu_wall import CpuWallProbe

dist = pytest.importorskip("torch.distributed")

GENEROUS = 60.0


@pytest.mark.parametrize(
    ("gathers", "said"),
    [
        (
            (True, False, True),
            "gather_on_rank0 is True on rank 0 and False on 1 ranks (1): each gets what it asked for",
        ),
        ((False, True, True), "gather_on_rank0 is False on rank 0 and True on 2 ranks (1-2): each gets"),
        ((True, True, True), None),
        ((False, False, False), None),
    ],
)
def test_each_rank_gets_the_report_that_it_asked_for(gathers, said):
    store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=60))
    detectors = [Detector() for _ in gathers]
    for rank, (detector, gather) in enumerate(zip(detectors, gathers, strict=True)):
        exchange = StoreExchange(store, rank, len(gathers), bound_seconds=GENEROUS, prefix="t")
        detector.initialize(gather_on_rank0=gather, probes=[CpuWallProbe()], exchange=exchange, node_name=f"n{rank}")
    reports = [[] for _ in gathers]

    def run(rank):
        detector = detectors[rank]
        for _ in range(2):
            for _ in range(5):
                with detector.detection_section("work"):
                    pass
            reports[rank].append(detector.generate_report())

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(len(gathers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GENEROUS)
    for detector in reversed(detectors):
        detector.shutdown()
    for report in reports[0]:
        told = [note for note in report.notes if "gather_on_rank0" in note]
        assert len(told) == (said is not None)
        assert all(said in note for note in told)
        assert report.coverage == 1.0
    for rank, gather in enumerate(gathers[1:], 1):
        if gather:
            assert reports[rank] == [None, None]
        else:
            for report in reports[rank]:
                assert list(report.ranks) == [rank]
                assert report.coverage == 1.0
                assert report.missing_ranks == []
                assert list(report.section_relative_perf_scores["work"]) == [rank]
                assert not any("local times only" in note for note in report.notes)


def test_a_rank_that_rank_0_tells_nothing_says_that_of_itself():
    store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=60))
    first, second = Detector(), Detector()
    for rank, detector in enumerate((first, second)):
        exchange = StoreExchange(store, rank, 2, bound_seconds=GENEROUS, prefix="t")
        detector.initialize(gather_on_rank0=False, probes=[], exchange=exchange, node_name="n")
    first.shutdown()
    report = second.generate_report()
    assert report.verdict(1).because == "rank 0 has told this rank nothing"
    assert [verdict.rank for verdict in report.verdicts()] == [1]
    assert report.missing_ranks == [0]
    second.shutdown()
