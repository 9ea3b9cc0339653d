"""What a GPU is scored by: its kernels, or the GPU times of its sections, and never by a mixture of both."""

import numpy as np
import pytest

from straggler.exchange.gathered import assemble
from straggler.exchange.wire import encode
from straggler.measurement.measured import STATE_FIELDS, Family, measured
from straggler.measurement.name_table import hash_name
from straggler.scoring.scorer import GPU_ROW, Scorer
from straggler.settings import DetectorSettings

KERNEL, SECTION = Family.KERNEL, Family.GPU_SECTION


def window(rank, ranks, rows):
    header = {"sequence": 0, "rank": rank, "world_size": ranks, "elapsed": 60.0, "dropped": 0, "peer_group": 1,
              "node": b"n", "device": np.full(len(STATE_FIELDS), np.nan)}  # fmt: skip
    made = [measured(family, name, np.full(count, seconds)) for family, name, seconds, count in rows]
    return encode(header, [(hash_name(row.name), row) for row in made])


def scored(scoring, *ranks):
    windows = [window(rank, len(ranks), rows) for rank, rows in enumerate(ranks)]
    scores = Scorer(len(ranks), DetectorSettings(scoring=scoring)).score(assemble(windows, 0))
    return scores, scores.gpu_relative.round(3).tolist()


@pytest.mark.parametrize("scoring", ["robust", "minimum"])
def test_sections_of_every_entry_do_not_outweigh_sampled_kernels(scoring):
    healthy = [(KERNEL, "gemm", 0.001, 10), (SECTION, "cuda:s", 0.1, 80)]
    slow = [(KERNEL, "gemm", 0.002, 10), (SECTION, "cuda:s", 0.1, 80)]
    _, relative = scored(scoring, healthy, healthy, slow)
    assert relative == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("scoring", ["robust", "minimum"])
def test_a_rank_without_kernels_is_compared_by_its_sections_with_those_of_all(scoring):
    healthy = [(KERNEL, "gemm", 0.001, 10), (SECTION, "cuda:s", 0.1, 80)]
    _, relative = scored(scoring, healthy, healthy, [(SECTION, "cuda:s", 0.2, 80)])
    assert relative == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("scoring", ["robust", "minimum"])
def test_kernels_that_no_other_rank_has_do_not_hide_slow_sections(scoring):
    healthy = [(SECTION, "cuda:s", 0.1, 80)]
    _, relative = scored(scoring, healthy, healthy, [(KERNEL, "gemm", 0.001, 10), (SECTION, "cuda:s", 0.2, 80)])
    assert relative == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("scoring", ["robust", "minimum"])
def test_a_rank_without_either_has_no_score(scoring):
    healthy = [(KERNEL, "gemm", 0.001, 10)]
    _, relative = scored(scoring, healthy, healthy, [])
    assert relative[:2] == [1.0, 1.0]
    assert np.isnan(relative[2])


def test_the_seconds_of_a_gpu_are_those_of_what_it_is_scored_by():
    healthy = [(KERNEL, "gemm", 0.001, 10), (SECTION, "cuda:s", 0.1, 80)]
    scores, _ = scored("robust", healthy, healthy, [(SECTION, "cuda:s", 0.2, 80)])
    row = scores.against_peers.names.tolist().index(GPU_ROW)
    assert scores.seconds[row].tolist() == pytest.approx([0.01, 0.01, 16.0])
