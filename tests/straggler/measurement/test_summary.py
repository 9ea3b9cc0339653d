"""One definition per statistic, for every probe."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler import Statistic
from straggler.measurement.summary import summarise

durations = st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=50)


@settings(deadline=None)  # a busy machine fails no property
@given(durations)
def test_every_statistic_is_the_textbook_one(seconds):
    """Sorted by hand, with no numpy in the expectation."""
    summary = summarise(seconds)

    ordered, count = sorted(seconds), len(seconds)
    mean = sum(seconds) / count
    assert summary[Statistic.MIN] == ordered[0]
    assert summary[Statistic.MAX] == ordered[-1]
    assert summary[Statistic.MED] == pytest.approx((ordered[(count - 1) // 2] + ordered[count // 2]) / 2)
    assert summary[Statistic.AVG] == pytest.approx(mean)
    assert summary[Statistic.STD] == pytest.approx((sum((s - mean) ** 2 for s in seconds) / count) ** 0.5, abs=1e-6)
    assert summary[Statistic.NUM] == count


def test_one_sample_has_no_deviation_and_no_nan():
    assert summarise([2.0])[Statistic.STD] == 0.0


@pytest.mark.parametrize("seconds", [[], [1.0, float("nan")], [float("inf")], [-1.0], [[1.0]]])
def test_what_is_no_duration_is_an_error(seconds):
    with pytest.raises(ValueError, match=r"duration"):
        summarise(seconds)
