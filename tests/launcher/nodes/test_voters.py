"""Who votes: an odd number of at most five, the leader among them, one change at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.nodes.voters import next_voters

NODES = "abcdefgh"


@pytest.mark.parametrize(
    ("voters", "alive", "expected"),
    [
        ("a", "a", (None, "a")),
        ("a", "ab", (None, "a")),  # of two nodes one votes
        ("a", "abc", ("b", "a")),
        ("ab", "abc", ("c", "ab")),
        ("abc", "abcd", (None, "abc")),
        ("abc", "abcde", ("d", "abc")),
        ("abcde", "abcdefgh", (None, "abcde")),
        ("abc", "ab", (None, "ab")),  # who is gone votes no more
        ("ab", "ab", (None, "a")),
        ("abcd", "abcd", (None, "abc")),
        ("abcde", "ade", (None, "acde")),  # one after the other
        ("abc", "", (None, "ac")),
    ],
)
def test_next_voters(voters: str, alive: str, expected: tuple[str | None, str]) -> None:
    learner, then = next_voters(tuple(voters), list(alive), "a")
    assert (learner, "".join(then)) == expected


def test_a_leader_that_leaves_goes_last() -> None:
    assert next_voters(("a", "b", "c"), ["b"], "a") == (None, ("a", "b"))
    assert next_voters(("a", "b"), ["b"], "a") == (None, ("b",))
    assert next_voters(("a",), ["b"], "a") == ("b", ("a",))
    assert next_voters(("a",), [], "a") == (None, ("a",))


def test_a_leader_is_not_the_one_too_many() -> None:
    assert next_voters(("b", "a"), ["a", "b"], "a") == (None, ("a",))


@given(
    st.lists(st.sampled_from(NODES), unique=True, min_size=1, max_size=6),
    st.lists(st.sampled_from(NODES), unique=True, max_size=8),
)
def test_step_by_step_it_comes_to_an_odd_number_of_living_nodes(voters: list[str], alive: list[str]) -> None:
    leader, now = voters[0], tuple(voters)
    for _ in range(20):
        learner, then = next_voters(now, alive, leader)
        if learner is not None:
            assert learner in alive
            assert then == now
            then = (*now, learner)
        if then == now:
            break
        assert len(set(then) ^ set(now)) == 1
        now = then
        if leader not in now:
            leader = now[0]
    else:
        raise AssertionError(f"no end: {now}")
    if alive:
        wanted = min(5, len(alive))
        assert set(now) <= set(alive)
        assert len(now) == wanted - (wanted % 2 == 0)
