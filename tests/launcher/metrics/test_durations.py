"""Histograms: cumulative, and consistent with their sums and counts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from launcher.agent.durations import Durations
from launcher.metrics.durations import BOUNDS_OF_SECTIONS, of_bits

S = 1_000_000_000


def test_durations_are_counted_up_to_their_bounds() -> None:
    durations = Durations((0.001, 0.01, 1.0))
    for ns in (0, 1_000_000, 1_000_001, S, 5 * S):
        durations.add(ns)
    found = durations.histogram
    assert found.buckets == ((0.001, 2), (0.01, 3), (1.0, 4))
    assert (found.total, found.sum_seconds) == (5, pytest.approx(6.002000001))


def test_a_duration_below_nothing_is_none() -> None:
    durations = Durations((1.0,))
    durations.add(-1)
    assert durations.histogram.total == 0


def test_bounds_of_sections_are_powers_of_two_of_nanoseconds() -> None:
    assert BOUNDS_OF_SECTIONS[0] == pytest.approx(0.000131072)
    assert all(after == 2 * before for before, after in itertools.pairwise(BOUNDS_OF_SECTIONS))
    assert BOUNDS_OF_SECTIONS[-1] > 3600


@given(some.lists(some.integers(0, 2**46), max_size=50))
def test_the_histogram_of_a_section_is_that_of_its_durations(durations: list[int]) -> None:
    bits: dict[int, int] = {}
    for ns in durations:
        bits[ns.bit_length()] = bits.get(ns.bit_length(), 0) + 1
    found = of_bits(bits, sum(durations))
    assert found.total == len(durations)
    assert found.sum_seconds == pytest.approx(sum(durations) / S)
    for bound, count in found.buckets:
        assert count == sum(ns < round(bound * S) for ns in durations)
