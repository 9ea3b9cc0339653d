"""Peer groups: the middle is the median, however many peers and in whatever order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.scoring.peers import PeerGroups

MANY = st.integers(min_value=4090, max_value=20_000)


@settings(deadline=None, max_examples=30)  # a busy machine fails no property
@given(MANY, st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 7, 10**6]), st.sampled_from(["shuffled", "sorted"]))
def test_the_middle_of_many_is_their_median(size, seed, different, order):
    values = 1.0 + np.random.default_rng(seed).integers(0, different, (2, size)).astype(np.float32) / 64
    if order == "sorted":
        values.sort(axis=1)
    middle = PeerGroups.everybody(size).middle(values)
    np.testing.assert_array_equal(middle[:, 0], np.median(values, axis=1))


@pytest.mark.parametrize("period", range(2, 41))
def test_a_sample_that_is_not_like_the_rest_misleads_nobody(period):
    """One rank of each node is slower, in step with the sample or not."""
    values = np.random.default_rng(period).normal(1.0, 0.01, (1, 40_000)).astype(np.float32)
    values[:, ::period] *= 3
    assert PeerGroups.everybody(40_000).middle(values)[0, 0] == np.median(values)


def test_many_with_some_missing_have_the_median_of_the_others():
    values = np.arange(1, 5001, dtype=np.float32)[None]
    values[0, -100:] = np.nan
    assert PeerGroups.everybody(5000).middle(values)[0, 0] == 2450.5


def test_many_in_each_of_two_groups():
    groups = PeerGroups(np.arange(10_000, dtype=np.int64) % 2)
    values = np.arange(10_000, dtype=np.float32)[None]
    assert groups.middle(values)[0, :2].tolist() == [4999.0, 5000.0]
