"""Standard errors of medians and means, against how much those of many windows really differ."""

import numpy as np
import pytest

from straggler.measurement.standard_errors import standard_errors

WINDOWS = 4000


def normal(rng, steps):
    return rng.normal(1.0, 0.1, (WINDOWS, steps))


def uniform(rng, steps):
    return rng.uniform(8.0, 40.0, (WINDOWS, steps))


def lognormal(rng, steps):
    return rng.lognormal(0.0, 0.5, (WINDOWS, steps))


def five_lengths(rng, steps):
    return rng.choice([8.0, 16.0, 24.0, 32.0, 40.0], (WINDOWS, steps))


def two_lengths(rng, steps):
    return rng.choice([8.0, 40.0], (WINDOWS, steps))


def in_runs(rng, steps):
    """Runs of eight alike steps."""
    return np.repeat(rng.normal(1.0, 0.1, (WINDOWS, steps // 8)), 8, axis=1)


@pytest.mark.parametrize("steps", [5, 20, 60, 200])
@pytest.mark.parametrize("draw", [normal, uniform, lognormal, five_lengths, two_lengths])
def test_they_are_how_much_windows_differ(draw, steps):
    samples = draw(np.random.default_rng(1), steps)
    of_median, of_mean = standard_errors(samples)
    for found, values in ((of_median, np.median(samples, axis=1)), (of_mean, samples.mean(axis=1))):
        # Of a few lengths a median is mostly one of them, and its error by order statistics is large or nothing.
        assert 0.75 < np.sqrt(np.mean(found**2)) / values.std() < 2.1


def test_samples_that_come_in_runs_count_for_fewer():
    samples = in_runs(np.random.default_rng(2), 64)
    _, of_mean = standard_errors(samples)
    assert 0.8 < np.sqrt(np.mean(of_mean**2)) / samples.mean(axis=1).std() < 1.4
    _, of_mean = standard_errors(normal(np.random.default_rng(2), 64))
    assert np.sqrt(np.mean(of_mean**2)) < 1.25 * 0.1 / 8


@pytest.mark.parametrize("steps", [0, 1])
def test_fewer_than_two_samples_have_none(steps):
    of_median, of_mean = standard_errors(np.ones((3, steps)))
    assert of_median.tolist() == of_mean.tolist() == [0.0] * 3


@pytest.mark.parametrize("steps", [2, 3, 40])
def test_equal_samples_have_none(steps):
    of_median, of_mean = standard_errors(np.full(steps, 0.5))
    assert (float(of_median), float(of_mean)) == (0.0, 0.0)
