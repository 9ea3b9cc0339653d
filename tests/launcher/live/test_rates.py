"""Steps in a second, from when an iteration was seen to change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.live.rates import Rate
from resilience_core.system.clock import NS_PER_SECOND


def seen(*moments: tuple[float, int]) -> Rate:
    rate = Rate()
    for seconds, iteration in moments:
        rate.note(int(seconds * NS_PER_SECOND), iteration)
    return rate


def at(rate: Rate, seconds: float) -> float | None:
    return rate.per_second(int(seconds * NS_PER_SECOND))


def test_fast_steps() -> None:
    assert at(seen(*((n, 20 * n) for n in range(60))), 59) == pytest.approx(20)


def test_slow_steps_are_told_from_the_last_changes() -> None:
    rate = seen(*((n, n // 30) for n in range(200)))
    assert at(rate, 199) == pytest.approx(1 / 30)


def test_it_is_unknown_until_an_iteration_has_changed_twice() -> None:
    assert at(seen(), 0) is None
    assert at(seen((0, 4), (5, 4)), 5) is None
    assert at(seen((0, 4), (5, 5), (6, 5)), 6) is None
    assert at(seen((0, 4), (5, 5), (6, 7)), 6) == pytest.approx(2)


def test_the_first_look_is_no_change() -> None:
    rate = seen((0.45, 9), (0.5, 10), (1.5, 12), (2.5, 14))  # two steps in a second, one of which ends after a look
    assert at(rate, 2.5) == pytest.approx(2)
    assert at(seen((0.45, 9), (0.5, 10)), 0.5) is None


def test_a_change_of_pace_is_seen_within_the_window() -> None:
    rate = seen(*((n, 10 * n) for n in range(30)), *((30 + n, 300 + n) for n in range(20)))
    assert at(rate, 49) == pytest.approx(1, rel=0.1)


def test_a_rank_that_is_silent_becomes_slower() -> None:
    rate = seen(*((n, n) for n in range(10)))
    assert at(rate, 9.5) == pytest.approx(1)
    slower = [at(rate, seconds) or 0 for seconds in (12, 30, 300)]
    assert slower == sorted(slower, reverse=True)
    assert slower[-1] < 0.05


def test_a_lower_or_an_unknown_iteration_begins_anew() -> None:
    assert at(seen((0, 10), (1, 11), (2, 3)), 2) is None
    assert at(seen((0, 10), (1, 11), (2, -1)), 2) is None
    assert at(seen((0, 10), (1, 11), (2, 3), (3, 5)), 3) is None
    assert at(seen((0, 10), (1, 11), (2, 3), (3, 5), (4, 7)), 4) == pytest.approx(2)
    assert at(seen((0, 10), (1, 11), (2, -1), (3, 50), (4, 52)), 4) is None


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(-5, 2**62))))
def test_it_is_none_or_positive(steps: list[tuple[int, int]]) -> None:
    rate, now_ns = Rate(), 0
    for passed_ns, iteration in steps:
        now_ns += passed_ns
        rate.note(now_ns, iteration)
        found = rate.per_second(now_ns)
        assert found is None or found > 0
