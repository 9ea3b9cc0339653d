"""Healthy ranks of which each step takes another time: the noise that they show themselves is no slowness."""

import numpy as np
import pytest

from straggler.measurement.standard_errors import standard_errors
from straggler.scoring.cell_noise import CellNoise
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust import RobustScorer
from straggler.scoring.robust_scores import IMPLAUSIBLE, SLOW, UNSURE

ONE = np.array([1], dtype=np.uint64)


def lengths(rng, ranks, steps):
    """Sequences of five lengths, as of buckets."""
    return rng.choice([8.0, 16.0, 24.0, 32.0, 40.0], size=(ranks, steps))


def lognormal(rng, ranks, steps):
    return rng.lognormal(0.0, 0.5, (ranks, steps))


def paused(rng, ranks, steps):
    """One step in twenty takes much longer."""
    return 1.0 + np.where(rng.random((ranks, steps)) < 0.05, 3.0 * rng.pareto(1.5, (ranks, steps)), 0.0)


def disturbed(rng, ranks, steps):
    """Each window takes another time on each rank."""
    return rng.normal(1.0, 0.02, (ranks, steps)) * rng.lognormal(0.0, 0.07, (ranks, 1))


def named(ranks, draw, steps, windows, seed, change=lambda number, samples: samples):
    """How often each rank was named anew, and the last window."""
    rng, scorer = np.random.default_rng(seed), RobustScorer(ranks)
    before, count = np.zeros(ranks, dtype=bool), np.zeros(ranks, dtype=int)
    for number in range(windows):
        samples = change(number, draw(rng, ranks, steps))
        med, mean = np.median(samples, axis=1)[None], samples.mean(axis=1)[None]
        of_median, of_mean = standard_errors(samples)
        window = scorer.update(
            ONE, med, num_SR=np.full((1, ranks), steps), means_SR=mean, errors_SR=(of_median / med, of_mean / mean)
        )
        slow = window.state[0] == SLOW
        count += slow & ~before
        before = slow.copy()
    return count, window


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize(
    ("draw", "steps"), [(lengths, 5), (lengths, 20), (lognormal, 20), (paused, 30), (disturbed, 20)]
)
def test_nobody_is_named_for_its_noise(draw, steps, ranks):
    count, _ = named(ranks, draw, steps, 250, seed=5)
    assert count.sum() == 0


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("draw", [lengths, lognormal])
def test_nobody_is_named_in_the_first_windows(draw, ranks):
    """Then noise between windows says little, and that within them counts."""
    assert sum(named(ranks, draw, 20, 5, seed)[0].sum() for seed in range(60)) == 0


@pytest.mark.parametrize(("ranks", "draw", "by"), [(2, lognormal, 0.6), (4, lengths, 0.5), (4, disturbed, 0.25)])
@pytest.mark.parametrize("onset", [0, 15])
def test_who_is_slow_beside_that_noise_is_named(ranks, draw, by, onset):
    def slowed(number, samples):
        samples[1] *= 1.0 + by * (number >= onset)
        return samples

    count, window = named(ranks, draw, 40, 40, seed=6, change=slowed)
    assert window.state[0].tolist() == [SLOW if rank == 1 else window.state[0, rank] for rank in range(ranks)]
    assert count[1] == count.sum() == 1


def test_two_equal_ranks_with_much_noise_are_not_unsure_for_ever():
    rng, scorer, unsure = np.random.default_rng(7), RobustScorer(2), 0
    for _ in range(200):
        samples = lognormal(rng, 2, 5)
        med, mean = np.median(samples, axis=1)[None], samples.mean(axis=1)[None]
        errors = tuple(of / value for of, value in zip(standard_errors(samples), (med, mean), strict=True))
        window = scorer.update(ONE, med, num_SR=np.full((1, 2), 5), means_SR=mean, errors_SR=errors)
        unsure += bool((window.state == UNSURE).any())
    assert unsure < 10


def test_a_slowness_of_some_steps_that_is_no_proof_is_unsure():
    def slowed(number, samples):
        samples[1] *= 1.0 + 0.8 * (np.arange(samples.shape[1]) % 3 == 0)
        return samples

    count, window = named(3, lengths, 16, 40, seed=11, change=slowed)
    assert count[[0, 2]].tolist() == [0, 0]
    assert window.state[0, 1] in (SLOW, UNSURE)
    assert 0.1 < window.excess[0, 1] < 0.5
    assert window.level_bar[0, 1] > window.excess[0, 1] or window.state[0, 1] == SLOW


def test_ranks_that_all_differ_are_unsure_and_not_passed_over():
    def slowed(number, samples):
        return samples * np.array([[0.8], [1.0], [1.25]])

    count, window = named(3, disturbed, 20, 30, seed=12, change=slowed)
    assert count.tolist() == [0, 0, 0]
    assert window.state[0, 2] == UNSURE


def test_a_few_random_steps_are_not_implausibly_fast():
    for seed in range(30):
        rng, scorer = np.random.default_rng(seed), RobustScorer(4)
        for _ in range(30):
            samples = rng.choice([4.0, 16.0, 64.0], size=(4, 4))
            med, mean = np.median(samples, axis=1)[None], samples.mean(axis=1)[None]
            errors = tuple(of / value for of, value in zip(standard_errors(samples), (med, mean), strict=True))
            window = scorer.update(ONE, med, num_SR=np.full((1, 4), 4), means_SR=mean, errors_SR=errors)
            assert not (window.state == IMPLAUSIBLE).any()


def test_what_is_unsure_says_how_much_would_be_a_proof():
    def slowed(number, samples):
        samples[1] *= 1.3
        return samples

    _, window = named(2, lognormal, 10, 12, seed=8, change=slowed)
    assert window.state[0, 1] == UNSURE
    bar = window.level_bar[0, 1]
    assert bar > window.excess[0, 1] > 0.07


def test_what_is_random_and_shared_hides_nobody():
    def shared(rng, ranks, steps):
        return np.exp(rng.normal(0.0, 0.4, (1, steps)) + rng.normal(0.0, 0.02, (ranks, steps)))

    def slowed(number, samples):
        samples[1] *= 1.0 + 0.12 * (number >= 30)
        return samples

    count, window = named(4, shared, 40, 60, seed=10, change=slowed)
    assert count.tolist() == [0, 1, 0, 0]
    assert window.state[0, 1] == SLOW


def test_a_step_to_another_level_is_little_noise():
    noise, peers = CellNoise(4), PeerGroups.everybody(4)
    rng, cells = np.random.default_rng(9), np.arange(4)
    rows = rng.normal(0.0, 0.01, (40, 1, 4)).astype(np.float32)
    for row in rows[:20]:
        noise.see(row, None, np.full((1, 4), 0.01, dtype=np.float32), peers)
    before = noise.bars(cells, 5.0, np.full(4, 3.0))
    for row in rows[20:]:
        row[0, 2] += 0.5
        noise.see(row, None, np.full((1, 4), 0.01, dtype=np.float32), peers)
    assert (noise.bars(cells, 5.0, np.full(4, 3.0)) < 1.3 * before).all()
    assert (before > 0.03).all()


def test_missing_windows_and_rows_that_come_later_leave_the_rest():
    noise, peers = CellNoise(3), PeerGroups.everybody(3)
    errors = np.array([[0.01, np.nan, 0.02]], dtype=np.float32)
    missing = np.array([[False, True, False]])
    for _ in range(5):
        noise.see(np.array([[0.0, 99.0, 0.1]], dtype=np.float32), missing, errors, peers)
    bars = noise.bars(np.arange(3), 3.0, np.full(3, 3.0))
    assert np.isfinite(bars).all()
    assert bars[0] < bars[2] < 0.2
    noise.see(np.zeros((2, 3), dtype=np.float32), None, None, peers)
    assert np.isfinite(noise.bars(np.arange(6), 3.0, np.full(6, 3.0))).all()
    noise.reset_row(0)
    assert float(noise.bars(np.arange(1), 3.0, np.full(1, 3.0))[0]) < bars[0] + 1e-6


def test_each_group_has_a_reference_of_its_own():
    noise, peers = CellNoise(4), PeerGroups(np.array([0, 1, 0, 1]))
    errors = np.array([[0.01, 0.10, 0.01, 0.10]], dtype=np.float32)
    for _ in range(5):
        noise.see(np.zeros((1, 4), dtype=np.float32), None, errors, peers)
    bars = noise.bars(np.arange(4), 3.0, np.full(4, 1.0))
    assert bars[0] == bars[2]
    assert bars[1] == pytest.approx(10.0 * bars[0], rel=1e-5)


def test_the_noise_of_a_rank_without_peers_is_that_of_its_own_past():
    noise, peers = CellNoise(1), PeerGroups.everybody(1)
    rng = np.random.default_rng(13)
    for value in rng.normal(0.0, 0.05, 40):
        noise.see(np.array([[value]], dtype=np.float32), None, None, peers)
    assert 0.1 < float(noise.bars(np.zeros(1, dtype=np.intp), 3.0, np.ones(1))[0]) < 0.4
