"""Rows, ranks and groups come and go in a job: a section that is entered later, a rank that is missing once."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust import RobustScorer
from straggler.scoring.robust_scores import SLOW


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("at", [1, 4, 12])
def test_a_row_that_comes_later_is_scored_like_the_others(before, at):
    scorer = RobustScorer(4)
    medians = np.ones((before + 1, 4))
    medians[-1, 2] = 1.5
    names = np.arange(before + 1, dtype=np.uint64)
    for window in range(at + 5):
        rows = slice(0, before if window < at else before + 1)
        scores = scorer.update(names[rows], medians[rows])
    assert (scores.state == SLOW).nonzero()[0].tolist() == [before]
    assert (scores.state == SLOW).nonzero()[1].tolist() == [2]


@given(
    st.integers(2, 6).flatmap(
        lambda ranks: st.tuples(
            st.just(ranks),
            st.lists(
                st.tuples(
                    st.lists(st.booleans(), min_size=4, max_size=4),
                    st.lists(st.booleans(), min_size=ranks, max_size=ranks),
                    st.booleans(),
                ),
                max_size=30,
            ),
        )
    )
)
def test_any_rows_ranks_and_groups_may_be_missing_in_any_window(job):
    ranks, windows = job
    scorer = RobustScorer(ranks)
    names = np.arange(4, dtype=np.uint64)
    for there, missing, is_grouped in windows:
        medians = np.ones((4, ranks)) * (1.0 + 0.01 * np.arange(ranks))
        medians[:, missing] = np.nan
        groups = PeerGroups(np.arange(ranks) % 2) if is_grouped else None
        scores = scorer.update(names[there], medians[there], means_SR=medians[there], groups=groups)
        assert scores.state.shape == scores.excess.shape == (len(scores.names), ranks)
