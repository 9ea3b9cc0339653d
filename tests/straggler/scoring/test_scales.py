"""Rules of robust scoring that go beyond the shortest scale and the median, each on windows drawn with a fixed seed."""

import numpy as np
import pytest

from straggler.scoring.history import lasts
from straggler.scoring.modes import slow_groups
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust import RobustScorer
from straggler.scoring.robust_scores import OK, SLOW, UNSURE
from straggler.scoring.spreads import normal_quantile, spread_of, student_quantile
from straggler.settings import RobustSettings

ONE = np.array([1], dtype=np.uint64)
RANKS = 64


def play(windows, *, noise, seed=0, slow=None, means=None, onset=0, ranks=RANKS, nature=None, groups=None):
    """Return the scores of each window: white noise per window, rank 3 slowed by ``slow`` from ``onset`` on."""
    random = np.random.default_rng(seed)
    scorer = RobustScorer(ranks)
    found = []
    for number in range(windows):
        medians = (1.0 if nature is None else nature) * np.exp(noise * random.standard_normal((1, ranks)))
        averages = medians * np.exp(0.5 * noise * random.standard_normal((1, ranks)))
        if number >= onset:
            if slow:
                medians[0, 3] *= 1.0 + slow
                averages[0, 3] *= 1.0 + slow
            if means:
                averages[0, 3] *= 1.0 + means
        found.append(scorer.update(ONE, medians, means_SR=averages, groups=groups))
    return found


def named(window):
    return np.flatnonzero((window.state == SLOW).any(axis=0)).tolist()


def test_a_rank_of_which_some_steps_are_slow_is_named_by_its_mean():
    window = play(40, noise=0.01, means=0.15, onset=12)[-1]
    assert named(window) == [3]
    assert window.in_means[0, 3]
    assert window.excess[0, 3] == pytest.approx(0.15, abs=0.03)


def test_single_long_pauses_name_nobody():
    """In every tenth window of each rank one pause triples the mean."""
    random = np.random.default_rng(1)
    scorer = RobustScorer(RANKS)
    for _ in range(80):
        medians = np.exp(0.01 * random.standard_normal((1, RANKS)))
        averages = medians * np.where(random.random((1, RANKS)) < 0.1, 3.0, 1.0)
        assert named(scorer.update(ONE, medians, means_SR=averages)) == []


@pytest.mark.parametrize("onset", [0, 12])
@pytest.mark.parametrize("seed", range(3))
def test_ten_per_cent_is_found_in_noise_that_three_windows_do_not_average_out(seed, onset):
    found = play(onset + 28, noise=0.045, slow=0.12, onset=onset, seed=seed)
    assert named(found[-1]) == [3]


@pytest.mark.parametrize("seed", range(3))
def test_a_later_slowdown_in_noise_is_not_absorbed_by_the_usual(seed):
    found = play(130, noise=0.03, slow=0.1, onset=12, seed=seed)
    assert all(named(window) == [3] for window in found[45:])


@pytest.mark.parametrize("noise", [0.03, 0.1, 0.2])
def test_white_noise_of_windows_names_nobody(noise):
    for seed in range(3):
        assert [named(window) for window in play(120, noise=noise, seed=seed) if named(window)] == []


@pytest.mark.parametrize("tau", [3.0, 10.0])
def test_noise_that_lasts_names_nobody(tau):
    phi = np.exp(-1.0 / tau)
    random = np.random.default_rng(2)
    scorer = RobustScorer(RANKS)
    state = random.standard_normal((1, RANKS))
    for _ in range(400):
        state = phi * state + np.sqrt(1.0 - phi**2) * random.standard_normal((1, RANKS))
        assert named(scorer.update(ONE, np.exp(0.04 * state))) == []


def test_what_healthy_ranks_show_too_is_unsure_and_not_slow():
    nature = np.exp(0.02 * np.random.default_rng(3).standard_normal((1, RANKS)))
    nature[0, 3] = 1.09
    window = play(40, noise=0.005, nature=nature)[-1]
    assert window.state[0, 3] == UNSURE
    assert named(window) == []
    assert window.level_bar.max() > 0.09


def test_a_node_that_is_slower_by_nature_is_not_named_and_a_rank_within_it_is():
    nodes = np.arange(RANKS) // 8
    groups = PeerGroups(np.zeros(RANKS, dtype=np.int64), nodes)
    nature = (1.0 + np.array([0.0, 0.03, -0.03, 0.02, -0.02, 0.085, -0.01, 0.01]))[nodes][None, :]
    assert named(play(40, noise=0.005, nature=nature, groups=groups)[-1]) == []
    nature = (1.0 + 0.005 * np.arange(-4, 4))[nodes][None, :]
    nature[0, 41] *= 1.09
    assert named(play(3, noise=0.005, nature=nature, groups=groups)[-1]) == [41]


def test_a_node_within_the_spread_of_all_nodes_names_none_of_its_ranks():
    """Counted as 64 ranks these values are sure of the last node; there are only eight of them."""
    nodes = np.arange(RANKS) // 8
    groups = PeerGroups(np.zeros(RANKS, dtype=np.int64), nodes)
    nature = np.array([0.966, 0.968, 0.977, 1.023, 0.969, 0.969, 0.988, 1.042])[nodes][None, :]
    found = [named(window) for window in play(24, noise=0.005, nature=nature, groups=groups)]
    assert found == [[]] * 24


def test_undeclared_stages_are_said_and_none_is_slow():
    nature = np.repeat([1.0, 1.0, 1.0, 1.5], RANKS // 4)[None, :]
    window = play(12, noise=0.01, nature=nature)[-1]
    assert named(window) == []
    assert (window.state[0, -16:] == UNSURE).all()
    assert (window.state[0, :-16] == OK).all()
    ((name, count, apart),) = window.groups
    assert (name, count) == (1, 2)
    assert apart == pytest.approx(0.5, abs=0.02)


def test_many_slow_ranks_anywhere_are_slow_and_no_group():
    slow = np.sort(np.random.default_rng(4).choice(RANKS, 20, replace=False))
    nature = np.ones((1, RANKS))
    nature[0, slow] = 1.2
    window = play(6, noise=0.005, nature=nature)[-1]
    assert named(window) == slow.tolist()
    assert window.groups == ()


def test_every_nth_rank_is_a_group():
    values = np.where(np.arange(RANKS) % 4 == 3, 0.3, 0.0).astype(np.float32)
    (split,) = slow_groups(values)
    assert np.flatnonzero(split).tolist() == list(range(3, RANKS, 4))
    assert slow_groups(np.zeros(RANKS, dtype=np.float32)) == []


def test_a_slow_rank_is_released_only_when_the_same_scale_is_calm():
    scorer = RobustScorer(8)
    for _ in range(12):
        scorer.update(ONE, np.array([[1.0] * 8]))
    for _ in range(5):
        scorer.update(ONE, np.array([[1.0] * 7 + [1.3]]))
    healthy = [named(scorer.update(ONE, np.array([[1.0] * 8]))) for _ in range(30)]
    assert healthy[1] == [7]
    assert healthy[5:] == [[]] * 25


@pytest.mark.parametrize(
    ("bits", "scale", "seen", "is_enough"),
    [
        (0b00000111, 4, 8, True),
        (0b00110011, 4, 8, False),
        (0b00000111, 8, 8, False),  # three of eight
        (0b00110111, 8, 8, True),
        (0b01111011, 8, 8, True),
        (0b01110111, 20, 20, False),
        (0b111011110111, 20, 20, False),  # ten
        (0b111111110111 << 4 | 0b0111, 20, 20, True),
        (0b00000111, 8, 5, True),  # of five that there were
        (0b11111000, 8, 8, False),  # not lately
    ],
)
def test_what_is_slow_at_a_longer_scale_is_near_a_bar_in_most_windows_of_it(bits, scale, seen, is_enough):
    enough = lasts(np.array([bits], dtype=np.uint32), scale, np.array([seen], dtype=np.float32), RobustSettings())
    assert enough.tolist() == [is_enough]


def test_the_spread_is_that_of_the_fast_side():
    values = np.random.default_rng(5).standard_normal((4, 2000)).astype(np.float32)
    values[:, :600] += 20.0
    low, both = spread_of(values, PeerGroups.everybody(2000), inner=False)
    assert (low < 2.0).all()
    assert (both > 5.0).all()


def test_quantiles_are_those_of_the_tables():
    assert normal_quantile(0.001) == pytest.approx(3.090, abs=0.001)
    assert student_quantile(normal_quantile(0.005), np.array([10.0]))[0] == pytest.approx(3.169, rel=0.02)


def test_confidence_has_two_words():
    little, much = play(6, noise=0.003, slow=0.08)[-1], play(6, noise=0.003, slow=0.5)[-1]
    assert little.confidence(0, 3) == 0.95
    assert much.confidence(0, 3) == 0.99
    assert much.confidence(0, 4) == 0.0
