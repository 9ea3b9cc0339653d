"""What a freeze moves a deadline by, and who must have been silent for there to be one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.monitor.lost_time import (
    KEEPER,
    LONGEST_BEAT_NS,
    LONGEST_SETTLING_NS,
    MONITOR,
    MOST_FREEZES,
    SHORTEST_BEAT_NS,
    Freeze,
    LostTime,
    freezes_of,
    moved_by_ns,
)

S = 1_000_000_000
MS = 1_000_000
T = 1_000 * S


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = LostTime.create()
    yield descriptor
    os.close(descriptor)


def beats(record: LostTime, witness: int, start_ns: int, end_ns: int) -> None:
    period_ns = record.beat_period_ns
    for now_ns in range(start_ns, end_ns, period_ns):
        record.beat(witness, now_ns)
    record.beat(witness, end_ns)


# ---- the rule -------------------------------------------------------------------------------------------


def test_a_freeze_within_a_running_deadline_moves_it_by_its_length() -> None:
    assert moved_by_ns(T, T + 5 * S, [Freeze(T + S, T + 3 * S)]) == 2 * S


def test_only_what_was_lost_while_the_deadline_was_running_counts() -> None:
    assert moved_by_ns(T, T + 5 * S, [Freeze(T - 9 * S, T - S)]) == 0
    assert moved_by_ns(T, T + 5 * S, [Freeze(T - 9 * S, T + S)]) == S
    assert moved_by_ns(T, T + 5 * S, [Freeze(T + 5 * S, T + 9 * S)]) == 0


def test_a_freeze_in_the_time_that_another_one_gave_back_counts_too() -> None:
    assert moved_by_ns(T, T + 5 * S, [Freeze(T + 4 * S, T + 6 * S), Freeze(T + 6 * S, T + 7 * S)]) == 3 * S


def test_freezes_that_overlap_count_once() -> None:
    assert moved_by_ns(T, T + 5 * S, [Freeze(T + S, T + 3 * S), Freeze(T + 2 * S, T + 4 * S)]) == 3 * S


def test_one_long_suspension_counts_in_full() -> None:
    assert moved_by_ns(T, T + S, [Freeze(T, T + 86_400 * S)]) == 86_400 * S


def test_stuttering_for_ever_does_not_put_a_verdict_off_for_ever() -> None:
    """Runs for 40 ms of every 640: at most the eight longest, where that is more than the limit itself."""
    stutter = [Freeze(T + n * 640 * MS, T + n * 640 * MS + 600 * MS) for n in range(1000)]
    assert moved_by_ns(T, T + S, stutter) == MOST_FREEZES * 600 * MS
    assert moved_by_ns(T, T + 60 * S, stutter) == 60 * S


freezes = st.lists(st.tuples(st.integers(0, 10**11), st.integers(1, 10**11)), max_size=20).map(
    lambda spans: [Freeze(start, start + length) for start, length in sorted(spans)]
)


@given(since=st.integers(0, 10**11), limit=st.integers(0, 10**11), freezes=freezes)
def test_a_deadline_never_moves_back_nor_beyond_its_bound(since: int, limit: int, freezes: list[Freeze]) -> None:
    moved = moved_by_ns(since, since + limit, freezes)
    longest = sorted((end - start for start, end in freezes), reverse=True)[:MOST_FREEZES]
    assert 0 <= moved <= max(limit, sum(longest))


# ---- the witnesses --------------------------------------------------------------------------------------


def test_time_is_lost_only_where_both_witnesses_were_silent() -> None:
    assert freezes_of([(T, T + 2 * S)], []) == []
    assert freezes_of([(T, T + 2 * S)], [(T + 3 * S, T + 4 * S)]) == []
    assert freezes_of([(T, T + 200 * MS)], [(T + 100 * MS, T + 9 * S)]) == [Freeze(T + 100 * MS, T + 300 * MS)]


def test_the_last_to_wake_get_a_moment() -> None:
    assert freezes_of([(T, T + 9 * S)], [(T, T + 9 * S)]) == [Freeze(T, T + 9 * S + LONGEST_SETTLING_NS)]


def test_a_monitor_that_is_starved_alone_loses_nothing(memory: int) -> None:
    """It used to give back for ever, and never condemned anybody."""
    record = LostTime(memory)
    record.suit_limit(S)
    beats(record, KEEPER, T, T + 64 * S)
    for n in range(100):
        record.beat(MONITOR, T + n * 640 * MS)
        record.beat(MONITOR, T + n * 640 * MS + 40 * MS)
    assert record.freezes(T + 64 * S) == []


def test_a_freeze_shorter_than_the_monitors_sleep_is_seen(memory: int) -> None:
    record = LostTime(memory)
    record.suit_limit(S)
    for witness in (MONITOR, KEEPER):
        beats(record, witness, T, T + S)
        record.beat(witness, T + S + 600 * MS)
    (freeze,) = record.freezes(T + S + 600 * MS)
    assert (freeze.start_ns, freeze.end_ns - freeze.start_ns >= 600 * MS) == (T + S, True)


@pytest.mark.parametrize("first", [MONITOR, KEEPER])
def test_whoever_wakes_first_knows_that_the_other_was_silent_too(memory: int, first: int) -> None:
    record = LostTime(memory)
    for witness in (MONITOR, KEEPER):
        beats(record, witness, T, T + S)
    record.beat(first, T + 9 * S)
    assert len(record.freezes(T + 9 * S)) == 1


@pytest.mark.parametrize("only", [MONITOR, KEEPER])
def test_a_witness_that_has_not_begun_yet_has_not_been_silent(memory: int, only: int) -> None:
    record = LostTime(memory)
    beats(record, only, T, T + S)
    assert record.freezes(T + 9 * S) == []


def test_a_successor_reads_what_its_predecessor_saw(memory: int) -> None:
    record = LostTime(memory)
    for witness in (MONITOR, KEEPER):
        record.beat(witness, T)
        record.beat(witness, T + 7 * S)
    assert LostTime(memory).freezes(T + 7 * S) == [Freeze(T, T + 7 * S + LONGEST_SETTLING_NS)]


def test_the_time_without_a_monitor_is_not_lost(memory: int) -> None:
    record = LostTime(memory)
    beats(record, KEEPER, T, T + 9 * S)
    record.beat(MONITOR, T)
    LostTime(memory).beat(MONITOR, T + 9 * S)
    assert record.freezes(T + 9 * S) == []


def test_the_record_forgets_the_oldest_and_stays_in_order(memory: int) -> None:
    record = LostTime(memory)
    for n in range(2000):
        for witness in (MONITOR, KEEPER):
            record.beat(witness, T + n * S)
    found = record.freezes(T + 1999 * S)
    assert found == sorted(found)
    assert found[-1].start_ns == T + 1998 * S
    assert len(found) == 512


def test_the_beat_suits_the_smallest_limit(memory: int) -> None:
    record = LostTime(memory)
    assert record.suit_limit(0) == record.beat_period_ns == LONGEST_BEAT_NS
    assert record.suit_limit(3600 * S) == LONGEST_BEAT_NS
    assert record.suit_limit(S) == S // 16
    assert LostTime(memory).beat_period_ns == S // 16
    assert record.suit_limit(1) == SHORTEST_BEAT_NS
