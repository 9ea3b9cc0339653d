"""Which verdicts have ended a generation, as the event log tells it."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.records.verdicts import seen_at_ns, was_taken_back

HANG = {"event": "hang", "t_ns": 20, "seen_ns": 10, "condemned": [0, 3]}


def spared(*ranks: Any, at_ns: int = 15, event: str = "near_miss") -> list[dict[str, Any]]:
    return [{"event": event, "t_ns": at_ns, "rank": rank} for rank in ranks]


def test_a_verdict_was_taken_back_where_every_rank_was_spared() -> None:
    assert was_taken_back(HANG, [*spared(3), *spared(0, event="withdrawn")])
    assert not was_taken_back(HANG, [])
    assert not was_taken_back(HANG, spared(3))
    assert not was_taken_back(HANG, spared(0, 3, at_ns=9))  # of a verdict before it
    assert was_taken_back(HANG, spared(0, 3, at_ns=10))


@pytest.mark.parametrize("facts", [{"event": "failure"}, {"condemned": []}, {"condemned": None}, {"condemned": 3}])
def test_what_condemns_nobody_by_a_verdict_stands(facts: dict[str, Any]) -> None:
    assert not was_taken_back({**HANG, **facts}, spared(0, 3))


@pytest.mark.parametrize("seen_ns", [None, 0, -1, "10", True, 21])
def test_a_time_that_makes_no_sense_is_replaced_by_when_it_was_written(seen_ns: Any) -> None:
    assert seen_at_ns({**HANG, "seen_ns": seen_ns}) == 20
    assert seen_at_ns(HANG) == 10
