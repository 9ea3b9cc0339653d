"""``scoring="minimum"`` equals the formulas, on generated data."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from straggler import Statistic
from straggler.exchange.gathered import assemble
from straggler.exchange.wire import encode
from straggler.measurement.measured import Family, Measured
from straggler.measurement.name_table import NameTable
from straggler.measurement.summary import summarise
from straggler.probes.cupti import CuptiProbe
from straggler.reporting.report import Report
from straggler.scoring.minimum import MinimumScorer, gpu_scores, section_scores
from straggler.scoring.scorer import Scorer
from straggler.settings import DetectorSettings
from straggler.testing import RecordedCuptiBackend

RANKS = 4
times = st.one_of(st.none(), st.lists(st.floats(min_value=1e-6, max_value=10.0), min_size=1, max_size=5))
jobs = st.dictionaries(st.sampled_from(["k0", "k1", "k2"]), st.lists(times, min_size=RANKS, max_size=RANKS), min_size=1)


def report_of(sections, kernels, scorer=None, sequence=0):
    """A report through the wire format, from {name: [samples or None for each rank]}."""
    names = NameTable()
    payloads = []
    for rank in range(RANKS):
        rows = [
            (names.add(name), Measured(family, name, summarise(per_rank[rank])))
            for family, table in ((Family.SECTION, sections), (Family.KERNEL, kernels))
            for name, per_rank in table.items()
            if per_rank[rank] is not None
        ]
        head = {"sequence": sequence, "rank": rank, "world_size": RANKS, "elapsed": 1.0, "node": b"n"}
        payloads.append(encode(head, rows))
    gathered = assemble(payloads, sequence)
    scorer = scorer or Scorer(RANKS, DetectorSettings(scoring="minimum"))
    return Report(scores=scorer.score(gathered), gathered=gathered, name_of=names.get, sequence=sequence, rank=0)


def expected_sections(table, reference_of):
    found = {}
    for name, per_rank in table.items():
        scores = {
            rank: reference_of(name, rank) / summarise(samples)[Statistic.MED]
            for rank, samples in enumerate(per_rank)
            if samples is not None
        }
        if scores:
            found[name] = pytest.approx(scores)
    return found


def expected_gpu(table, reference_of):
    found = {}
    for rank in range(RANKS):
        weighted, spent = 0.0, 0.0
        for name, per_rank in table.items():
            if per_rank[rank] is not None:
                summary = summarise(per_rank[rank])
                time_spent = summary[Statistic.AVG] * summary[Statistic.NUM]
                weighted += time_spent * reference_of(name, rank) / summary[Statistic.MED]
                spent += time_spent
        if spent:
            found[rank] = weighted / spent
    return pytest.approx(found)


def fastest(table):
    def of(name, rank):
        return min(summarise(samples)[Statistic.MED] for samples in table[name] if samples is not None)

    return of


@settings(deadline=None)  # a busy machine fails no property
@given(jobs, jobs)
def test_relative_scores_are_the_formulas(sections, kernels):
    """Reference: the minimum over the ranks that have it; a rank without it has no score in it."""
    report = report_of(sections, kernels)
    assert report.section_relative_perf_scores == expected_sections(sections, fastest(sections))
    assert report.gpu_relative_perf_scores == expected_gpu(kernels, fastest(kernels))


@settings(deadline=None)  # a busy machine fails no property
@given(jobs, jobs)
def test_individual_scores_use_each_ranks_best_so_far(first, second):
    """The second report's reference is the smaller of a rank's two medians."""
    scorer = Scorer(RANKS, DetectorSettings(scoring="minimum", scores_to_compute=["individual_perf_scores"]))
    report_of(first, first, scorer)
    report = report_of(second, second, scorer, sequence=1)

    def own_best(name, rank):
        seen = [t[name][rank] for t in (first, second) if name in t and t[name][rank] is not None]
        return min(summarise(samples)[Statistic.MED] for samples in seen)

    assert report.section_individual_perf_scores == expected_sections(second, own_best)
    assert report.gpu_individual_perf_scores == expected_gpu(second, own_best)
    assert report.section_relative_perf_scores == {}


@settings(deadline=None)  # a busy machine fails no property
@given(jobs, st.floats(min_value=0.0, max_value=1.0))
def test_a_straggler_is_strictly_below_the_threshold(sections, threshold):
    report = report_of(sections, {})
    named = report.identify_stragglers(section_rel_threshold=threshold)["straggler_sections_relative"]
    for section, scores in report.section_relative_perf_scores.items():
        below = {rank for rank, score in scores.items() if score < threshold}
        assert {straggler.rank for straggler in named.get(section, set())} == below


def test_a_kernel_that_one_rank_alone_has_scores_one_there_and_nothing_elsewhere():
    kernels = {"common": [[1.0], [2.0], [1.0], [1.0]], "own": [None, [5.0], None, None], "none": [None] * 4}
    report = report_of({}, kernels)
    assert report.gpu_relative_perf_scores[1] == pytest.approx((2.0 * 0.5 + 5.0 * 1.0) / 7.0)
    assert report.gpu_relative_perf_scores[0] == 1.0


def test_a_rank_without_kernels_has_no_gpu_score():
    report = report_of({}, {"k0": [[1.0], None, [1.0], [2.0]]})
    assert set(report.gpu_relative_perf_scores) == {0, 2, 3}
    assert not any(math.isnan(score) for score in report.gpu_relative_perf_scores.values())


def test_nccl_kernels_are_left_out():
    """They last as long as the slowest rank takes to come; their time is a wait."""
    records = [("ncclDevKernel_AllReduce_Sum_f32", 0, 9_000), ("gemm", 0, 1_000)]
    probe = CuptiProbe(RecordedCuptiBackend(records), other_profiler=lambda: False)
    probe.start()
    probe.switch_on()
    probe.switch_off()
    rows = probe.collect().rows
    assert {(row.family, row.name) for row in rows} == {(Family.KERNEL, "gemm"), (Family.WAIT, "collective kernels")}


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf")])
def test_a_median_that_is_no_duration_is_an_error(bad):
    medians = np.array([[1.0, bad]])
    with pytest.raises(ValueError, match=r"rank 1 is"):
        section_scores(medians, np.array([[1.0]]))
    with pytest.raises(ValueError, match=r"rank 1 is"):
        gpu_scores(medians, medians, np.array([[1.0]]))


@settings(deadline=None)  # a busy machine fails no property
@given(hnp.arrays(np.float64, (3, 5), elements=st.floats(min_value=1e-3, max_value=1e3)))
def test_the_fastest_rank_scores_one_and_nobody_more(medians):
    scores = MinimumScorer().relative_sections(medians)
    assert (scores <= 1.0).all()
    assert (scores.max(axis=1) == 1.0).all()
